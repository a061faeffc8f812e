"""The content of small stored tensors: constants that shapes are computed from."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcompile.graph.program import Value
from tpcompile.weights.source import FileBytes, MemoryBytes

SMALL_INTEGERS, SMALL_FLOATS = 4096, 64
"""Up to how many elements a constant is metadata that may be read."""


def constant_of(value: Value) -> np.ndarray[Any, Any] | None:
    """The content of a small stored tensor, None where it is large, absent or of a type numpy lacks."""
    weight = value.weight
    if weight is None:
        return None
    count = int(np.prod(weight.shape, dtype=np.int64))
    integral = weight.dtype.startswith(("int", "uint", "bool"))
    if count > (SMALL_INTEGERS if integral else SMALL_FLOATS) or weight.dtype not in _NUMPY:
        return None
    if isinstance(weight.source, MemoryBytes):
        data = bytes(weight.source.data)
    elif isinstance(weight.source, FileBytes) and weight.source.path.is_file():
        with weight.source.path.open("rb") as file:
            file.seek(weight.source.offset)
            data = file.read(weight.source.nbytes)
    else:
        return None
    found: np.ndarray[Any, Any] = np.frombuffer(data, dtype=np.dtype(weight.dtype)).reshape(weight.shape)
    return found


_NUMPY = frozenset(
    ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
)
