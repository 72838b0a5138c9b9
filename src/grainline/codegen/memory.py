"""Loads and stores of registers, full or masked, contiguous or gathered. Booleans are bytes, bf16 are 16-bit words."""

from __future__ import annotations

from grainline.base.dtypes import BF16, BOOL, F32, I16, I32, U8, DType
from grainline.codegen.emit import FIRST_LEVEL, FunctionText, Reg, constant, i64, memory_type

LINE_BYTES = 64
# So far past what is written its lines are asked for: enough for the last level of cache to answer.
CLAIMED_BYTES = 1024


def load(
    f: FunctionText, pointer: str, dtype: DType, lanes: int = 0, mask: Reg | None = None, is_private: bool = False
) -> Reg:
    """`lanes` consecutive elements (0: one scalar); masked-off lanes touch no memory and read 0."""
    kind = memory_type(dtype, lanes)
    f.module.accesses["load " + _access_kind(lanes, mask, is_private)] += 1
    if mask is None:
        return _from_memory(f, f.raw(f"load {kind}, ptr {pointer}, align {dtype.size_bytes}"), dtype, lanes)
    mask = f.splat(mask, lanes)
    name = f"llvm.masked.load.{_mangled(dtype, lanes)}.p0"
    f.module.declare(f"{kind} @{name}(ptr, {mask.type}, {kind})")
    place = f"ptr align {dtype.size_bytes} {pointer}"
    return _from_memory(f, f.raw(f"call {kind} @{name}({place}, {mask.typed}, {kind} zeroinitializer)"), dtype, lanes)


def store_past_caches(f: FunctionText, pointer: str, value: Reg) -> None:
    """Consecutive elements to whole lines: `pointer` is aligned to one, and the lanes fill some."""
    kind, text = memory_type(value.dtype, value.lanes), _to_memory(f, value)
    f.module.accesses["store " + _access_kind(value.lanes, None)] += 1
    f.do(f"store {kind} {text}, ptr {pointer}, align {LINE_BYTES}, !nontemporal !{{i32 1}}")


def claim(f: FunctionText, pointer: str, size_bytes: int) -> None:
    """Asks for the lines CLAIMED_BYTES past the `size_bytes` at `pointer`, which are about to be written in order.

    A store to a line that a farther level of cache holds would wait for it, and hold up those after it.
    """
    for line in range(CLAIMED_BYTES, CLAIMED_BYTES + size_bytes, LINE_BYTES):
        f.prefetch(f.pointer(pointer, i64(line), 1), FIRST_LEVEL, is_written=True)


def store(f: FunctionText, pointer: str, value: Reg, mask: Reg | None = None, is_private: bool = False) -> None:
    dtype, lanes = value.dtype, value.lanes
    kind, text = memory_type(dtype, lanes), _to_memory(f, value)
    f.module.accesses["store " + _access_kind(lanes, mask, is_private)] += 1
    if mask is None:
        f.do(f"store {kind} {text}, ptr {pointer}, align {dtype.size_bytes}")
        return
    mask = f.splat(mask, lanes)
    name = f"llvm.masked.store.{_mangled(dtype, lanes)}.p0"
    f.module.declare(f"void @{name}({kind}, ptr, {mask.type})")
    f.do(f"call void @{name}({kind} {text}, ptr align {dtype.size_bytes} {pointer}, {mask.typed})")


def gather(f: FunctionText, base: str, offsets: Reg, dtype: DType, mask: Reg | None = None) -> Reg:
    """Elements at base + offsets[lane] (in elements)."""
    lanes, kind = offsets.lanes, memory_type(dtype, offsets.lanes)
    f.module.accesses["load indexed"] += 1
    pointers = _pointers(f, base, offsets, dtype)
    chosen = f.splat(mask, lanes) if mask is not None else constant(True, BOOL, lanes)
    name = f"llvm.masked.gather.{_mangled(dtype, lanes)}.v{lanes}p0"
    f.module.declare(f"{kind} @{name}(<{lanes} x ptr>, {chosen.type}, {kind})")
    place = f"<{lanes} x ptr> align {dtype.size_bytes} {pointers}"
    return _from_memory(f, f.raw(f"call {kind} @{name}({place}, {chosen.typed}, {kind} zeroinitializer)"), dtype, lanes)


def scatter(f: FunctionText, base: str, offsets: Reg, value: Reg, mask: Reg | None = None) -> None:
    lanes, dtype = offsets.lanes, value.dtype
    kind, text = memory_type(dtype, lanes), _to_memory(f, value)
    f.module.accesses["store indexed"] += 1
    pointers = _pointers(f, base, offsets, dtype)
    chosen = f.splat(mask, lanes) if mask is not None else constant(True, BOOL, lanes)
    name = f"llvm.masked.scatter.{_mangled(dtype, lanes)}.v{lanes}p0"
    f.module.declare(f"void @{name}({kind}, <{lanes} x ptr>, {chosen.type})")
    place = f"<{lanes} x ptr> align {dtype.size_bytes} {pointers}"
    f.do(f"call void @{name}({kind} {text}, {place}, {chosen.typed})")


def _access_kind(lanes: int, mask: Reg | None, is_private: bool = False) -> str:
    if is_private:
        return "private"
    if not lanes:
        return "scalar"
    return "contiguous" if mask is None else "masked"


def _pointers(f: FunctionText, base: str, offsets: Reg, dtype: DType) -> str:
    return f.raw(f"getelementptr [{dtype.size_bytes} x i8], ptr {base}, {offsets.typed}", "p")


def _mangled(dtype: DType, lanes: int) -> str:
    element = memory_type(dtype, 0)
    return f"v{lanes}{ {'float': 'f32', 'double': 'f64', 'half': 'f16'}.get(element, element) }"


def _from_memory(f: FunctionText, name: str, dtype: DType, lanes: int) -> Reg:
    if dtype == BOOL:
        raw = Reg(name, U8, lanes)
        return f.compare("icmp ne", raw, constant(0, U8, lanes))
    if dtype == BF16:
        wide = f.convert("zext", Reg(name, I16, lanes), I32)
        shifted = f.binary("shl", wide, constant(16, I32, lanes))
        return Reg(f.bitcast(shifted, F32).text, BF16, lanes)
    return Reg(name, dtype, lanes)


def _to_memory(f: FunctionText, value: Reg) -> str:
    if value.dtype == BOOL:
        return f.convert("zext", value, U8).text
    if value.dtype == BF16:
        bits = f.bitcast(Reg(value.text, F32, value.lanes), I32)
        high = f.binary("lshr", bits, constant(16, I32, value.lanes))
        return f.convert("trunc", high, I16).text
    return value.text
