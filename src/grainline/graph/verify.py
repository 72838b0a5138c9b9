"""Validity of compute graphs, as a list of rules. `verify` raises `GraphError` for the first broken rule.

A rule takes what it looks at and gives a sentence that says what is wrong, or None.
"""

from __future__ import annotations

from collections.abc import Callable

from grainline.base.dims import Expr, product, symbols
from grainline.base.dtypes import BOOL, BY_NAME, I32, I64
from grainline.graph.ir import Graph, Node, Shape, Value
from grainline.graph.ops import ALL, POINTWISE

COMPARISONS = frozenset("eq lt le gt ge and or xor not isnan isinf".split())
REDUCTIONS = frozenset({"sum", "prod", "max", "min"})
HOST_ATTRIBUTES = frozenset("op_type domain opset proto subgraphs captures formals reason".split())


class GraphError(Exception):
    """A graph breaks a rule. The text names the graph, the node and the rule."""


def verify(graph: Graph) -> None:
    """Raises `GraphError` unless every rule of `GRAPH_RULES` and `NODE_RULES` holds."""
    for rule in GRAPH_RULES:
        fault = rule(graph)
        if fault:
            raise GraphError(f"graph {graph.name!r}: {fault}")
    for position, node in enumerate(graph.nodes):
        for node_rule in NODE_RULES:
            fault = node_rule(node)
            if fault:
                shown = ", ".join(value.name for value in node.outputs)
                raise GraphError(f"graph {graph.name!r}, node {position} ({shown} = {node.op}): {fault}")


def names_are_unique(graph: Graph) -> str | None:
    seen: set[str] = set()
    made = [value for node in graph.nodes for value in node.outputs]
    for name in (*(v.name for v in graph.inputs), *graph.constants, *(v.name for v in made if v.name)):
        if name in seen:
            return f"the name {name!r} is given twice"
        seen.add(name)
    return None


def values_are_made_before_use(graph: Graph) -> str | None:
    known = {"", *(value.name for value in graph.inputs), *graph.constants}
    for node in graph.nodes:
        for value in node.inputs:
            if value.name not in known:
                return f"{node.op} reads {value.name!r}, which nothing has made before"
        known.update(value.name for value in node.outputs)
    for name, value in graph.outputs:
        if value.name not in known:
            return f"the output {name!r} shows {value.name!r}, which nothing makes"
    return None


def values_agree_everywhere(graph: Graph) -> str | None:
    """A value has one type and shape wherever it is mentioned."""
    first: dict[str, Value] = {value.name: value for value in graph.inputs}
    for node in graph.nodes:
        for value in (*node.inputs, *node.outputs):
            if value.name and first.setdefault(value.name, value) != value:
                return f"{value} is elsewhere {first[value.name]}"
    return None


def defaults_belong_to_inputs(graph: Graph) -> str | None:
    inputs = {value.name for value in graph.inputs}
    foreign = [name for name in graph.defaults if name not in inputs]
    return f"defaults for {foreign}, which are no inputs" if foreign else None


def constants_are_static(graph: Graph) -> str | None:
    for node in graph.nodes:
        for value in node.inputs:
            is_static = value.shape is not None and all(isinstance(extent, int) for extent in value.shape)
            if value.name in graph.constants and not is_static:
                return f"the constant {value} has no static shape"
    return None


def symbols_are_bound(graph: Graph) -> str | None:
    """A symbol comes from an input or is born at a host node, before it is used."""
    known = {name for value in graph.inputs for name in _symbols(value)}
    for node in graph.nodes:
        if node.op == "host":
            known.update(name for value in node.outputs for name in _symbols(value))
        for value in node.outputs:
            missing = [name for name in _symbols(value) if name not in known]
            if missing:
                return f"the symbols {missing} of {value} come from nowhere"
    return None


def _symbols(value: Value) -> list[str]:
    return [name for extent in value.shape or () if isinstance(extent, Expr) for name in symbols(extent)]


def operator_is_known(node: Node) -> str | None:
    return None if node.op in ALL else "this operator does not exist"


def arity_is_right(node: Node) -> str | None:
    expected = POINTWISE.get(node.op, ARITY.get(node.op))
    if expected is not None and len(node.inputs) != expected:
        return f"{expected} inputs are needed, {len(node.inputs)} are given"
    return None if node.op == "host" or len(node.outputs) == 1 else "one output is needed"


def ranks_are_known(node: Node) -> str | None:
    if node.op == "host":
        return None
    unknown = [value.name for value in (*node.inputs, *node.outputs) if value.shape is None]
    return f"the rank of {unknown} is not known" if unknown else None


