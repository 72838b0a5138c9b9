"""What one machine takes: prices of realised work, of handing work to other threads, and of memory beyond the caches.

`grainline calibrate` measures a machine and keeps the result in the user's configuration folder, one file per
processor model. Without it the shipped numbers of the nearest processor are used, labelled by where they come from:
those that were measured are such a file too, with the samples beside it (`evidence.shipping` makes both). A choice
among numeric signatures always uses `REFERENCE`, so that bits do not depend on a measurement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping as Table
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from grainline import _native
from grainline.base import knobs
from grainline.base.errors import OptionError
from grainline.plan.target import Target, processor_name

# Picoseconds, measured on Zen 4 with 64-byte vectors; but gathered, and what an element takes more that is found in the
# core's own cache (_private) or in that of all (_shared), is as on Emerald Rapids. Per element unless said otherwise;
# contiguous per byte; packet per pass of a program, lane_fold and scalars per program.
PICOSECONDS: Table[str, float] = {
    "contiguous": 2.8,
    "broadcast": 5,
    "strided": 330,
    "strided_private": 700,
    "strided_shared": 3000,
    "scatter": 250,
    "scatter_private": 1800,
    "scatter_shared": 4000,
    "gathered": 330,
    "gathered_private": 700,
    "gathered_shared": 3000,
    "cheap": 7.5,
    "exp": 162,
    "log": 345,
    "log1p": 446,
    "tanh": 172,
    "erf": 217,
    "sigmoid": 247,
    "softplus": 853,
    "sin": 530,
    "cos": 514,
    "pow": 1380,
    "div": 40,
    "mod": 4470,
    "fmod": 4380,
    "sqrt": 111,
    "rsqrt": 215,
    "reciprocal": 43,
    "scalar_cheap": 100,
    "scalar_dear": 500,
    "lane_fold": 1320,
    "packet": 250,
    "block": 760,
    "program": 250,
    "launch": 14000,
}


#: what only planning asks for; all other fields of a Machine are `MachineCosts`
OF_THE_PLANNER = frozenset({"origin", "picoseconds", "fma_ps", "byte_fma_ps", "condvar_paid_ps", "condvar_delay_ps"})


@dataclass(frozen=True, slots=True)
class Machine:
    """Prices of one processor; `origin` says where they come from.

    fma_ps, byte_fma_ps: a multiply-add in the register tile of a product, of f32 and of f32 by i8. condvar_paid_ps,
    condvar_delay_ps: what parked_paid_ps and parked_delay_ps are for a thread that never spins and has just gone to
    sleep on a condition variable. The other fields are `MachineCosts`.
    """

    origin: str
    picoseconds: Table[str, float] = field(default_factory=lambda: dict(PICOSECONDS))
    fma_ps: float = 25
    byte_fma_ps: float = 18
    condvar_paid_ps: float = 7e6
    condvar_delay_ps: float = 17e6
    task_ps: float = 39e3
    hot_paid_ps: float = 150e3
    hot_delay_ps: float = 300e3
    parked_paid_ps: float = 7e6
    parked_delay_ps: float = 17e6
    home_delay_ps: float = 1e6
    nearest_bytes: float = 32 << 10
    private_bytes: float = 1 << 20
    shared_bytes: float = 32 << 20
    private_byte_ps: float = 5
    shared_byte_ps: float = 6.5
    memory_byte_ps: float = 48
    bus_byte_ps: float = 29
    crowd: float = 0
    tie: float = 0.02

    def costs(self) -> _native.MachineCosts:
        """The native numbers that launches are chosen by."""
        costs = _native.MachineCosts()
        for each in fields(self):
            if each.name not in OF_THE_PLANNER:
                setattr(costs, each.name, getattr(self, each.name))
        return costs

    def without_hot_threads(self) -> Machine:
        """The machine of a pool whose threads never spin: whatever finds them asleep wakes them as its launches do."""
        return replace(self, parked_paid_ps=self.condvar_paid_ps, parked_delay_ps=self.condvar_delay_ps)

    def scaled(self, origin: str, factor: float) -> Machine:
        """The same machine with arithmetic that takes `factor` times as long."""
        slower = {kind: price * factor for kind, price in self.picoseconds.items()}
        return replace(self, origin=origin, picoseconds=slower)


REFERENCE = Machine("shipped: measured on AMD Zen 4, two virtual processors, by an earlier model; its samples are lost")
SHIPPED_FOLDER = Path(__file__).parent / "machines"
#: by LLVM's names of processors, the first pattern that matches: a file of SHIPPED_FOLDER, or what is derived
SHIPPED: tuple[tuple[str, str | Machine], ...] = (
    ("znver[45]", REFERENCE),
    ("sapphirerapids|emeraldrapids|graniterapids", "emeraldrapids"),
    (
        "icelake|skylake-avx512|cascadelake",
        REFERENCE.scaled("shipped: estimated from Zen 4 for x86-64 with AVX-512", 1.2),
    ),
    ("neoverse|apple-m|cortex-[ax]", REFERENCE.scaled("shipped: estimated from Zen 4 for aarch64 with NEON", 3.0)),
)
FALLBACK = REFERENCE.scaled("shipped: estimated from Zen 4 for x86-64 with AVX2", 2.0)


def shipped_machine(target: Target) -> Machine:
    """The numbers that come with the package for the nearest processor."""
    found = next((machine for pattern, machine in SHIPPED if re.match(pattern, target.cpu)), FALLBACK)
    return _measured_machine(found) if isinstance(found, str) else found


@lru_cache(maxsize=8)
def _measured_machine(name: str) -> Machine:
    path = SHIPPED_FOLDER / f"{name}.json"
    return parse_machine(path.read_text(encoding="utf-8"), str(path))


def machine_of(target: Target) -> Machine:
    """The calibrated machine, else the shipped one.

    OptionError names a calibration that cannot be used, and one that GRAINLINE_MACHINE_FILE names and is not there.
    """
    return _machine_of(target, knobs.MACHINE_FILE.read())


@lru_cache(maxsize=8)
def _machine_of(target: Target, named: Path | None) -> Machine:
    path = named or _usual_path(target)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if named is None:
            return shipped_machine(target)
        raise OptionError(
            f"{knobs.MACHINE_FILE.name} names no file",
            expected="a calibration",
            found=str(path),
            remedy=f"Unset {knobs.MACHINE_FILE.name}, or let `grainline calibrate` write the file.",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"calibration {path}: {error}") from error
    return parse_machine(text, str(path))


def machine_in_use(target: Target) -> Machine:
    """`machine_of(target)` with a pool as GRAINLINE_HOT_THREADS asks for."""
    machine = machine_of(target)
    return machine if knobs.HOT_THREADS.read() else machine.without_hot_threads()


def use_machine(target: Target) -> None:
    """Launches of models that are loaded from now on are chosen by the costs of this machine, and pool threads wait
    for them as GRAINLINE_HOT_THREADS says."""
    _native.keep_threads_hot(knobs.HOT_THREADS.read())
    _native.set_machine_costs(machine_in_use(target).costs())


def machine_path(target: Target) -> Path:
    """Where the calibration of this processor is kept: GRAINLINE_MACHINE_FILE, else one file per model."""
    return knobs.MACHINE_FILE.read() or _usual_path(target)


def _usual_path(target: Target) -> Path:
    import platformdirs

    slug = re.sub("[^a-z0-9]+", "-", f"{target.cpu} {processor_name()}".lower()).strip("-")
    return Path(platformdirs.user_config_dir("grainline")) / "machines" / f"{slug}.json"


def parse_machine(text: str, name: str) -> Machine:
    """Reads what `machine_text` wrote; OptionError names the field that is missing or no number >= 0."""
    try:
        values: dict[str, Any] = json.loads(text)["machine"]
        names = {each.name for each in fields(Machine)}
        if set(values) != names or set(values["picoseconds"]) != set(PICOSECONDS):
            raise ValueError(f"expected the fields {sorted(names)} and a price for {sorted(PICOSECONDS)}")
        numbers = {**values, **values["picoseconds"]}
        for key, value in numbers.items():
            is_number = isinstance(value, int | float) and value is not True and 0 <= value < float("inf")
            if key not in ("origin", "picoseconds") and not is_number:
                raise ValueError(f"{key}: expected a number >= 0, found {value!r}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OptionError(f"calibration {name}: {error}") from error
    return Machine(**values)


def machine_text(machine: Machine, raw: Table[str, Any] | None = None) -> str:
    """The file of a machine, with the samples that it was fitted to."""
    return json.dumps({"machine": asdict(machine), **({} if raw is None else {"raw": raw})}, indent=1) + "\n"
