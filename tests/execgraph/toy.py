"""Toy tile kernels over i64, each as machine code and as a Python callable, and random graphs made of them.

A block is `BLOCK` elements; the first word of every kernel is the number of elements n.
    mix(a, b, out):   out[i] = 3 a[i] + b[i]
    update(io, a):    io[i]  = 5 io[i] + a[i]
    through(a, out):  out[i] = a[i] + 1, by way of the scratch of the home
    fault():          returns its second word
    peek(a, b, out):  out[i] = the word i of its own arguments; machine code only
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np

from grainline.base.dims import ceil_div, symbol
from grainline.base.dtypes import I64
from grainline.execgraph.builder import GraphBuilder, Result
from grainline.execgraph.ir import ExecuteGraph, Variant, View

BLOCK = 16

_LOOP = """
define i32 @{name}(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
entry:
{loads}
  %first = mul i64 %begin, {block}
  %last = mul i64 %end, {block}
  %cut = icmp slt i64 %last, %n
  %stop = select i1 %cut, i64 %last, i64 %n
  %any = icmp slt i64 %first, %stop
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [%first, %entry], [%next, %loop]
{body}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %stop
  br i1 %more, label %loop, label %done
done:
  ret i32 0
}}
"""


def _argument(index: int, name: str, kind: str) -> str:
    return f"  %p{index} = getelementptr i64, ptr %args, i64 {index}\n  %{name} = load {kind}, ptr %p{index}"


def _ir(name: str, views: tuple[str, ...], body: str) -> str:
    loads = [_argument(i, view, "ptr") for i, view in enumerate(views)]
    loads.append(_argument(len(views), "n", "i64"))
    return _LOOP.format(name=name, loads="\n".join(loads), body=body, block=BLOCK)


_MIX = _ir(
    "mix",
    ("a", "b", "out"),
    """
  %pa = getelementptr i64, ptr %a, i64 %i
  %pb = getelementptr i64, ptr %b, i64 %i
  %po = getelementptr i64, ptr %out, i64 %i
  %va = load i64, ptr %pa
  %vb = load i64, ptr %pb
  %t = mul i64 %va, 3
  %r = add i64 %t, %vb
  store i64 %r, ptr %po""",
)
_UPDATE = _ir(
    "update",
    ("io", "a"),
    """
  %pio = getelementptr i64, ptr %io, i64 %i
  %pa = getelementptr i64, ptr %a, i64 %i
  %vio = load i64, ptr %pio
  %va = load i64, ptr %pa
  %t = mul i64 %vio, 5
  %r = add i64 %t, %va
  store i64 %r, ptr %pio""",
)
_THROUGH = _ir(
    "through",
    ("a", "out"),
    """
  %pa = getelementptr i64, ptr %a, i64 %i
  %po = getelementptr i64, ptr %out, i64 %i
  %va = load i64, ptr %pa
  store volatile i64 %va, ptr %scratch
  %back = load volatile i64, ptr %scratch
  %r = add i64 %back, 1
  store i64 %r, ptr %po""",
)
_PEEK = _ir(
    "peek",
    ("a", "b", "out"),
    """
  %pa = getelementptr i64, ptr %args, i64 %i
  %po = getelementptr i64, ptr %out, i64 %i
  %va = load i64, ptr %pa
  store i64 %va, ptr %po""",
)
_FAULT = f"""
define i32 @fault(ptr %args, i64 %begin, i64 %end, ptr %scratch) {{
{_argument(1, "code", "i64")}
  %r = trunc i64 %code to i32
  ret i32 %r
}}
"""


@lru_cache(maxsize=1)
def machine_code() -> tuple[dict[str, int], Any]:
    """Addresses by key, and what keeps the code alive."""
    import llvmlite.binding as llvm

    from grainline import _native

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1, reloc="pic", codemodel="small")
    image = _native.load_object(machine.emit_object(llvm.parse_assembly(_MIX + _UPDATE + _THROUGH + _PEEK + _FAULT)))
    return dict(image.symbols), image


def _i64(block: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    return block[: n * 8].view(np.int64)


def _mix(arguments: Any, begin: int, end: int, scratch: Any) -> None:
    a, b, out = (_i64(view, arguments[3]) for view in arguments[:3])
    part = slice(begin * BLOCK, end * BLOCK)
    out[part] = 3 * a[part] + b[part]


def _update(arguments: Any, begin: int, end: int, scratch: Any) -> None:
    io, a = (_i64(view, arguments[2]) for view in arguments[:2])
    part = slice(begin * BLOCK, end * BLOCK)
    io[part] = 5 * io[part] + a[part]


def _through(arguments: Any, begin: int, end: int, scratch: Any) -> None:
    assert len(scratch) >= 8
    a, out = (_i64(view, arguments[2]) for view in arguments[:2])
    part = slice(begin * BLOCK, end * BLOCK)
    out[part] = a[part] + 1


CALLABLES = {"mix": _mix, "update": _update, "through": _through}


def variant(key: str, n: Any, cost_ps: Any = None, scratch_bytes: int = 0) -> Variant:
    return Variant(key, ceil_div(n, BLOCK), n * 1000 if cost_ps is None else cost_ps, scratch_bytes)


def random_graph(seed: int, size: int = 12, cost_ps: int | None = None, host: bool = True) -> ExecuteGraph:
    """A random graph over vectors of N elements with two inputs, a weight and one to three outputs."""
    rng = random.Random(seed)
    n = symbol("N")
    builder = GraphBuilder(f"random {seed}")
    constant = np.arange(64, dtype=np.int64)
    readable = [builder.input("x", I64, (n,)), builder.input("y", I64, (n,))]
    weight = builder.weight("w", I64, (64,), lambda: constant)
    own: list[int] = []
    outputs = rng.randint(1, 3)
    for step in range(size + outputs):
        name = f"node{step}"
        kind = rng.choice(("mix", "mix", "update", "through", "extents", "copy", "host" if host else "mix"))
        if kind == "update" and own:
            target, other = rng.choice(own), rng.choice(readable)
            if target != other:
                views = [View(target, 0, "readwrite"), View(other)]
                builder.launch("update", [variant("update", n, cost_ps)], views, [n], name)
                continue
        if kind == "host" and step < size:
            call = rng.choice((lambda a, b: (a - b,), lambda a, b: (b,)))
            pair = [rng.choice(readable), rng.choice(readable)]
            readable += builder.host_call("Sub", call, pair, [Result(I64, (n,), name)], name)
            continue
        if step >= size:
            target = builder.model_output(f"out{step - size}", I64, (n,))
        else:
            target = builder.memory(I64, (n,), n * 8, name)
        a, b = rng.choice(readable), rng.choice(readable)
        if kind == "through":
            views = [View(a), View(target, 0, "write")]
            builder.launch("through", [variant("through", n, cost_ps, 8)], views, [n], name)
        elif kind == "copy":
            builder.copy(a, target, n * 8, compute_node=name)
        else:
            views = [View(a), View(b), View(target, 0, "write")]
            builder.launch("mix", [variant("mix", n, cost_ps)], views, [n], name)
        if kind == "extents":
            shape = builder.memory(I64, (2,), 16, name)
            builder.extents_tensor(shape, [n, n * n + 3], 0, name)
            views = [View(shape), View(weight, 16), View(shape, 0, "readwrite")]
            builder.launch("mix", [variant("mix", 2, cost_ps)], views, [2], name)
        readable.append(target)
        own.append(target)
    return builder.finish()


def feeds_of(n: int, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-1000, 1000, n) for name in ("x", "y")}
