"""The measuring suites as data: cases, variants, orders, and which ratios a report states.

A visit is one case under one variant in a process of its own. In every round the variants of a case take their turns in
a prescribed order. Every suite has a control: a variant with the settings of the baseline under another name, so that
the spread between two measurements of one thing stands beside every ratio. The published visits (40, 408 and 144) are
those of the variants that are no control.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from grainline.base.errors import OptionError

WHOLE_LAUNCH = 2**32 - 1
CONTROL = "again"
PACKET = -1  # `local_lanes` of a variant that wants the packet width of whatever machine it runs on


@dataclass(frozen=True)
class Settings:
    """What a variant fixes: the planner's options of the same names, and two coefficients of the uncalibrated prior."""

    local_lanes: int = 1
    block_size: int = 0
    blocks_per_task: int = 0
    search_task_grain: bool = False
    worker_activation: float = 0.0
    task_dispatch: float = 0.0


@dataclass(frozen=True)
class Variant:
    name: str
    settings: Settings

    def again(self) -> Variant:
        return replace(self, name=CONTROL)


@dataclass(frozen=True)
class Case:
    operator: str
    dims: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.operator}-{'x'.join(map(str, self.dims))}"


@dataclass(frozen=True)
class Visit:
    """One measurement to make: `order` is the whole round's, `variant` the one whose turn it is."""

    suite: str
    case: Case
    round: int
    order: tuple[str, ...]
    variant: Variant
    module: str

    @property
    def name(self) -> str:
        return f"{self.case.name}.round{self.round}.{self.variant.name}"

    def description(self) -> dict[str, Any]:
        """The part of a visit's record that the suite decides."""
        return {
            "suite": self.suite,
            "operator": self.case.operator,
            "dims": list(self.case.dims),
            "round": self.round,
            "order": list(self.order),
            "variant": self.variant.name,
            "settings": asdict(self.variant.settings),
        }


@dataclass(frozen=True)
class Draw:
    """Held-out shapes, drawn from `seed` after the policy of commit `policy` was frozen, measured once."""

    seed: int
    policy: str


@dataclass(frozen=True)
class Suite:
    """`baseline` is what the control repeats; `ratios` are the (candidate, baseline) pairs of the tables.

    `module` runs a visit. A contest times all candidates of a case in one process and has its control there. `draw`
    says where cases that nobody chose come from.
    """

    name: str
    cases: tuple[Case, ...]
    variants: tuple[Variant, ...]
    rounds: int
    baseline: str
    ratios: tuple[tuple[str, str], ...]
    keeps_code: bool = False
    module: str = "grainline.evidence.visit"
    draw: Draw | None = None

    @property
    def is_contest(self) -> bool:
        return not self.baseline

    def variants_of(self, case: Case) -> tuple[Variant, ...]:
        """The variants of a case, the control last."""
        if self.is_contest:
            return self.variants
        control = next(v for v in self.variants if v.name == self.baseline).again()
        return (*(v for v in self.variants if _applies(v, case)), control)

    def visits(self) -> Iterator[Visit]:
        """Every visit in the order of measuring."""
        for case in self.cases:
            variants = {variant.name: variant for variant in self.variants_of(case)}
            for number, order in enumerate(orders(tuple(variants))[: self.rounds]):
                for name in order:
                    yield Visit(self.name, case, number, order, variants[name], self.module)

    def published(self) -> int:
        """Visits without the control's."""
        return sum(visit.variant.name != CONTROL for visit in self.visits())


