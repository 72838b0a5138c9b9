"""Laws of the object loader: it loads what our code generator emits, and refuses the rest with a reason."""

from __future__ import annotations

import contextlib
import ctypes

import pytest

_native = pytest.importorskip("grainline._native", reason="the native core is not built")


def object_of(ir: str) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, reloc="pic", codemodel="small")
    return machine.emit_object(llvm.parse_assembly(ir))


CONSTANTS = """
@table = private constant [4 x double] [double 0x3FF0000000000000, double 0x4000000000000000,
                                        double 0x4008000000000000, double 0x4010000000000000]
define internal double @inner(i64 %i) noinline {
  %p = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %v = load double, ptr %p
  %r = fadd double %v, 0x3FB999999999999A
  ret double %r
}
define double @entry(i64 %i) {
  %v = call double @inner(i64 %i)
  ret double %v
}
"""


def test_constants_and_calls_inside_the_object_work() -> None:
    image = _native.load_object(object_of(CONSTANTS))
    assert list(image.symbols) == ["entry"]
    entry = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(image.address("entry"))
    assert [entry(i) for i in range(4)] == [1.1, 2.1, 3.1, 4.1]
    with pytest.raises(KeyError):
        image.address("inner")


def test_known_library_functions_are_reached() -> None:
    image = _native.load_object(
        object_of("declare float @fmodf(float, float)\ndefine float @f(float %a) {\n"
                  "%r = call float @fmodf(float %a, float 3.0)\nret float %r\n}")
    )  # fmt: skip
    assert ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(image.address("f"))(7.5) == 1.5


@pytest.mark.parametrize(
    ("ir", "reason"),
    [
        ("declare i32 @system(ptr)\ndefine i32 @f() {\n%r = call i32 @system(ptr null)\nret i32 %r\n}", "'system'"),
        ("@x = global i64 3\ndefine i64 @f() {\n%r = load i64, ptr @x\nret i64 %r\n}", "writable data"),
    ],
)
def test_what_is_not_ours_is_refused(ir: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        _native.load_object(object_of(ir))


def test_damaged_objects_are_refused() -> None:
    data = object_of(CONSTANTS)
    for broken in (b"", b"\x7fELF", data[:100], data[: len(data) // 2], b"MZ" + data[2:]):
        with pytest.raises(ValueError, match="cannot be loaded"):
            _native.load_object(broken)


def test_objects_with_any_changed_byte_load_or_are_refused() -> None:
    import random

    data, rng = object_of(CONSTANTS), random.Random(0)
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(ValueError, MemoryError):
            _native.load_object(bytes(broken))


def test_code_is_unmapped_with_the_image() -> None:
    def mappings() -> int:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return sum(1 for _ in maps)

    data = object_of(CONSTANTS)
    for _ in range(10):
        _native.load_object(data)
    before = mappings()
    for _ in range(500):
        _native.load_object(data)
    assert mappings() <= before + 4


def test_a_dispatch_runs_every_block_and_reports_its_time() -> None:
    image = _native.load_object(
        object_of("define i32 @count(ptr %args, i64 %begin, i64 %end, ptr %scratch) {\n"
                  "%p = load ptr, ptr %args\n%n = sub i64 %end, %begin\n"
                  "%old = atomicrmw add ptr %p, i64 %n seq_cst\nret i32 0\n}")
    )  # fmt: skip
    cell = ctypes.c_int64(0)
    args = [ctypes.addressof(cell)]
    elapsed = _native.dispatch(image.address("count"), args, 1000, grain=10, homes=2, repeat=7)
    assert cell.value == 7000 and len(elapsed) == 7 and min(elapsed) > 0
