"""The table of contents: an ONNX model in, a compiled model out.

    import_model   ONNX             -> Graph           importer/
    run_passes     Graph            -> Graph           graph/passes/
    lower          Graph            -> ExecuteGraph    lower/        (fuses, and builds one tile program per group)
    plan, emit     TileProgram      -> kernel text     plan/, codegen/   (once per distinct program)
    compile        kernel texts     -> addresses       codegen/      (object bytes are cached on disk)
    pack, load     ExecuteGraph     -> ModelExecutor   execgraph/, runtime/

`docs/pipeline.md` has the same table with files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from grainline import saved
from grainline.base import dims, log, progress
from grainline.base.errors import OptionError
from grainline.base.knobs import HOT_THREADS, Options, is_multi_worker, stream_count
from grainline.codegen.cache import ObjectCache, open_cache
from grainline.codegen.compile import CompiledKernel, compile_kernels, entry_name
from grainline.codegen.kernel import EmittedKernel, emit_variants
from grainline.codegen.llvm import assembly
from grainline.compiled import CompiledModel
from grainline.execgraph.ir import ExecuteGraph, LaunchTable, Variant
from grainline.execgraph.passes import PassOptions, optimise
from grainline.execgraph.passes.assign_streams import explain as explain_streams
from grainline.execgraph.passes.remove_launch_free_edge import explain as explain_edges
from grainline.execgraph.placement import place_on_discrete
from grainline.graph.ir import Graph
from grainline.graph.lookups import lookups_of
from grainline.graph.passes import run_passes
from grainline.importer.model import import_model
from grainline.importer.proto import open_model
from grainline.lower.lower import Backend, lower
from grainline.plan.digits import in_digits
from grainline.plan.machine import machine_in_use, use_machine
from grainline.plan.mma_chain import refusal_of
from grainline.plan.panels import PANEL, pack_panels, pack_quads
from grainline.plan.planner import plan
from grainline.plan.policy import ExecutionCostPolicy
from grainline.plan.target import Target, host_target
from grainline.plan.types import DEFAULT_OPTIONS, PlannerOptions, PlanResult, PolicyTable
from grainline.runtime.device import device_of
from grainline.runtime.executor import ModelExecutor
from grainline.tile.ir import TileProgram
from grainline.tile.text import canonical, to_text

#: a kernel over many axes has many candidates, and a model must compile whatever its plans take
PLANNING = replace(DEFAULT_OPTIONS, max_candidates=1 << 16)


def compile_model(source: Any, options: Options, spot: saved.Spot | None = None) -> CompiledModel:
    """Compiles the model at a path, or its bytes, for this machine; loads its weights; saves the result at `spot`.

    ModelError when the model is not valid, UnsupportedError when something in it cannot run.
    """
    with step("import"):
        opened = open_model(source)
        imported = import_model(opened)
    return compile_graph(imported, options, spot, opened.data)


def compile_graph(
    imported: Graph, options: Options, spot: saved.Spot | None = None, data: memoryview | None = None
) -> CompiledModel:
    """The same from a compute graph whose weights lie in `data`."""
    store = open_cache(options.cache_dir) if options.cache else ObjectCache(None)
    target = host_target(store.folder)
    use_machine(target)
    kernels = KernelTable(_planned_for(target, options), _planner_options(options))
    with step("passes"):
        graph = run_passes(imported, after=show_graph)
    is_discrete = options.device_name == "discrete"
    with step("lower, plan and emit"):
        lowered = lower(graph, kernels.backend())
    with step("compile"):
        compiled = compile_kernels(kernels.emitted(), store)
    with step("tidy"):
        placed = place_on_discrete(lowered.graph) if is_discrete else lowered.graph
        passes = PassOptions(is_multi_worker=is_multi_worker(workers=options.workers), streams=stream_count())
        execute_graph = optimise(placed, passes, after=show_execute_graph)
    edges = explain_edges(execute_graph) if passes.is_multi_worker else explain_streams(execute_graph)
    explanation = "\n".join([*lowered.notes, *edges, "", *kernels.explain(compiled)])
    with step("pack and load"):
        addresses = {symbol: kernel.address for symbol, kernel in compiled.items()}
        executor = ModelExecutor(
            execute_graph,
            addresses,
            keep_alive=compiled,
            threads=options.threads or 0,
            executor=options.executor or "auto",
            workers=options.workers or 0,
            device=device_of(options),
        )
        model = CompiledModel(imported.info, executor, explanation, lookups_of(graph), data)
    if spot is not None:
        saved.save(spot, model, {k.symbol: entry_name(k) for k in kernels.emitted()}, data)
    return model


def plan_model(source: Any) -> KernelTable:
    """The planned kernels of a model, without machine code and without its weights loaded."""
    kernels = KernelTable(host_target())
    lower(run_passes(import_model(open_model(source))), kernels.backend())
    return kernels


@contextmanager
def step(name: str) -> Iterator[None]:
    """Reports a step to whoever listens for progress, and its time at GRAINLINE_DEBUG=1."""
    progress.report(name)
    begin_ns = time.perf_counter_ns()
    yield
    log.debug(1, f"{name}: {(time.perf_counter_ns() - begin_ns) / 1e6:.1f} ms")


def show_graph(name: str, graph: Graph) -> None:
    """The graph after a pass, at GRAINLINE_DEBUG=2."""
    if log.is_shown(2):
        from grainline.graph.text import show

        log.debug(2, f"after {name}:\n{show(graph)}")


def show_execute_graph(name: str, graph: ExecuteGraph) -> None:
    """The execution graph after a pass that changed it, at GRAINLINE_DEBUG=2."""
    if log.is_shown(2):
        from grainline.execgraph.text import print_graph

        log.debug(2, f"after {name}:\n{print_graph(graph)}")


def show_kernel(program: TileProgram, result: PlanResult, kernels: tuple[EmittedKernel, ...]) -> None:
    """A kernel on its way to machine code: program and plan at 3, LLVM IR at 4, assembly at 5."""
    if not log.is_shown(3):
        return
    log.debug(3, f"{to_text(program)}\n{result.reason}")
    for kernel in kernels:
        log.debug(4, kernel.text)
        if log.is_shown(5):
            log.debug(5, assembly(kernel.text, kernel.target))


def _planned_for(target: Target, options: Options) -> Target:
    """A policy's table is for the threads of the model; what is saved for others to load is for all there are."""
    has_limit = options.cost_policy is not None and options.threads
    return replace(target, homes=min(options.threads or 0, target.homes)) if has_limit else target


