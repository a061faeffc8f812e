"""How wide an element is, and how elements narrower than a byte are packed."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tpcompile.errors import refuse

BITS = {
    "bool": 8,
    **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
    **{"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64, "complex64": 64, "complex128": 128},
    **{f"float8{kind}": 8 for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
    **{"float4e2m1": 4, "float4e2m1fn": 4},
}
"""Bits of one element, by the type's standard name (ml_dtypes writes the same names with underscores)."""


def bits_of(dtype: str, name: str) -> int:
    """Bits of one element of `dtype`; `name` is the tensor that an error is about.

    Raises:
        Refused: TP403 for a type whose elements have no fixed width (string), or that is not known.
    """
    bits = BITS.get(dtype.replace("_", ""))
    if bits is None:
        remedy = "Weights are numbers or booleans: take this tensor out of the model's weights"
        raise refuse("TP403", name, f"elements of type {dtype!r} have no known number of bits", remedy)
    return bits


def bytes_of(bits: int, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor whose elements have `bits` bits each, packed in flat order, the last byte filled up."""
    return (math.prod(shape) * bits + 7) // 8


def unpack(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """One byte per element: `count` elements of 2 or 4 bits, the first in the lowest bits of a byte."""
    per_byte = 8 // bits
    elements = np.empty((packed.size, per_byte), np.uint8)
    for place in range(per_byte):
        np.right_shift(packed, place * bits, out=elements[:, place])
    elements &= np.uint8((1 << bits) - 1)
    return elements.reshape(-1)[:count]


def pack(elements: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The inverse of `unpack`; what is left of the last byte is zero."""
    per_byte = 8 // bits
    packed = np.zeros(-(-elements.size // per_byte), np.uint8)
    flat = elements.reshape(-1)
    for place in range(per_byte):
        slot = flat[place::per_byte]
        packed[: slot.size] |= slot << np.uint8(place * bits)
    return packed
