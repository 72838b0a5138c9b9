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

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from grainline import saved
from grainline.base import dims
from grainline.base.knobs import Options
from grainline.codegen.cache import ObjectCache, open_cache
from grainline.codegen.compile import compile_kernels, entry_name
from grainline.codegen.kernel import EmittedKernel, emit
from grainline.compiled import CompiledModel
from grainline.execgraph.ir import Variant
from grainline.graph.ir import Graph
from grainline.graph.passes import run_passes
from grainline.importer.model import import_model
from grainline.importer.proto import open_model
from grainline.lower.lower import Backend, lower
from grainline.plan.panels import PANEL, pack_panels
from grainline.plan.planner import plan
from grainline.plan.target import Target, host_target
from grainline.plan.types import PlanResult
from grainline.runtime.executor import ModelExecutor
from grainline.tile.ir import TileProgram
from grainline.tile.text import canonical, to_text


def compile_model(source: Any, options: Options, spot: saved.Spot | None = None) -> CompiledModel:
    """Compiles the model at a path, or its bytes, for this machine; loads its weights; saves the result at `spot`.

    ModelError when the model is not valid, UnsupportedError when something in it cannot run.
    """
    opened = open_model(source)
    return compile_graph(import_model(opened), options, spot, opened.data)


def compile_graph(
    imported: Graph, options: Options, spot: saved.Spot | None = None, data: memoryview | None = None
) -> CompiledModel:
    """The same from a compute graph whose weights lie in `data`."""
    graph = run_passes(imported)
    store = open_cache(options.cache_dir) if options.cache else ObjectCache(None)
    kernels = KernelTable(host_target(store.folder))
    lowered = lower(graph, Backend(kernels.plan, pack_panels, PANEL))
    compiled = compile_kernels(kernels.emitted(), store)
    addresses = {symbol: kernel.address for symbol, kernel in compiled.items()}
    executor = ModelExecutor(lowered.graph, addresses, keep_alive=compiled, threads=options.threads or 0)
    explanation = "\n".join([*lowered.notes, "", *kernels.explain()])
    model = CompiledModel(imported.info, executor, explanation, data)
    if spot is not None:
        saved.save(spot, model, {k.symbol: entry_name(k) for k in kernels.emitted()}, data)
    return model


@dataclass
class KernelTable:
    """The kernels of one model: each distinct program is planned and emitted once."""

    target: Target
    plans: dict[str, PlanResult] = field(default_factory=dict)
    kernels: dict[str, tuple[EmittedKernel, ...]] = field(default_factory=dict)

    def plan(self, program: TileProgram) -> tuple[str, tuple[Variant, ...]]:
        """The key of a program and its variants, with all extents in the symbols of `program`."""
        shared, symbols = canonical(program)
        key = to_text(shared)
        if key not in self.plans:
            result = plan(shared, self.target)
            self.plans[key] = result
            self.kernels[key] = tuple(emit(chosen) for chosen in result.variants)
        back = {new: dims.symbol(old) for old, new in symbols.items()}
        variants = tuple(
            Variant(
                kernel.symbol,
                dims.substitute(chosen.blocks, back),
                dims.substitute(chosen.cost_ps, back),
                dims.substitute(chosen.scratch_bytes, back),
                tuple(dims.substitute(word, back) for word in kernel.words),
            )
            for chosen, kernel in zip(self.plans[key].variants, self.kernels[key], strict=True)
        )
        return variants[0].key, variants

    def emitted(self) -> list[EmittedKernel]:
        """Every kernel once."""
        unique = {k.symbol: k for kernels in self.kernels.values() for k in kernels}
        return list(unique.values())

    def explain(self) -> Iterator[str]:
        """Mapping and reason of every kernel, and what was refused."""
        for result, kernels in zip(self.plans.values(), self.kernels.values(), strict=True):
            for chosen, kernel in zip(result.variants, kernels, strict=True):
                yield f"{kernel.symbol}: {chosen.mapping}: {chosen.reason}"
            yield from (f"    refused {r.mapping}: {r.reason}" for r in result.refusals)
