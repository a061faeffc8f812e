"""The element types of ONNX under their numpy/ml_dtypes names, and the bytes of a stored tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto

DTYPES: dict[int, tuple[str, int]] = {
    TensorProto.FLOAT: ("float32", 32),
    TensorProto.UINT8: ("uint8", 8),
    TensorProto.INT8: ("int8", 8),
    TensorProto.UINT16: ("uint16", 16),
    TensorProto.INT16: ("int16", 16),
    TensorProto.INT32: ("int32", 32),
    TensorProto.INT64: ("int64", 64),
    TensorProto.BOOL: ("bool", 8),
    TensorProto.FLOAT16: ("float16", 16),
    TensorProto.DOUBLE: ("float64", 64),
    TensorProto.UINT32: ("uint32", 32),
    TensorProto.UINT64: ("uint64", 64),
    TensorProto.BFLOAT16: ("bfloat16", 16),
    TensorProto.FLOAT8E4M3FN: ("float8_e4m3fn", 8),
    TensorProto.FLOAT8E4M3FNUZ: ("float8_e4m3fnuz", 8),
    TensorProto.FLOAT8E5M2: ("float8_e5m2", 8),
    TensorProto.FLOAT8E5M2FNUZ: ("float8_e5m2fnuz", 8),
    TensorProto.FLOAT8E8M0: ("float8_e8m0fnu", 8),
    TensorProto.UINT4: ("uint4", 4),
    TensorProto.INT4: ("int4", 4),
    TensorProto.FLOAT4E2M1: ("float4_e2m1fn", 4),
    TensorProto.UINT2: ("uint2", 2),
    TensorProto.INT2: ("int2", 2),
}
"""ONNX element type -> (name, bits). What is not here (string, complex) cannot be a weight, an input or an output."""

ONNX_DTYPES = {name: number for number, (name, _) in DTYPES.items()}


def type_name(data_type: int) -> str:
    """The name to show for any ONNX element type, also one that is not supported."""
    if data_type in DTYPES:
        return DTYPES[data_type][0]
    names: dict[int, str] = {number: name.lower() for name, number in TensorProto.DataType.items()}
    return names.get(data_type, f"element type {data_type}")


def stored_bytes(data_type: int, dims: Iterable[int]) -> int:
    """Bytes that a tensor of this type and shape takes in a file; sub-byte elements are packed."""
    return -(-math.prod(dims) * DTYPES[data_type][1] // 8)


def inline_bytes(tensor: onnx.TensorProto) -> bytes:
    """The bytes a tensor carries within its message, as `raw_data` would hold them; external data is not read."""
    if tensor.HasField("raw_data"):
        return tensor.raw_data
    kind = tensor.data_type
    bits = DTYPES[kind][1]
    if kind == TensorProto.FLOAT:
        return np.array(tensor.float_data, dtype="<f4").tobytes()
    if kind == TensorProto.DOUBLE:
        return np.array(tensor.double_data, dtype="<f8").tobytes()
    if kind == TensorProto.INT64:
        return np.array(tensor.int64_data, dtype="<i8").tobytes()
    if kind in (TensorProto.UINT32, TensorProto.UINT64):
        return np.array(tensor.uint64_data, dtype="<u8").astype(f"<u{bits // 8}").tobytes()
    # int32_data holds the bits of everything narrower, one element (or one packed byte of sub-byte elements) each.
    return np.array(tensor.int32_data, dtype="<i4").astype(f"<u{max(bits, 8) // 8}").tobytes()


def array_of(tensor: onnx.TensorProto) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """A tensor that stands in an attribute, as an array (of bytes objects where it holds text)."""
    if tensor.data_type == TensorProto.STRING:
        return np.array(list(tensor.string_data), dtype=object).reshape(tuple(tensor.dims))
    return onnx.numpy_helper.to_array(tensor)
