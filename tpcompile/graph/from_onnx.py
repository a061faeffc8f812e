"""From an ONNX model to the neutral program that rules, planner and passes work on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from onnx import AttributeProto, NodeProto, TensorShapeProto, ValueInfoProto

from tpcompile.graph.normalize import NormalGraph, normalize
from tpcompile.graph.program import Node, Program, Value, Weight
from tpcompile.graph.read import SourceModel
from tpcompile.graph.steps import Step
from tpcompile.graph.tensors import DTYPES, array_of

SCOPES = "pkg.torch.onnx.name_scopes"


def to_program(source: SourceModel, decisions: Mapping[str, bool] | None = None) -> Program:
    """The source's main graph, normalized: nodes in topological order over values.

    Types and shapes are set on inputs, outputs and weights only: what a file says of its inner values is not trusted.
    `Node.origin` is the node's message, with the node's own names; it may be the source's own: copy it to change it.
    `decisions` are conditions of Ifs that are always the same (see `normalize`).
    """
    return _program(normalize(source, decisions), source)


def _program(graph: NormalGraph, source: SourceModel) -> Program:
    values: dict[str, Value] = {}
    for name, tensor in graph.weights.items():
        dtype, shape = DTYPES[tensor.data_type][0], tuple(tensor.dims)
        values[name] = Value(name, dtype, shape, weight=Weight(name, dtype, shape, source.bytes_of(tensor)))
    inputs = [_described(values, info) for info in graph.inputs]
    nodes = [_node(step, values, graph.opsets) for step in graph.steps]
    outputs = [_described(values, info) for info in graph.outputs]
    return Program(nodes, inputs, outputs, values, dict(graph.opsets), origin=source)


def _described(values: dict[str, Value], info: ValueInfoProto) -> Value:
    """The value of a graph's input or output, with what the graph says of its type and shape."""
    value = values.setdefault(info.name, Value(info.name))
    kind = info.type.tensor_type
    described = value.weight is not None or value.dtype is not None  # an input may be an output at once
    if info.type.HasField("tensor_type") and not described:
        value.dtype = DTYPES[kind.elem_type][0] if kind.elem_type in DTYPES else None
        if kind.HasField("shape"):
            value.shape = tuple(_axis(dim) for dim in kind.shape.dim)
    return value


def _axis(dim: TensorShapeProto.Dimension) -> int | str | None:
    """An axis as the source spells it; some exporters write -1 for one of unknown size."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return dim.dim_param or None


def _node(step: Step, values: dict[str, Value], opsets: dict[str, int]) -> Node:
    proto = step.proto
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    node = Node(
        op=proto.op_type,
        domain=domain,
        name=step.name,
        inputs=[values[name] if name else None for name in step.inputs],
        outputs=[],
        attributes={attribute.name: _plain(attribute) for attribute in proto.attribute},
        version=opsets.get(domain, 0),
        captured=tuple(values[name] for name in step.captured),
        origin=proto,
        region=step.region,
        regions=step.regions,
        scope=_scope(proto),
    )
    for captured in node.captured:
        captured.captors.append(node)
    for position, value in enumerate(node.inputs):
        if value is not None:
            value.consumers.append((node, position))
    for position, name in enumerate(step.outputs):
        if name:
            values[name] = made = Value(name, producer=node, index=position)
            node.outputs.append(made)
        else:
            node.outputs.append(None)
    return node


def _scope(proto: NodeProto) -> str:
    """The module that torch's exporter notes: the last but one of "['', 'layers.0', 'layers.0.up', 'linear']"."""
    for entry in proto.metadata_props:
        if entry.key == SCOPES:
            scopes = re.findall(r"'([^']*)'", entry.value)
            return scopes[-2] if len(scopes) > 1 else ""
    return ""


def _text(data: bytes) -> str | bytes:
    """An attribute's text; bytes where it is none (an engine, a pickled blob)."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


_PLAIN: dict[int, Callable[[AttributeProto], Any]] = {
    AttributeProto.FLOAT: lambda a: a.f,
    AttributeProto.INT: lambda a: a.i,
    AttributeProto.STRING: lambda a: _text(a.s),
    AttributeProto.TENSOR: lambda a: array_of(a.t),
    AttributeProto.GRAPH: lambda a: a.g,
    AttributeProto.SPARSE_TENSOR: lambda a: a.sparse_tensor,
    AttributeProto.TYPE_PROTO: lambda a: a.tp,
    AttributeProto.FLOATS: lambda a: list(a.floats),
    AttributeProto.INTS: lambda a: list(a.ints),
    AttributeProto.STRINGS: lambda a: [_text(s) for s in a.strings],
    AttributeProto.TENSORS: lambda a: [array_of(t) for t in a.tensors],
    AttributeProto.GRAPHS: lambda a: list(a.graphs),
    AttributeProto.SPARSE_TENSORS: lambda a: list(a.sparse_tensors),
    AttributeProto.TYPE_PROTOS: lambda a: list(a.type_protos),
}


def _plain(attribute: AttributeProto) -> Any:
    return _PLAIN[attribute.type](attribute)
