"""Between numpy and ONNX Runtime without copies, for every element type, those that numpy lacks included."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from onnx import TensorProto

from tpcompile.errors import refuse

Array = np.ndarray[Any, Any]

TYPES: dict[str, tuple[int, type]] = {
    "float32": (TensorProto.FLOAT, np.float32),
    "uint8": (TensorProto.UINT8, np.uint8),
    "int8": (TensorProto.INT8, np.int8),
    "uint16": (TensorProto.UINT16, np.uint16),
    "int16": (TensorProto.INT16, np.int16),
    "int32": (TensorProto.INT32, np.int32),
    "int64": (TensorProto.INT64, np.int64),
    "bool": (TensorProto.BOOL, np.bool_),
    "float16": (TensorProto.FLOAT16, np.float16),
    "float64": (TensorProto.DOUBLE, np.float64),
    "uint32": (TensorProto.UINT32, np.uint32),
    "uint64": (TensorProto.UINT64, np.uint64),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "float8_e4m3fn": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    "float8_e4m3fnuz": (TensorProto.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2": (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
    "float8_e5m2fnuz": (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
}
"""dtype name (as in bundle.json) -> ONNX element type, numpy scalar type."""

NUMPY_OF = {element: np.dtype(kind) for element, kind in TYPES.values()}
ELEMENT_OF = {np.dtype(kind): element for element, kind in TYPES.values()}
ORT_SPELLING = {"float32": "float", "float64": "double"} | {n: n.replace("_", "") for n in TYPES if "float8" in n}
ELEMENT_OF_ORT = {f"tensor({ORT_SPELLING.get(name, name)})": element for name, (element, _) in TYPES.items()}


def from_numpy(array: Array) -> ort.OrtValue:
    """An OrtValue over the memory of `array` (copied only where it is not contiguous)."""
    array = np.require(array, requirements="C")
    if array.dtype not in ELEMENT_OF:
        raise refuse("TP601", "", f"arrays of {array.dtype} cannot be computed with", f"Use one of {', '.join(TYPES)}")
    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(f"uint{8 * array.dtype.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, ELEMENT_OF[array.dtype])


def view(value: ort.OrtValue) -> Array:
    """The memory of `value` as a numpy array: valid while `value` lives, writable, no copy."""
    dtype, shape = NUMPY_OF[value.element_type()], tuple(value.shape())
    size = dtype.itemsize * math.prod(shape)
    if not size:
        return np.empty(shape, dtype)
    buffer = (ctypes.c_ubyte * size).from_address(value.data_ptr())
    return np.ctypeslib.as_array(buffer).view(dtype).reshape(shape)


def to_numpy(value: ort.OrtValue) -> Array:
    """A copy of `value` that stands on its own."""
    return view(value).copy()


def empty(shape: tuple[int, ...], element: int) -> ort.OrtValue:
    """A new, uninitialised value of the ONNX type `element`."""
    return ort.OrtValue.ortvalue_from_shape_and_type(list(shape), element, "cpu")


def duplicate(value: ort.OrtValue) -> ort.OrtValue:
    """A copy of `value` in memory of its own."""
    made = empty(tuple(value.shape()), value.element_type())
    view(made)[...] = view(value)
    return made
