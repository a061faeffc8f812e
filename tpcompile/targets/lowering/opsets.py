"""A model with operators of ONNX Runtime is written in a newer opset, where none of its nodes means something else.

What such operators come to be may need it: Attention is of opset 23, weights of 4 bits of 21.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import helper

from tpcompile.graph.contents import ONNX_DOMAINS
from tpcompile.graph.scopes import subgraphs

NEWER = 23
LEAST = 13
"""From here on operators of ai.onnx have changed little."""
CHANGED = {
    "AveragePool": 22,
    "DFT": 20,
    "GridSample": 20,
    "GroupNormalization": 21,
    "LpPool": 18,
    "MaxPool": 22,
    "Resize": 19,
    "RoiAlign": 16,
}
"""Operators that mean or spell something else from an opset on, between the least and that of Attention; all others
took more types, or attributes whose default is what they did before, or are respelled."""
OPERANDS = 18
"""The opset in which axes of reductions became an operand, and splits without sizes wanted a count."""
REDUCTIONS = frozenset(
    f"Reduce{kind}" for kind in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
)


def raise_opset(model: onnx.ModelProto, name: Callable[[str], str]) -> int:
    """Let a model import the newer opset if it has a node of com.microsoft and stays what it is; its opset then.

    `name` gives a free name for a wish.
    """
    entry = next((entry for entry in model.opset_import if entry.domain in ONNX_DOMAINS), None)
    if entry is None:
        return 1
    nodes = list(_nodes(model.graph))
    kept = not LEAST <= entry.version < NEWER or bool(model.functions)
    changes = any(entry.version < CHANGED.get(node.op_type, 0) for node in nodes if node.domain in ONNX_DOMAINS)
    if any(node.domain == "com.microsoft" for node in nodes) and not kept and not changes:
        if entry.version < OPERANDS:
            _respell(model.graph, name)
        entry.version = NEWER
    return int(entry.version)


def _respell(graph: onnx.GraphProto, name: Callable[[str], str]) -> None:
    """Axes of reductions as operands, and the count of parts of splits into equal ones."""
    nodes = []
    for node in graph.node:
        for inner in subgraphs(node):
            _respell(inner, name)
        if node.domain in ONNX_DOMAINS and node.op_type == "Split" and len(node.input) == 1:
            node.attribute.append(helper.make_attribute("num_outputs", len(node.output)))
        axes = next((entry for entry in node.attribute if entry.name == "axes"), None)
        if node.domain in ONNX_DOMAINS and node.op_type in REDUCTIONS and axes is not None:
            made = name(f"{node.output[0]}.axes")
            nodes.append(helper.make_node("Constant", [], [made], name=made, value_ints=list(axes.ints)))
            node.attribute.remove(axes)
            node.input.append(made)
        nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    graph.ClearField("node")
    graph.node.extend(kept)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)