def types_fit(node: Node) -> str | None:
    inputs, output = node.inputs, node.outputs[0] if node.outputs else None
    if node.op == "host" or output is None:
        return None
    if node.op in COMPARISONS:
        return None if output.dtype == BOOL else "the result must be bool"
    if node.op == "cast":
        return None if node.attributes.get("to") == output.dtype.name in BY_NAME else "`to` and the result differ"
    if node.op == "where":
        same = inputs[0].dtype == BOOL and inputs[1].dtype == inputs[2].dtype == output.dtype
        return None if same else "bool and two operands of the result's type are needed"
    if node.op in ("gather", "gather_nd"):
        fits = all(value.dtype in (I32, I64) for value in inputs[1:]) and inputs[0].dtype == output.dtype
        return None if fits else "indices are i32 or i64 and the result has the type of the data"
    if node.op in ("iota", "extents"):
        return None
    return None if all(v.dtype == output.dtype for v in inputs) else "operands and result differ in type"


def shapes_fit(node: Node) -> str | None:
    rule = SHAPES.get("pointwise" if node.op in POINTWISE else node.op)
    if rule is None:
        return None
    expected = rule(node)
    found = node.output.shape
    return None if expected is None or expected == found else f"the shape should be {expected}, not {found}"


def _pointwise(node: Node) -> Shape | None:
    rank = max((len(value.shape or ()) for value in node.inputs), default=0)
    result: list[int | Expr] = [1] * rank
    for value in node.inputs:
        shape = value.shape or ()
        for axis, extent in enumerate(shape, rank - len(shape)):
            if extent != 1 and result[axis] not in (1, extent):
                return (*result[:axis], -1, *result[axis + 1 :])
            result[axis] = extent if extent != 1 else result[axis]
    return tuple(result)


def _reduce(node: Node) -> Shape | None:
    return tuple(1 if axis in node.attributes["axes"] else d for axis, d in enumerate(node.inputs[0].shape or ()))


def _transpose(node: Node) -> Shape | None:
    shape = node.inputs[0].shape or ()
    return tuple(shape[axis] for axis in node.attributes["perm"])


def _gather(node: Node) -> Shape | None:
    data, indices = (value.shape or () for value in node.inputs)
    axis = node.attributes["axis"]
    return (*data[:axis], *indices, *data[axis + 1 :])


def _windows(node: Node) -> Shape | None:
    shape, axis, found = node.inputs[0].shape or (), node.attributes["axis"], node.output.shape or ()
    return (*shape[:axis], *found[axis : axis + 2], *shape[axis + 1 :])


def _concat(node: Node) -> Shape | None:
    axis = node.attributes["axis"]
    shape = list(node.inputs[0].shape or ())
    for value in node.inputs[1:]:
        shape[axis] = shape[axis] + (value.shape or ())[axis]
    return tuple(shape)


def _matmul(node: Node) -> Shape | None:
    a, b = (value.shape or () for value in node.inputs)
    found = node.output.shape or ()
    return (*found[:-2], a[-2], b[-1]) if len(a) >= 2 and len(b) >= 2 else ()


def _extents(node: Node) -> Shape | None:
    found = node.output.shape or ()
    return found if len(found) <= 1 and product(found) == len(node.attributes["values"]) else (-1,)


ARITY = {"reshape": 1, "transpose": 1, "slice": 1, "expand": 1, "windows": 1, "reduce": 1, "cumsum": 1, "matmul": 2,
         "pad": 1, "gather": 2, "iota": 0, "extents": 0}  # fmt: skip

SHAPES: dict[str, Callable[[Node], Shape | None]] = {
    "pointwise": _pointwise,
    "reduce": _reduce,
    "cumsum": lambda node: node.inputs[0].shape,
    "transpose": _transpose,
    "gather": _gather,
    "concat": _concat,
    "windows": _windows,
    "matmul": _matmul,
    "extents": _extents,
}


def attributes_are_complete(node: Node) -> str | None:
    needed = ATTRIBUTES.get(node.op, frozenset())
    missing = sorted(needed - node.attributes.keys())
    if missing:
        return f"the attributes {missing} are missing"
    if node.op == "reduce" and (
        node.attributes["kind"] not in REDUCTIONS
        or list(node.attributes["axes"]) != sorted(set(node.attributes["axes"]))
    ):
        return "a reduction has a known kind and sorted axes"
    return None


ATTRIBUTES: dict[str, frozenset[str]] = {
    "cast": frozenset({"to"}),
    "reduce": frozenset({"kind", "axes"}),
    "cumsum": frozenset({"axis", "exclusive"}),
    "transpose": frozenset({"perm"}),
    "slice": frozenset({"starts", "steps"}),
    "windows": frozenset({"axis", "step", "dilation"}),
    "concat": frozenset({"axis"}),
    "pad": frozenset({"before", "value"}),
    "gather": frozenset({"axis"}),
    "iota": frozenset({"start", "step", "axis"}),
    "extents": frozenset({"values"}),
    "host": HOST_ATTRIBUTES,
}

GRAPH_RULES: tuple[Callable[[Graph], str | None], ...] = (
    names_are_unique,
    values_are_made_before_use,
    values_agree_everywhere,
    defaults_belong_to_inputs,
    constants_are_static,
    symbols_are_bound,
)

NODE_RULES: tuple[Callable[[Node], str | None], ...] = (
    operator_is_known,
    arity_is_right,
    attributes_are_complete,
    ranks_are_known,
    types_fit,
    shapes_fit,
)