def orders(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Natural, reversed, rotated left by two, and the reverse of that."""
    rotated = names[2:] + names[:2]
    return names, names[::-1], rotated, rotated[::-1]


def _applies(variant: Variant, case: Case) -> bool:
    """Attention has no packet-local realisation, so that nothing is measured for it under that name."""
    return not (case.operator == "attention" and variant.settings.local_lanes == PACKET)


# The joint settings are those of an uncalibrated prior, fixed before anything was measured; they are no nanoseconds.
WHOLE = Variant("whole", Settings(local_lanes=1))
LOCAL = Variant("local", Settings(local_lanes=PACKET))
JOINT_LEGACY = Variant("joint_legacy", Settings(local_lanes=0))
JOINT_TASKS = Variant(
    "joint_tasks", Settings(local_lanes=0, search_task_grain=True, worker_activation=1e6, task_dispatch=128.0)
)
JOINT = (WHOLE, LOCAL, JOINT_LEGACY, JOINT_TASKS)
JOINT_RATIOS = (("joint_tasks", "joint_legacy"), ("local", "whole"))

GRAINS = tuple(
    Variant(name, Settings(local_lanes=PACKET, block_size=32, blocks_per_task=grain))
    for name, grain in (("grain_0", 0), ("grain_1", 1), ("grain_3", 3), ("grain_whole", WHOLE_LAUNCH))
)
GRAIN_RATIOS = (("grain_whole", "grain_0"), ("grain_3", "grain_0"), ("grain_1", "grain_0"))

ROW_NAMES = ("rms_norm", "layer_norm", "masked_softmax", "swiglu", "gelu_residual", "rope")


def _grid(*shapes: tuple[int, int]) -> tuple[Case, ...]:
    return tuple(Case(name, shape) for name in ROW_NAMES for shape in shapes)


PILOT = Suite(
    "pilot",
    (
        *(Case("rms_norm", shape) for shape in ((17, 65), (64, 256), (1024, 4096))),
        Case("gelu_residual", (64, 256)),
        Case("swiglu", (64, 256)),
    ),
    JOINT,
    rounds=2,
    baseline="joint_legacy",
    ratios=JOINT_RATIOS,
)
VALIDATION = Suite(
    "validation",
    (
        *_grid((3, 1024), (129, 768), (257, 1538), (4096, 1024)),
        Case("attention", (1, 4, 2, 16, 32, 16, 16)),
        Case("attention", (1, 4, 1, 64, 128, 32, 32)),
    ),
    JOINT,
    rounds=4,
    baseline="joint_legacy",
    ratios=JOINT_RATIOS,
)
FIXED_GRAIN = Suite(
    "fixed-grain",
    _grid((17, 66), (129, 768), (1024, 4096)),
    GRAINS,
    rounds=2,
    baseline="grain_0",
    ratios=GRAIN_RATIOS,
    keeps_code=True,
)

# Every draw there was, the present one last: a record is audited against the draw that it names.
DRAWS = (
    Draw(20261130, "6948a2e"),
    Draw(20261201, "586b48a"),
    Draw(20261204, "6563056"),
    Draw(20261205, "602d47a"),
    Draw(20261206, "ff1de45"),
    Draw(20261207, "caa92d9"),
)
# Seeds of records, by the hash of their source, that were made before records named their draw.
UNNAMED_DRAWS: Mapping[str, int] = {
    "b34c702e0a493b86dce77f8837c8751ef2deb78110ad0e1bcf992b97dce58d8a": 20261130,
    "f5e491a2e9fba927baed78d9b71f25f0e2123a7ba5db2d30c1ca9d0f146a976a": 20261204,
}
SHAPES_PER_OPERATOR = 10
FEWEST_ELEMENTS, MOST_ELEMENTS = 1 << 9, 1 << 21


def held_out_shapes(seed: int, count: int) -> tuple[tuple[int, int], ...]:
    """Row shapes spread evenly over the logarithms of extents; even rows, so that every operator takes them."""
    random = Random(seed)
    shapes: list[tuple[int, int]] = []
    while len(shapes) < count:
        rows, half = round(2 ** random.uniform(0, 12)), round(2 ** random.uniform(3, 12))
        shape = (rows, 2 * half)
        if FEWEST_ELEMENTS <= rows * 2 * half <= MOST_ELEMENTS and shape not in shapes:
            shapes.append(shape)
    return tuple(shapes)


def held_out(draw: Draw) -> Suite:
    """Every operator on shapes of its own, and the one whose best grain no static balance explains."""
    shapes = iter(held_out_shapes(draw.seed, SHAPES_PER_OPERATOR * len(ROW_NAMES)))
    cases = tuple(Case(name, next(shapes)) for name in ROW_NAMES for _ in range(SHAPES_PER_OPERATOR))
    return Suite(
        "held-out",
        (*cases, Case("layer_norm", (4096, 1024))),
        (Variant("contest", Settings(local_lanes=0, search_task_grain=True)),),
        rounds=1,
        baseline="",
        ratios=(),
        module="grainline.evidence.contest",
        draw=draw,
    )


HELD_OUT = held_out(DRAWS[-1])
# One shape at which caller and pool are each best for some of the operators, and three more.
CONTRADICTION = Suite(
    "contradiction",
    tuple(
        Case(name, (rows, n + n % 2 if name == "rope" else n))
        for rows, n in ((129, 768), (17, 65), (257, 1538), (4096, 1024))
        for name in ROW_NAMES
    ),
    HELD_OUT.variants,
    rounds=1,
    baseline="",
    ratios=(),
    module=HELD_OUT.module,
)
SUITES: Mapping[str, Suite] = {suite.name: suite for suite in (PILOT, VALIDATION, FIXED_GRAIN, HELD_OUT, CONTRADICTION)}


def find(name: str) -> Suite:
    """The suite of that name; `OptionError` lists the names otherwise."""
    if name not in SUITES:
        raise OptionError("there is no such suite", expected=" or ".join(SUITES), found=repr(name))
    return SUITES[name]


def suite_of(report: Mapping[str, Any]) -> Suite:
    """The suite of a report as its policy had it; `OptionError` when it names a draw that never was, or none."""
    suite = find(report["suite"])
    if suite.draw is None:
        return suite
    unnamed = UNNAMED_DRAWS.get(report["source"]["source_sha256"])
    named = report.get("draw") or next((asdict(draw) for draw in DRAWS if draw.seed == unnamed), None)
    draw = next((draw for draw in DRAWS if asdict(draw) == named), None)
    if draw is None:
        raise OptionError(
            "the report's shapes are of no known draw", expected=" or ".join(map(str, DRAWS)), found=str(named)
        )
    return held_out(draw)
