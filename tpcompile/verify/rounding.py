"""Where a source rounds activations to few bits: there a difference in the last place may grow to a step, for a few."""

from __future__ import annotations

import onnx

from tpcompile.graph.scopes import subgraphs
from tpcompile.verify.branches import graphs, walk
from tpcompile.verify.files import attribute

ROUNDING = ("QuantizeLinear", "DynamicQuantize", "QLinear", "QGemm", "QAttention", "QMoE", "QEmbed", "QOrdered")
"""How the names of operators begin that round what they are given, or what they make."""
INT8 = 4
"""The accuracy level at which products with weights of few bits round activations to 8."""


def rounded_values(graph: onnx.GraphProto) -> frozenset[str]:
    """The values that are rounded to few bits, or made of such values, and depend on inputs."""
    live = {value.name for held in graphs(graph) for value in held.input}
    live -= {tensor.name for tensor in graph.initializer}
    rounded: set[str] = set()
    for node in walk(graph):
        reads = {*node.input, *(value.name for held in subgraphs(node) for value in held.output)}
        rounds = node.op_type.startswith(ROUNDING) or attribute(node, "accuracy_level", 0) == INT8
        if live & reads:
            live.update(node.output)
            if rounds or rounded & reads:
                rounded.update(node.output)
    return frozenset(rounded)
