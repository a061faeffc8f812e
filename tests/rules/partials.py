"""Put a product in front of operands of a graph, so that a cut of its inner dim makes them pending sums."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from tests.rules.sample import Sample
from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, root

INNER = 6
"""The size of the dim that is summed over."""


def float_operands(sample: Sample, model: onnx.ModelProto) -> list[str]:
    """The inputs and weights of type float, of one axis or more, that the sample's operator reads itself."""
    given = {info.name: len(info.type.tensor_type.shape.dim) for info in model.graph.input if _is_float(info)}
    given |= {t.name: len(t.dims) for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    node = next(node for node in model.graph.node if node.op_type == sample.key[1])
    return [name for name in dict.fromkeys(node.input) if given.get(name)]


def _is_float(info: onnx.ValueInfoProto) -> bool:
    return bool(info.type.tensor_type.elem_type == TensorProto.FLOAT)


def with_products(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with each named input or weight made the product of new inputs "NAME.left" and "NAME.right"."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    products = []
    for name in names:
        stored = next((tensor for tensor in graph.initializer if tensor.name == name), None)
        if stored is not None:
            shape: list[int | str] = list(stored.dims)
            graph.initializer.remove(stored)
        else:
            info = next(info for info in graph.input if info.name == name)
            shape = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in info.type.tensor_type.shape.dim]
            graph.input.remove(info)
        for side, size in (("left", [*shape[:-1], INNER]), ("right", [INNER, shape[-1]])):
            graph.input.append(helper.make_tensor_value_info(f"{name}.{side}", TensorProto.FLOAT, size))
        products.append(helper.make_node("MatMul", [f"{name}.left", f"{name}.right"], [name]))
    nodes = [*products, *graph.node]
    graph.ClearField("node")
    graph.node.extend(nodes)
    return made


def inner_dim(analysis: Analysis, name: str) -> Dim:
    """The dim that the product in front of `name` sums over."""
    axes = analysis.axes[analysis.program.values[f"{name}.right"]]
    assert axes is not None
    return root(axes[0])
