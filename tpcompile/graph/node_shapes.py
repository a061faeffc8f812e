"""The shapes a node makes of the shapes and known contents of its operands: by onnx, or by functions of our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper

from tpcompile.graph import attention_shapes as _attention_shapes  # noqa: F401 - fills the table
from tpcompile.graph import contrib_shapes as _contrib_shapes  # noqa: F401 - fills the table
from tpcompile.graph import quantized_shapes as _quantized_shapes  # noqa: F401 - fills the table
from tpcompile.graph.program import Node
from tpcompile.graph.shape_functions import UNKNOWN, Described, ShapeQuery, described
from tpcompile.graph.tensors import ONNX_DTYPES, type_name


class NodeInference:
    """Remembers what it inferred: repeated layers ask the same again. What onnx refuses is added to `warnings`."""

    def __init__(self, warnings: list[str]) -> None:
        self.warnings = warnings
        self._cache: dict[object, list[Described]] = {}
        self._attributes: dict[int, object] = {}

    def infer(self, node: Node, sample: int) -> list[Described]:
        """onnx's own shape inference of one node at one sample: (dtype, shape) per output, ("", None) where unknown."""
        unknown: list[Described] = [UNKNOWN] * len(node.outputs)
        proto: onnx.NodeProto = node.origin
        if node.captured or any(
            a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in proto.attribute
        ):
            return unknown
        if any(value is not None and (value.sizes is None or value.dtype is None) for value in node.inputs):
            return unknown
        data = [None if value is None or value.known is None else value.known[sample] for value in node.inputs]
        shapes = [
            None if value is None else (value.dtype, tuple(size[sample] for size in value.sizes or ()))
            for value in node.inputs
        ]
        if id(node) not in self._attributes:
            self._attributes[id(node)] = tuple(a.SerializeToString(deterministic=True) for a in proto.attribute)
        key = (node.op, node.domain, node.version, self._attributes[id(node)], tuple(shapes),
               tuple(None if d is None else (d.dtype.name, d.tobytes()) for d in data), len(node.outputs))  # fmt: skip
        if key not in self._cache:
            self._cache[key] = self._infer(node, shapes, data) or unknown
        return self._cache[key]

    def _infer(self, node: Node, shapes: Sequence[Any], data: Sequence[Any]) -> list[Described] | None:
        try:
            schema = onnx.defs.get_schema(node.op, node.version, node.domain)
        except onnx.defs.SchemaError:
            return described(ShapeQuery(node, shapes, data))
        proto = onnx.NodeProto(op_type=node.op, domain=node.domain, name=node.name)
        proto.attribute.extend(node.origin.attribute)
        proto.input.extend("" if shape is None else f"i{k}" for k, shape in enumerate(shapes))
        proto.output.extend("" if value is None else f"o{k}" for k, value in enumerate(node.outputs))
        types, tensors = {}, {}
        for k, shape in enumerate(shapes):
            if shape is None:
                continue
            types[f"i{k}"] = helper.make_tensor_type_proto(ONNX_DTYPES[shape[0]], shape[1])
            if data[k] is not None:
                tensors[f"i{k}"] = numpy_helper.from_array(data[k])
        opsets = [helper.make_opsetid(node.domain, node.version)]
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, proto, types, tensors, opset_imports=opsets, ir_version=10
            )
        except Exception as error:  # onnx raises several kinds; what it cannot infer runs whole
            self.warnings.append(f"onnx cannot infer {node.op} {node.name}: {str(error).splitlines()[0][:120]}")
            return None
        return [_read_type(found.get(f"o{k}")) for k in range(len(node.outputs))]


def _read_type(proto: onnx.TypeProto | None) -> Described:
    if proto is None or not proto.HasField("tensor_type"):
        return UNKNOWN
    tensor = proto.tensor_type
    dtype = type_name(tensor.elem_type) if tensor.elem_type else ""
    if not tensor.HasField("shape"):
        return dtype, None
    return dtype, tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
