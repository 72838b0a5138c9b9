"""A plan becomes the LLVM text of one tile kernel: `i32 k(ptr args, i64 begin, i64 end, ptr scratch)`.

`args` points to 64-bit words: one pointer per view in the program's order, then the values of `words`. [begin, end) are
blocks of the plan. The result is 0 or a fault code: 1 index out of bounds, 2 integer division by zero.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grainline.base.dims import Expr, ceil_div, product
from grainline.base.dtypes import BOOL, I64
from grainline.codegen.emit import FunctionText, MathForm, ModuleText, Reg, constant, i64
from grainline.codegen.evaluate import Evaluator
from grainline.codegen.programs import for_each, for_each_led
from grainline.codegen.row_streams import RowStreams
from grainline.codegen.rows import RowBody
from grainline.codegen.whole import WholeBody, block_bounds, packets
from grainline.codegen.words import Arguments
from grainline.plan.facts import RealisedFacts
from grainline.plan.row_schedule import RowSchedule
from grainline.plan.row_workspace import row_workspace
from grainline.plan.target import Target
from grainline.plan.types import LOCAL, MMA, WHOLE, Plan
from grainline.plan.whole_schedule import WholeSchedule
from grainline.plan.whole_workspace import whole_workspace

EMITTER_VERSION = 4
PARAMETERS = [("ptr noalias nocapture readonly", "args"), ("i64", "begin"), ("i64", "end"), ("ptr", "scratch")]
PLACEHOLDER = "grainline_kernel"


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """Text of one kernel. `symbol` is a hash of the text, so equal kernels have equal symbols."""

    symbol: str
    text: str
    words: tuple[Expr, ...]
    target: Target
    facts: RealisedFacts
    emitter_version: int = EMITTER_VERSION


def emit(plan: Plan) -> EmittedKernel:
    """The kernel of a plan. Equal programs and plans give equal text."""
    return emit_variants((plan,))[0]


def emit_variants(plans: Sequence[Plan]) -> tuple[EmittedKernel, ...]:
    """The kernels of variants of one program. Those of products share a text, which is written once."""
    if plans[0].mapping.kind == MMA:
        from grainline.codegen.mma_chain import emit_products

        return emit_products(plans)
    return tuple(_emit(plan) for plan in plans)


def _emit(plan: Plan) -> EmittedKernel:
    module = ModuleText(math_form(plan))
    f = module.function(PLACEHOLDER, "i32", PARAMETERS, "nounwind")
    arguments = Arguments(f, plan.program.views)
    evaluator = Evaluator(f, plan.program, arguments)
    if plan.mapping.kind == LOCAL:
        _emit_local(plan, f, evaluator)
    else:
        assert plan.mapping.kind == WHOLE
        _emit_whole(plan, f, evaluator)
    evaluator.reduce_here = None  # the mapping's, which holds the evaluator: a cycle would keep the kernel's text
    f.do("ret i32 0")
    return finished(module, arguments.words, plan)


def math_form(plan: Plan) -> MathForm:
    """The vector functions that suit a plan's target, in the tier that it asks for."""
    return MathForm(plan.target.has_avx512, plan.math == "accurate")


def finished(module: ModuleText, words: tuple[Expr, ...], plan: Plan) -> EmittedKernel:
    """Names the kernel by its text and records what was realised."""
    text, mapping = module.text, plan.mapping
    symbol = "grainline_" + hashlib.sha256(text.encode()).hexdigest()[:20]
    facts = RealisedFacts(
        name=plan.program.name,
        mapping=str(mapping),
        packet_width=mapping.width,
        packets_in_flight=mapping.unroll,
        direct_control_flow=True,  # every branch of the emitter is on a scalar
        full_packet_body=_has_full_packets(plan),
        workspace_bytes=plan.scratch_bytes,
        accesses=dict(module.accesses),
        math_calls=dict(module.math_calls),
    )
    return EmittedKernel(symbol, text.replace(PLACEHOLDER, symbol), words, plan.target, facts)


def _has_full_packets(plan: Plan) -> bool:
    """Complete packets run a body without a mask; an axis known to be shorter than a packet has none."""
    axis = plan.mapping.lane_axis
    return axis is None or not isinstance(axis.extent, int) or axis.extent >= plan.mapping.width


