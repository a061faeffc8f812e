"""bfloat16 models on a CPU: ONNX Runtime has no kernels for them there, so the graph is rewritten to float32.

What is stored stays bfloat16 on disk (a Cast widens it at load), and what enters and leaves the graph keeps its type.
Numbers differ from bfloat16 arithmetic only by being rounded less often.
"""

from __future__ import annotations

import numpy as np
import onnx

from tpcompile.graph.scopes import subgraphs

BFLOAT16 = onnx.TensorProto.BFLOAT16
FLOAT = onnx.TensorProto.FLOAT
TYPE_ATTRIBUTES = ("to", "dtype", "softmax_precision", "stash_type", "output_dtype")


def compute_in_float32(graph: onnx.GraphProto) -> bool:
    """Rewrite `graph` in place; returns whether there was any bfloat16 in it."""
    inputs = [value.name for value in graph.input if _is_narrow(value)]
    outputs = [value.name for value in graph.output if _is_narrow(value)]
    stored = [tensor.name for tensor in graph.initializer if tensor.data_type == BFLOAT16]
    touched = bool(inputs or outputs or stored)
    for node in graph.node:
        touched |= _widen_node(node)
    for value in graph.value_info:
        if _is_narrow(value):
            value.type.tensor_type.elem_type = FLOAT
    entering = {name: f"{name}/float32" for name in dict.fromkeys(inputs + stored)}
    leaving = {name: f"{name}/float32" for name in outputs if name not in entering}
    for node in graph.node:
        _rename(node, entering | leaving)
    first = [onnx.helper.make_node("Cast", [name], [wide], to=FLOAT) for name, wide in entering.items()]
    last = [onnx.helper.make_node("Cast", [wide], [name], to=BFLOAT16) for name, wide in leaving.items()]
    body = list(graph.node)
    del graph.node[:]
    graph.node.extend([*first, *body, *last])
    return touched


def _is_narrow(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type == BFLOAT16


def _widen_node(node: onnx.NodeProto) -> bool:
    """Types named in attributes, constants, and the bodies of control flow."""
    touched = False
    for attribute in node.attribute:
        if attribute.name in TYPE_ATTRIBUTES and attribute.i == BFLOAT16:
            attribute.i, touched = FLOAT, True
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == BFLOAT16:
            attribute.t.CopyFrom(_widen_tensor(attribute.t))
            touched = True
    for graph in subgraphs(node):
        for value in [*graph.input, *graph.output, *graph.value_info]:
            if _is_narrow(value):
                value.type.tensor_type.elem_type, touched = FLOAT, True
        for tensor in graph.initializer:
            if tensor.data_type == BFLOAT16:
                tensor.CopyFrom(_widen_tensor(tensor))
                touched = True
        for inner in graph.node:
            touched |= _widen_node(inner)
    return touched


def _widen_tensor(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float32), tensor.name)


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename what `node` reads and makes, inside its bodies too (where a local name hides an outer one, that stays)."""
    node.input[:] = [names.get(name, name) for name in node.input]
    node.output[:] = [names.get(name, name) for name in node.output]
    for graph in subgraphs(node):
        local = {value.name for value in [*graph.input, *graph.initializer]}
        local |= {name for inner in graph.node for name in inner.output}
        visible = {name: new for name, new in names.items() if name not in local}
        for inner in graph.node:
            _rename(inner, visible)
        for value in graph.output:
            value.name = visible.get(value.name, value.name)
