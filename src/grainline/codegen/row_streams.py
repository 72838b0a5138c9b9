"""How rows travel between memory and the core in a packet-local kernel. The values are the same with and without.

While the passes of a program run that read near memory (all but the first), the loads of the next program are fetched.
Where the results of a launch are too large to stay in any cache (STREAMED_BYTES), the last pass writes past the caches:
a plain store would first read every line that it overwrites. Such stores want whole aligned lines, so that pass begins
with masked packets up to the first line of the row. A pass that writes to the caches asks for its lines shortly before.
"""

from __future__ import annotations

from grainline.base.dims import product
from grainline.base.dtypes import BOOL, I64
from grainline.codegen import memory
from grainline.codegen.emit import SECOND_LEVEL, FunctionText, Reg, constant, i64
from grainline.codegen.evaluate import Evaluator
from grainline.codegen.memory import LINE_BYTES
from grainline.plan.row_schedule import RowPass, RowSchedule
from grainline.tile.ir import Axis, Operation

# Results of so many bytes, with operands as large beside them, do not stay in the last level of cache.
STREAMED_BYTES = 12 << 20


class RowStreams:
    """What `RowBody` asks about the memory of one kernel; lives as long as the emission."""

    def __init__(self, evaluator: Evaluator, schedule: RowSchedule, lanes: int, roots: tuple[Axis, ...]) -> None:
        """`roots` in the order of the programs: the next one has another coordinate of the last."""
        self.ev = evaluator
        self.f: FunctionText = evaluator.f
        self.axis = schedule.axis
        self.lanes = lanes
        self.root = roots[-1] if roots else None
        self.passes = schedule.passes
        self.last = schedule.passes[-1]
        self.kept_rows = [spill.row for spill in schedule.spills if spill.row is not None]
        self.loads = [o for o in evaluator.program.body if o.op == "load" and self._is_dense(o) and self._moves(o)]
        self.store = self._streamed_store()
        self.is_large = self._is_large()
        self.is_small = self._negated(self.is_large)
        self.steps = {id(load): self._step(load) for load in self.loads}

    def locate(self) -> None:
        """Computes the addresses of this program's rows; call before its passes."""
        for operation in self.loads:
            self.ev.address(operation)

    def streams(self, row_pass: RowPass) -> bool:
        """Whether the pass has a second form that writes past the caches."""
        return row_pass is self.last and self.is_large.text != "false"

    def elements_before_line(self, count: Reg) -> Reg:
        """Elements from the start of the stored row to its first whole line, at most `count`."""
        f, store = self.f, self.store
        assert store is not None and store.view is not None
        size = store.view.dtype.size_bytes
        address = Reg(f.raw(f"ptrtoint ptr {self.ev.address(store)} to i64"), I64)
        gap = f.binary("and", f.sub(i64(0), address), i64(LINE_BYTES - 1))
        return f.minimum(f.binary("lshr", gap, i64(size.bit_length() - 1)), count)

    def fetch_following(self, row_pass: RowPass) -> None:
        """Fetches a pass's share of what the next program loads at the place of the current wide packet."""
        sharing = max(len(self.passes) - 1, 1)
        share = self.passes.index(row_pass) - (len(self.passes) - sharing)
        if share < 0:
            return
        for operation in self.loads:
            assert operation.view is not None
            size = operation.view.dtype.size_bytes
            place = self.f.pointer(self.ev.address(operation), self.steps[id(operation)], size)
            for line in range(share * LINE_BYTES, self.lanes * size, sharing * LINE_BYTES):
                self.f.prefetch(self.f.pointer(place, i64(line), 1), SECOND_LEVEL)

    def claim_results(self, row_pass: RowPass) -> None:
        """Asks for the lines that this pass writes soon."""
        first = [spill.row for spill in row_pass.spills if spill.row is not None]
        for store in (*first, *(o for o in row_pass.stores if not self._is_kept(o))):
            assert store.view is not None
            if self._is_dense(store):
                memory.claim(self.f, self.ev.address(store), self.lanes * store.view.dtype.size_bytes)

    def settle(self) -> None:
        """Ends the kernel: stores past the caches become visible before whatever says that the launch is done."""

        def fence() -> list[Reg]:
            self.f.do("fence seq_cst")
            return []

        self.f.when(self.is_large, [], fence)

    def _step(self, load: Operation) -> Reg:
        """Elements from a program's row to that of the next."""
        assert self.root is not None
        return self.ev.arguments.extent(self.ev.linear(load).coefficient(self.root))

    def _streamed_store(self) -> Operation | None:
        """The one store of the last pass, unless something about it wants the caches."""
        if self.last.reductions or len(self.last.stores) != 1:
            return None
        store = self.last.stores[0]
        assert store.view is not None
        fills_lines = self.lanes * store.view.dtype.size_bytes % LINE_BYTES == 0
        is_plain = self._is_dense(store) and store.attributes["bounds"] == "assume"
        return store if is_plain and fills_lines and not self._is_kept(store) else None

    def _is_large(self) -> Reg:
        """Whether the launch's results fill STREAMED_BYTES, in memory where an element never crosses a line."""
        if self.store is None or self.store.view is None:
            return Reg("false", BOOL)
        f, size = self.f, self.store.view.dtype.size_bytes
        extents = (*(root.extent for root in self.ev.program.roots), self.axis.extent)
        total = product(extents) * size
        if isinstance(total, int) and total < STREAMED_BYTES:
            return Reg("false", BOOL)
        address = f.raw(f"ptrtoint ptr {self.ev.arguments.pointer(self.store.view)} to i64")
        is_aligned = f.compare("icmp eq", f.binary("and", Reg(address, I64), i64(size - 1)), i64(0))
        is_much = f.compare("icmp sge", self.ev.arguments.extent(total), i64(STREAMED_BYTES))
        return f.binary("and", is_aligned, is_much)

    def _is_kept(self, store: Operation) -> bool:
        """Whether passes before the store keep a value in its row."""
        return any(row is store for row in self.kept_rows)

    def _negated(self, condition: Reg) -> Reg:
        if condition.text == "false":
            return Reg("true", BOOL)
        return self.f.binary("xor", condition, constant(True, BOOL))

    def _is_dense(self, operation: Operation) -> bool:
        form = self.ev.linear(operation)
        return form.coefficient(self.axis) == 1 and not form.dynamic

    def _moves(self, operation: Operation) -> bool:
        """Whether the row of the next program is another one."""
        return self.root is not None and self.ev.linear(operation).coefficient(self.root) != 0
