"""Fused operators that hide a table: in the parts they are made of, the table is looked up by itself and can be cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx import NodeProto, TensorProto, helper

MICROSOFT = "com.microsoft"
EPSILON = 1e-12
"""What EmbedLayerNormalization adds to a variance by default."""


def decomposed(node: NodeProto, opset: int, fresh: Callable[[str], str]) -> list[NodeProto] | None:
    """The nodes that make the same outputs; None for operators that stay.

    Args:
        node: of any operator.
        opset: the version of ai.onnx.
        fresh: gives a new name that begins with the one it is given.
    """
    if (node.domain, node.op_type) != (MICROSOFT, "EmbedLayerNormalization"):
        return None
    return _Parts(node, opset, fresh).embed_norm()


class _Parts:
    """Collects the parts of one node."""

    def __init__(self, node: NodeProto, opset: int, fresh: Callable[[str], str]) -> None:
        self.node, self.opset, self.fresh = node, opset, fresh
        self.nodes: list[NodeProto] = []

    def embed_norm(self) -> list[NodeProto]:
        """The embeddings of words, and of positions and segments, added and normalised; the lengths a mask tells."""
        ids, segments, words, positions, kinds, gamma, beta, mask, at = self.named(self.node.input, 9)
        y, lengths, total = self.named(self.node.output, 3)
        if not at:
            at = self.make("Range", [self.integer(0), self.length(ids, self.integer(1)), self.integer(1)])
        embedded = self.make("Gather", [positions, at], axis=0)
        if segments:
            embedded = self.make("Add", [self.make("Gather", [kinds, segments], axis=0), embedded])
        total = self.make("Add", [self.make("Gather", [words, ids], axis=0), embedded], output=total)
        epsilon = next((a.f for a in self.node.attribute if a.name == "epsilon"), EPSILON)
        self.make("LayerNormalization", [total, gamma, beta], output=y, axis=-1, epsilon=epsilon)
        if lengths and mask:
            one = self.make("Constant", [], value=helper.make_tensor("", TensorProto.INT32, [], [1]))
            seen = self.make("Cast", [self.make("Equal", [mask, one])], to=TensorProto.INT32)
            if self.opset < 13:
                self.make("ReduceSum", [seen], output=lengths, axes=[1], keepdims=0)
            else:
                self.make("ReduceSum", [seen, self.integer(1, axes=1)], output=lengths, keepdims=0)
        elif lengths:
            zero = helper.make_tensor("", TensorProto.INT32, [1], [0])
            self.make("ConstantOfShape", [self.length(ids, self.integer(0, axes=1))], output=lengths, value=zero)
        return self.nodes

    def named(self, names: Sequence[str], count: int) -> list[str]:
        """All operands or outputs, "" for absent ones."""
        return [*names, *[""] * (count - len(names))]

    def make(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Append a node of ai.onnx; its output."""
        output = output or self.fresh(f"{self.node.output[0]}.{op.lower()}")
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def integer(self, value: int, axes: int = 0) -> str:
        """A number, or a list of one."""
        return self.make("Constant", [], value=helper.make_tensor("", TensorProto.INT64, [1] * axes, [value]))

    def length(self, value: str, axis: str) -> str:
        """The length of an axis."""
        return self.make("Gather", [self.make("Shape", [value]), axis], axis=0)
