"""Faults of stored tensors: element types, shapes, and data that is shorter or longer than they say."""

from __future__ import annotations

import math
from collections.abc import Iterable

from onnx import TensorProto, ValueInfoProto

from tpcompile.errors import Fault
from tpcompile.graph.contents import Held
from tpcompile.graph.tensors import DTYPES, stored_bytes, type_name

MAX_BYTES = 2**62
"""Bytes of one tensor beyond which its shape is taken for damage."""

_TYPES = "Numbers and bool can be compiled: cut off that part of the model (onnx.utils.extract_model) or cast it"
_AGAIN = "Export or save the model again"


def type_faults(
    held: Iterable[Held], inputs: Iterable[ValueInfoProto], outputs: Iterable[ValueInfoProto]
) -> list[Fault]:
    """Weights, inputs and outputs that are no dense tensors of numbers."""
    faults = []
    for item in held:
        kind = item.tensor.data_type
        text = kind == TensorProto.STRING and item.role != "weight"  # a Constant of text may feed an operator run whole
        if kind not in DTYPES and not text:
            faults.append(Fault("TP209", item.where, f"has elements of type {type_name(kind)}", _TYPES))
    for end, infos in (("input", inputs), ("output", outputs)):
        for info in infos:
            where, kind_of = f"{end} {info.name}", info.type.WhichOneof("value")
            if kind_of not in (None, "tensor_type"):
                fact = f"is a {kind_of.removesuffix('_type').replace('_', ' ')}, not a tensor"
                faults.append(Fault("TP209", where, fact, _TYPES))
            elif info.type.tensor_type.elem_type not in DTYPES and (end == "input" or info.type.tensor_type.elem_type):
                fact = f"has elements of type {type_name(info.type.tensor_type.elem_type)}"
                faults.append(Fault("TP209", where, fact, _TYPES))
    return faults


def shape_faults(held: Iterable[Held]) -> list[Fault]:
    """Tensors with negative sizes or more bytes than any file holds."""
    faults = []
    for item in held:
        dims = list(item.tensor.dims)
        if any(size < 0 for size in dims) or math.prod(dims) >= MAX_BYTES:
            faults.append(Fault("TP215", item.where, f"has the impossible shape {dims}", _AGAIN))
    return faults


def length_faults(held: Iterable[Held]) -> list[Fault]:
    """Tensors that carry their data within the message, but not as much as their type and shape say."""
    faults = []
    for item in held:
        tensor = item.tensor
        if tensor.data_location == TensorProto.EXTERNAL:
            continue
        if tensor.HasField("segment"):
            faults.append(Fault("TP214", item.where, "is one segment of a tensor", "Save it as a whole tensor"))
            continue
        have, need, unit = _have_and_need(tensor)
        if have != need:
            shape = f"{type_name(tensor.data_type)} {list(tensor.dims)}"
            faults.append(Fault("TP214", item.where, f"holds {have} {unit}, and {shape} takes {need}", _AGAIN))
    return faults


def _have_and_need(tensor: TensorProto) -> tuple[int, int, str]:
    kind = tensor.data_type
    count = math.prod(tensor.dims)
    if kind == TensorProto.STRING:
        return len(tensor.string_data), count, "texts"
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data), stored_bytes(kind, tensor.dims), "bytes"
    if kind == TensorProto.FLOAT:
        return len(tensor.float_data), count, "elements"
    if kind == TensorProto.DOUBLE:
        return len(tensor.double_data), count, "elements"
    if kind == TensorProto.INT64:
        return len(tensor.int64_data), count, "elements"
    if kind in (TensorProto.UINT32, TensorProto.UINT64):
        return len(tensor.uint64_data), count, "elements"
    if DTYPES[kind][1] < 8:
        return len(tensor.int32_data), stored_bytes(kind, tensor.dims), "packed bytes"
    return len(tensor.int32_data), count, "elements"
