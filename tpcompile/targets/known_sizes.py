"""A rank's model as a builder wants it: sizes that are always the same stand as numbers, no collective of one rank.

Exporters write some of them as texts ("16"), or leave them to a symbol that only the nodes explain. TensorRT takes such
a size for one that varies.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from tpcompile.graph.scopes import subgraphs
from tpcompile.targets.collectives import is_collective, read_collective
from tpcompile.verify.files import ModelFile, attribute, tensor_bytes
from tpcompile.verify.inputs import input_values, symbol_kinds


def settle_sizes(model: ModelFile) -> None:
    """Write sizes of inputs and outputs that can only be one number as that number; name those without a name."""
    for value in input_values(model):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_param and not dim.HasField("dim_value"):
                dim.dim_param = f"{value.name}.{axis}"
    known = {symbol: size for symbol, size in symbol_kinds(model).items() if isinstance(size, int)}
    known |= _channels(model)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in known:
                dim.dim_value = known[dim.dim_param]


def _channels(model: ModelFile) -> dict[str, int]:
    """Symbols of channels that a convolution's weight explains."""
    values = {value.name: value.type.tensor_type.shape.dim for value in input_values(model)}
    return {
        values[node.input[0]][1].dim_param: model.tensors[node.input[1]].dims[1] * attribute(node, "group", 1)
        for node in model.graph.node
        if node.op_type == "Conv" and node.input[0] in values and node.input[1] in model.tensors
        if values[node.input[0]][1].dim_param
    }


def leave_out_single(graph: onnx.GraphProto) -> None:
    """Replace collectives over one rank by Identity: there is nobody to talk to, and TensorRT fails on them."""
    for node in graph.node:
        if is_collective(node) and read_collective(node).nb_rank == 1:
            alone = onnx.helper.make_node("Identity", node.input, node.output, name=node.name)
            node.CopyFrom(alone)
        for inner in subgraphs(node):
            leave_out_single(inner)


def weights_precision(tensors: Iterable[onnx.TensorProto]) -> str:
    """The type of most bytes of the given tensors, by its standard name; float32 where there are none."""
    held: dict[str, int] = {}
    for tensor in tensors:
        name = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).name
        held[name] = held.get(name, 0) + tensor_bytes(tensor)
    return max(held, key=lambda name: held[name], default="float32")
