"""Each rule of the verifier refuses the graph that breaks it, in one sentence."""

from __future__ import annotations

import pytest

from grainline.graph.text import parse
from grainline.graph.verify import GraphError, verify

GOOD = """graph "g"
input %x: f32[n, 4]
constant %k: f32[] = [2.0]
%t: f32[n, 4] = mul(%x, %k) {} ""
%r: f32[n, 1] = reduce(%t) {kind: "sum", axes: (1)} ""
output "y" = %r
"""

BROKEN = {
    "given twice": (
        '%t: f32[n, 4] = mul(%x, %k) {} ""',
        '%x: f32[n, 4] = mul(%x, %k) {} ""\n%t: f32[n, 4] = neg(%x) {} ""',
    ),
    "does not exist": ("= mul(%x, %k)", "= frobnicate(%x)"),
    "inputs are needed": ("mul(%x, %k)", "mul(%x)"),
    "shape should be": ("%t: f32[n, 4] =", "%t: f32[n, 5] ="),
    "come from nowhere": ("%r: f32[n, 1]", "%r: f32[m, 1]"),
    "differ in type": ("%t: f32[n, 4] = mul", "%t: i64[n, 4] = mul"),
    "must be bool": ("= mul(%x, %k)", "= lt(%x, %k)"),
    "are missing": ('{kind: "sum", axes: (1)}', '{kind: "sum"}'),
    "known kind": ('kind: "sum"', 'kind: "mean"'),
    "rank of": ("%r: f32[n, 1]", "%r: f32?"),
}


def test_a_valid_graph_passes() -> None:
    verify(parse(GOOD))


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_broken_rule_is_named(sentence: str) -> None:
    old, new = BROKEN[sentence]
    assert old in GOOD
    with pytest.raises(GraphError, match=sentence):
        verify(parse(GOOD.replace(old, new)))


def test_a_value_that_nothing_makes() -> None:
    graph = parse(GOOD)
    with pytest.raises(GraphError, match="nothing"):
        verify(type(graph)(graph.name, graph.inputs, graph.outputs, graph.nodes[1:], graph.constants))
