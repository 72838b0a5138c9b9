"""What one machine takes: prices of realised work, of handing work to other threads, and of memory beyond the caches.

`picoseconds` prices the kinds of `plan.work`; the other fields are those of the native `MachineCosts`, in their order.
`grainline calibrate` measures all of them; without it the shipped numbers of the nearest processor are used, and said
to be. A choice among numeric signatures always uses the shipped ones, so that bits do not depend on a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from dataclasses import dataclass, field

# Per element unless said otherwise; contiguous per byte; packet, lane_fold and scalars per program.
PICOSECONDS: Table[str, int] = {
    "contiguous": 20,
    "broadcast": 15,
    "strided": 700,
    "scatter": 600,
    "cheap": 25,
    "exp": 320,
    "log": 350,
    "log1p": 500,
    "tanh": 290,
    "erf": 360,
    "sigmoid": 430,
    "softplus": 850,
    "sin": 600,
    "cos": 600,
    "pow": 1500,
    "div": 120,
    "mod": 3000,
    "fmod": 2500,
    "sqrt": 120,
    "rsqrt": 370,
    "reciprocal": 120,
    "scalar_cheap": 400,
    "scalar_dear": 5000,
    "lane_fold": 5000,
    "packet": 2000,
    "block": 5000,
    "program": 2000,
    "launch": 20000,
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Prices of one processor; `origin` says where they come from."""

    origin: str = "shipped: x86-64 server"
    picoseconds: Table[str, int] = field(default_factory=lambda: dict(PICOSECONDS))
    task_ps: float = 60e3
    hot_paid_ps: float = 100e3
    hot_delay_ps: float = 250e3
    parked_paid_ps: float = 8e6
    parked_delay_ps: float = 16e6
    home_delay_ps: float = 1e6
    private_bytes: float = 512 << 10
    shared_bytes: float = 16 << 20
    shared_byte_ps: float = 10
    memory_byte_ps: float = 60
    bus_byte_ps: float = 35
    slack: float = 0.3
    tie: float = 0.02

    @property
    def launch_costs(self) -> tuple[float, ...]:
        """The arguments of the native `MachineCosts`."""
        return (
            *(self.task_ps, self.hot_paid_ps, self.hot_delay_ps, self.parked_paid_ps, self.parked_delay_ps),
            *(self.home_delay_ps, self.private_bytes, self.shared_bytes, self.shared_byte_ps, self.memory_byte_ps),
            *(self.bus_byte_ps, self.slack, self.tie),
        )


SHIPPED = Machine()