def _emit_local(plan: Plan, f: FunctionText, ev: Evaluator) -> None:
    """Rows that are kept, or streamed where the workspace has no room; the launch's extent decides between the two."""
    axis = plan.mapping.lane_axis
    assert axis is not None
    workspace = row_workspace(plan.program, axis, plan.switches)
    kept, streamed = workspace.kept, workspace.streamed
    if kept is None or streamed is None:
        _emit_rows(plan, f, ev, kept or streamed)
        return
    fits = f.compare("icmp sle", ev.arguments.extent(axis.extent), i64(workspace.kept_up_to))
    f.when(fits, [], lambda: _emit_rows(plan, f, ev, kept))
    f.when(f.binary("xor", fits, constant(True, BOOL)), [], lambda: _emit_rows(plan, f, ev, streamed))


def _emit_rows(plan: Plan, f: FunctionText, ev: Evaluator, schedule: RowSchedule | None) -> list[Reg]:
    assert schedule is not None
    mapping = plan.mapping
    ev.enter()
    roots = mapping.order or plan.program.roots
    is_led = schedule.has_lead(plan.switches)
    streams = RowStreams(ev, schedule, mapping.lanes, roots)
    body = RowBody(ev, schedule, mapping.width, mapping.unroll, "%scratch", streams)
    body.prepare()
    extents = [ev.arguments.extent(axis.extent) for axis in roots]
    count = ev.arguments.extent(product(axis.extent for axis in roots))
    first = f.mul(Reg("%begin", I64), plan.block)
    last = f.minimum(f.mul(Reg("%end", I64), plan.block), count)

    def lead(digits: list[Reg]) -> list[Reg]:
        ev.enter(dict(zip(roots, digits, strict=True)))
        results = body.lead()
        ev.leave()
        return results

    def one(digits: list[Reg], led: list[Reg] | None = None, follow: Callable[[], None] | None = None) -> None:
        scope = ev.enter(dict(zip(roots, digits, strict=True)))

        def outside() -> None:
            assert follow is not None
            ev.leave()
            follow()
            ev.scopes.append(scope)

        body.emit(led, outside if follow is not None else None)
        ev.leave()

    if is_led:
        for_each_led(f, first, last, extents, lead, one)
    else:
        for_each(f, first, last, extents, one)
    streams.settle()
    ev.leave()
    return []


def _emit_whole(plan: Plan, f: FunctionText, ev: Evaluator) -> None:
    """Packets of W lanes, or of one where the workspace has no room for more; the launch decides between the two."""
    workspace = whole_workspace(plan.program, plan.mapping.width, plan.switches.may_alias)
    if len(workspace.widths) == 1:
        _emit_lanes(plan, f, ev, workspace.schedule, workspace.widths[0])
        return
    fits = f.compare("icmp sle", ev.arguments.extent(workspace.wide_bytes), i64(workspace.budget_bytes))
    wide, narrow = workspace.widths
    f.when(fits, [], lambda: _emit_lanes(plan, f, ev, workspace.schedule, wide))
    is_narrow = f.binary("xor", fits, constant(True, BOOL))
    f.when(is_narrow, [], lambda: _emit_lanes(plan, f, ev, workspace.schedule, narrow))


def _emit_lanes(plan: Plan, f: FunctionText, ev: Evaluator, schedule: WholeSchedule, width: int) -> list[Reg]:
    lane_axis = plan.mapping.lane_axis
    body = WholeBody(ev, schedule, "%scratch")
    first, last = Reg("%begin", I64), Reg("%end", I64)
    if lane_axis is None:
        for_each(f, first, last, [], lambda _digits: body.packet())
        return []
    outer = [axis for axis in plan.mapping.order or plan.program.roots if axis is not lane_axis]
    extents = [ev.arguments.extent(axis.extent) for axis in outer]
    extents.append(ev.arguments.extent(ceil_div(lane_axis.extent, plan.block)))
    extent = ev.arguments.extent(lane_axis.extent)

    def one(digits: list[Reg]) -> None:
        ev.enter(dict(zip(outer, digits[:-1], strict=True)))
        ev.lane_axis = lane_axis
        low, high = _bounds(f, plan, digits[-1], extent)
        ev.hoist(body.effects(), lane_axis)
        packets(ev, body, low, high, width, plan.mapping.unroll, lane_axis)
        ev.leave()

    ev.enter()
    for_each(f, first, last, extents, one)
    ev.leave()
    return []


def _bounds(f: FunctionText, plan: Plan, number: Reg, extent: Reg) -> tuple[Reg, Reg]:
    """The lane range of an inner block; a static extent within one block is constant."""
    if not extent.text.startswith("%") and int(extent.text) <= plan.block:
        return i64(0), extent
    return block_bounds(f, number, plan.block, extent)