def _planner_options(options: Options) -> PlannerOptions:
    """OptionError when the cost policy is none."""
    policy = options.cost_policy
    if policy is not None and not isinstance(policy, ExecutionCostPolicy):
        raise OptionError(
            "the option cost_policy cannot be used", expected="an ExecutionCostPolicy", found=type(policy).__name__
        )
    return replace(PLANNING, cost_policy=policy)


def _launch_table(table: PolicyTable | None, back: Mapping[str, dims.Expr]) -> LaunchTable | None:
    if table is None:
        return None
    axes = tuple((back.get(name, dims.symbol(name)), extents) for name, extents in table.axes)
    return LaunchTable(axes, tuple((r.alone, r.variant, r.blocks, r.grain, r.homes) for r in table.rows))


@dataclass
class KernelTable:
    """The kernels of one model: each distinct program is planned and emitted once.

    Keys are canonical texts, which hold no name; `names` has the names of the programs behind each.
    """

    target: Target
    options: PlannerOptions = PLANNING
    plans: dict[str, PlanResult] = field(default_factory=dict)
    kernels: dict[str, tuple[EmittedKernel, ...]] = field(default_factory=dict)
    names: dict[str, dict[str, None]] = field(default_factory=dict)

    def backend(self) -> Backend:
        """What `lower` needs of this room."""
        return Backend(self.plan, pack_panels, PANEL, refusal_of, self.quads)

    def plan(self, program: TileProgram) -> tuple[str, tuple[Variant, ...], LaunchTable | None]:
        """The key of a program, its variants and a policy's table, with all extents in the symbols of `program`."""
        shared, symbols = canonical(program)
        key = to_text(shared)
        self.names.setdefault(key, {})[program.name] = None
        if key not in self.plans:
            result = plan(
                shared, self.target, self.options, machine=machine_in_use(self.target), is_hot=HOT_THREADS.read()
            )
            self.plans[key] = result
            self.kernels[key] = emit_variants(result.variants)
            show_kernel(shared, result, self.kernels[key])
        back = {new: dims.symbol(old) for old, new in symbols.items()}
        variants = tuple(
            Variant(
                kernel.symbol,
                dims.substitute(chosen.blocks, back),
                dims.substitute(chosen.cost_ps, back),
                dims.substitute(chosen.scratch_bytes, back),
                tuple(dims.substitute(word, back) for word in kernel.words),
                dims.substitute(chosen.traffic_bytes, back),
                dims.substitute(chosen.task_ps, back),
            )
            for chosen, kernel in zip(self.plans[key].variants, self.kernels[key], strict=True)
        )
        return variants[0].key, variants, _launch_table(self.plans[key].table, back)

    def quads(self, k: int) -> Callable[[Any], Any] | None:
        """How an i8 matrix of `k` rows is packed where products with it are computed in integers."""
        return pack_quads if in_digits(self.target, k) else None

    def emitted(self) -> list[EmittedKernel]:
        """Every kernel once."""
        unique = {k.symbol: k for kernels in self.kernels.values() for k in kernels}
        return list(unique.values())

    def explain(self, compiled: Mapping[str, CompiledKernel]) -> Iterator[str]:
        """Whose prices chose; mapping, reason and realised facts of every kernel, and what was refused."""
        yield f"prices: {machine_in_use(self.target).origin}"
        for key, result in self.plans.items():
            for chosen, kernel in zip(result.variants, self.kernels[key], strict=True):
                yield f"{kernel.symbol} ({', '.join(self.names[key])}): {chosen.mapping}: {chosen.reason}"
                yield f"    realised: {replace(kernel.facts, code_bytes=compiled[kernel.symbol].code_bytes)}"
            yield from (f"    refused {r.mapping}: {r.reason}" for r in result.refusals)
