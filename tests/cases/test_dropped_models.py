"""A dropped model leaves nothing: no cycle that only a collection finds, no object, no byte of the C heap.

Counts in a fresh process. Host nodes that run the onnx package's reference operators are not among the models: its
evaluator is a cycle of its own.
"""

from __future__ import annotations

import sys

import pytest

from tests.cases.test_process import fresh

MODELS = """
import ctypes, gc, warnings

def model(nodes, inputs, outputs, weights=(), opset=18):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(*v) for v in inputs],
                              [helper.make_tensor_value_info(*v) for v in outputs],
                              [numpy_helper.from_array(w, n) for n, w in weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return made.SerializeToString()

def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)

F, I, B, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
ones = np.ones((8, 64), np.float32)

def pointwise(i):
    c = np.array(1 + i * 1e-3, np.float32)
    return model([node("Mul", "x c", "a"), node("Tanh", "a", "b"), node("Erf", "b", "y")],
                 [("x", F, ["n", 64])], [("y", F, ["n", 64])], [("c", c)]), {"x": ones}

def rows(i):
    c = np.array(1 + i * 1e-3, np.float32)
    return model([node("Softmax", "x", "a"), node("Mul", "a c", "b"), node("ReduceMean", "b", "y", keepdims=1)],
                 [("x", F, ["n", "k"])], [("y", F, None)], [("c", c)]), {"x": ones}

def chain(i):
    w = np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32)
    nodes = [node("MatMul", "x w", "a"), node("Add", "a b", "c"), node("Relu", "c", "d"), node("MatMul", "d w", "y")]
    return model(nodes, [("x", F, ["n", 64])], [("y", F, ["n", 64])], [("w", w), ("b", w[0])]), {"x": ones}

def lookup(i):
    table = np.random.default_rng(i).standard_normal((100, 32)).astype(np.float32)
    return model([node("Gather", "t ids", "y")], [("ids", I, ["n"])], [("y", F, ["n", 32])],
                 [("t", table)]), {"ids": np.arange(50)}

def strings(i):
    text = np.array(["a", str(i)], object)
    return model([node("Equal", "x t", "y")], [("x", S, [2])], [("y", B, [2])],
                 [("t", text)], opset=19), {"x": np.array(["b", "c"], object)}

def branch(i):
    def body(value):
        constant = helper.make_tensor("v", F, [], [value + i])
        return helper.make_graph([node("Constant", "", "k", value=constant), node("Add", "x k", "z")], "b", [],
                                 [helper.make_tensor_value_info("z", F, None)])
    return model([node("If", "which", "y", then_branch=body(1.0), else_branch=body(2.0))],
                 [("which", B, []), ("x", F, ["n"])], [("y", F, None)]), {"which": np.array(True), "x": ones[0]}

def wrong_feed(i):
    return pointwise(i)[0], {"x": np.ones((8, 63), np.float32)}

def outside(i):
    return lookup(i)[0], {"ids": np.array([100 + i])}

def unknown(i):
    return model([node("NoSuchOperator", "x", "y")], [("x", F, [i + 1])], [("y", F, None)]), {}

KINDS = {f.__name__: f for f in (pointwise, rows, chain, lookup, strings, branch, wrong_feed, outside, unknown)}

def once(kind, i, **options):
    data, feeds = KINDS[kind](i)
    try:
        loaded = grainline.load(data, **options)
        loaded.run(feeds)
    except grainline.GrainlineError:
        assert kind in ("wrong_feed", "outside", "unknown")

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

def objects():
    gc.collect()
    return sys.getallocatedblocks()

def heap_bytes():
    counted = ctypes.CDLL(None).mallinfo2
    counted.restype = Heap
    gc.collect()
    heap = counted()
    return heap.uordblks + heap.hblkhd
"""
OPTIONS = ({"cache": False}, {}, {"workers": 2, "executor": "multi-worker"})


@pytest.mark.parametrize("options", OPTIONS, ids=("compiled", "saved", "workers"))
def test_no_cycle_is_left(options: dict[str, object]) -> None:
    found = fresh(
        MODELS
        + f"""
left, options = {{}}, {options!r}
gc.disable()
for kind in KINDS:
    once(kind, 0, **options); once(kind, 1, **options); gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    once(kind, 1, **options); once(kind, 2, **options)
    gc.collect()
    gc.set_debug(0)
    if gc.garbage: left[kind] = sorted({{type(o).__name__ for o in gc.garbage}})
    gc.garbage.clear()
print(json.dumps(left))
"""
    )
    assert found == {}, f"only a collection of cycles frees these: {found}"


@pytest.mark.parametrize("options", OPTIONS[:2], ids=("compiled", "saved"))
def test_objects_do_not_pile_up(options: dict[str, object]) -> None:
    left = fresh(
        MODELS
        + f"""
options, rounds, left = {options!r}, 4, {{}}
def grown(kind, first):
    before = objects()
    for i in range(rounds): once(kind, first + i, **options)
    return objects() - before
for kind in KINDS:
    # A table of Python's that grows does so in one stretch; what models leave, they leave in each.
    left[kind] = min(grown(kind, 100 * k) for k in range(1, 5)) / rounds
print(json.dumps(left))
"""
    )
    for kind, count in left.items():
        assert count < 32, f"every {kind} model left {count:.1f} Python objects; found {left}"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the C library's account of its heap")
@pytest.mark.parametrize("kind", ("pointwise", "chain", "outside"))
def test_the_heap_stays_the_same(kind: str) -> None:
    left = fresh(
        MODELS
        + f"""
for _ in range(20): once({kind!r}, 1)
def grown():
    before = heap_bytes()
    for _ in range(50): once({kind!r}, 1)
    return heap_bytes() - before
print(json.dumps(min(grown() for _ in range(3)) / 50))
"""
    )
    assert left < 64, f"every model left {left:.0f} bytes of the C heap"
