"""The object cache: hits, damage, foreign folders, full disks, two writers; sharing and freeing of kernels."""

import gc
import os
import subprocess
import sys
import warnings

import pytest

from grainline.codegen import cache
from grainline.codegen.compile import compile_kernels, live_kernels
from grainline.codegen.kernel import EMITTER_VERSION, emit
from grainline.kernels import pointwise, rows
from grainline.plan.planner import plan
from grainline.plan.target import Target, host_target


@pytest.fixture
def kernel():
    return emit(plan(rows.rms_norm(4, 40), host_target()).variants[0])


def entry(folder, kernel):
    return folder / (cache.key(kernel.text, kernel.target, EMITTER_VERSION) + ".o")


def compiled(kernel, folder):
    gc.collect()
    result = compile_kernels([kernel], cache.ObjectCache(folder))[kernel.symbol]
    assert result.address
    return result.from_cache


def test_second_compile_comes_from_the_cache(tmp_path, kernel):
    assert not compiled(kernel, tmp_path)
    assert compiled(kernel, tmp_path)
    assert oct(entry(tmp_path, kernel).stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "foreign", "renamed"])
def test_a_damaged_entry_is_rebuilt(tmp_path, kernel, damage):
    compiled(kernel, tmp_path)
    path = entry(tmp_path, kernel)
    good = path.read_bytes()
    flipped = bytes([*good[:200], good[200] ^ 1, *good[201:]])
    other = emit(plan(pointwise.copy(4, 40), host_target()).variants[0])
    compiled(other, tmp_path)
    bad = {
        "truncate": good[:100],
        "flip": flipped,
        "empty": b"",
        "foreign": b"hello" * 100,
        "renamed": entry(tmp_path, other).read_bytes(),
    }[damage]
    path.write_bytes(bad)
    assert not compiled(kernel, tmp_path), "a damaged entry was used"
    assert path.read_bytes() == good, "the entry was not rewritten"


def test_keys_differ_by_everything_that_changes_the_object(kernel):
    target = kernel.target
    keys = {
        cache.key(kernel.text, target, 1),
        cache.key(kernel.text + ";", target, 1),
        cache.key(kernel.text, target, 2),
        cache.key(kernel.text, Target("znver3", target.features, 32, 1), 1),
        cache.key(kernel.text, Target(target.cpu, target.features + ",-avx512f", 32, 1), 1),
    }
    assert len(keys) == 5
    assert cache.key(kernel.text, Target(target.cpu, target.features, 32, 7), 1) in keys, "homes do not matter"


def test_a_folder_that_others_may_write_is_not_used(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="other users may write"):
        assert cache.open_cache(folder).folder is None


def test_a_new_folder_is_private(tmp_path):
    opened = cache.open_cache(tmp_path / "a" / "b")
    assert opened.folder is not None
    assert oct(opened.folder.stat().st_mode)[-3:] == "700"


def test_a_file_in_place_of_the_folder_gives_one_warning(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.warns(RuntimeWarning):
        assert cache.open_cache(tmp_path / "file").folder is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.open_cache(tmp_path / "file")


def test_a_failing_write_leaves_the_kernel_usable(tmp_path, kernel, monkeypatch):
    def full(*_args, **_rest):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        compiled(kernel, tmp_path)
    assert list(tmp_path.iterdir()) == [], "temporary files were left"


def test_kernels_are_shared_while_held_and_freed_with_the_last_user(kernel):
    gc.collect()
    before = live_kernels()
    store = cache.ObjectCache(None)
    one, two = compile_kernels([kernel], store), compile_kernels([kernel], store)
    assert one[kernel.symbol] is two[kernel.symbol]
    assert live_kernels() == before + 1
    del one, two
    gc.collect()
    assert live_kernels() == before


SCRIPT = """
from grainline.codegen.compile import compile_kernels
from grainline.codegen.kernel import emit
from grainline.kernels import rows
from grainline.plan.planner import plan
from grainline.plan.target import host_target
for k in range(6):
    kernel = emit(plan(rows.rms_norm(4, 40 + k), host_target()).variants[0])
    assert compile_kernels([kernel])[kernel.symbol].address
"""


def test_two_processes_fill_the_cache_at_once(tmp_path):
    environment = {
        **os.environ,
        "GRAINLINE_CACHE_DIR": str(tmp_path / "shared"),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    running = [subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert len(list((tmp_path / "shared").glob("*.o"))) == 6


def test_a_folder_may_be_named_from_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GRAINLINE_CACHE_DIR", "~/code")
    assert cache.default_folder() == tmp_path / "code"
