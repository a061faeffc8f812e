"""A model with operators of ONNX Runtime is written in a newer opset, where none of its nodes means something else.

What such operators come to be may need it: Attention is of opset 23, weights of 4 bits of 21.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from tpcompile.graph.contents import ONNX_DOMAINS
from tpcompile.graph.scopes import subgraphs

NEWER = 23
LEAST = 18
"""From here on operators of ai.onnx have changed little: before, axes and parts were attributes."""
CHANGED = {
    "AveragePool": 22,
    "DFT": 20,
    "GridSample": 20,
    "GroupNormalization": 21,
    "MaxPool": 22,
    "Resize": 19,
}
"""Operators that mean or spell something else from an opset on, between the least and that of Attention; all others
took more types, or attributes whose default is what they did before."""


def raise_opset(model: onnx.ModelProto) -> int:
    """Let a model import the newer opset if it has a node of com.microsoft and stays what it is; its opset then."""
    entry = next((entry for entry in model.opset_import if entry.domain in ONNX_DOMAINS), None)
    if entry is None:
        return 1
    nodes = list(_nodes(model.graph))
    kept = not LEAST <= entry.version < NEWER or bool(model.functions)
    changes = any(entry.version < CHANGED.get(node.op_type, 0) for node in nodes if node.domain in ONNX_DOMAINS)
    if any(node.domain == "com.microsoft" for node in nodes) and not kept and not changes:
        entry.version = NEWER
    return int(entry.version)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)
