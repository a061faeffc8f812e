"""Weights with a scale, and perhaps a zero point, for each block of a row, as TensorRT dequantises them.

A product with (codes - zeros) · scales is one with (codes - middle) · scales, and one of x summed over each block with
(middle - zeros) · scales.
The first product is of the form for which TensorRT has kernels, and the second has one row for a whole block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tpcompile.targets.lowering.packed import FIRST_OPSET, PART_BYTES, signed_codes, unpacked
from tpcompile.targets.lowering.registry import NotLowered
from tpcompile.targets.lowering.site import Array, Site


@dataclass(frozen=True)
class BlockWeights:
    """Weights [..., columns, rows]: `dequantised`, and `correction` [..., columns, blocks] on each row of a block."""

    dequantised: str
    correction: str | None
    shape: tuple[int, ...]
    """[..., columns, blocks, length of a block]"""


def product_in_blocks(site: Site, x: str, rank: int, weights: BlockWeights) -> str:
    """x [..., blocks · length] of `rank` axes times transposed weights."""
    outer = len(weights.shape) - 3
    turned = (*range(outer), outer + 1, outer)
    y = site.emit("MatMul", [x, site.transpose(weights.dequantised, *turned)])
    if weights.correction is None:
        return y
    blocks = site.reshape(x, *[0] * (rank - 1), *weights.shape[-2:])
    sums = site.reduce("ReduceSum", blocks, rank, keepdims=False)
    return site.emit("Add", [y, site.emit("MatMul", [sums, site.transpose(weights.correction, *turned)])])


def weights_in_blocks(
    site: Site,
    weight: str,
    scales: str,
    zeros: str | None,
    bits: int,
    shape: tuple[int, ...],
    *,
    by_column: bool = False,
) -> BlockWeights:
    """Weights of stored unsigned codes in bytes; `shape` is [..., columns, blocks, codes in a block].

    TensorRT takes no scale below or at 0 for codes of 8 bits: code · scale is then (-1 - code) · |scale| + |scale|.

    Args:
        zeros: numbers for each block, or uint8 that hold several along blocks; along columns where there is one block
            for each (`by_column`).
    """
    if site.opset < FIRST_OPSET:
        raise NotLowered(f"weights are in blocks from opset {FIRST_OPSET} on")
    *outer, count, length = shape
    values = site.stored(scales).reshape(*outer, count)
    signs = np.sign(values).astype(np.int8).reshape(-1) if bits == 8 and (values <= 0).any() else None
    codes = signed_codes(site, weight, bits, (*outer, count * length), length * bits // 8, signs)
    known = site.store.view(scales, site.dtype(scales), (*outer, count))
    if signs is not None:
        positive = np.where(values == 0, np.ones_like(values), np.abs(values))
        known = site.store.made_once(("positive", scales), lambda: site.store.add(f"{scales}.positive", positive))
    dequantised = site.emit("DequantizeLinear", [codes, known], axis=len(outer), block_size=length)
    if zeros is None and signs is None:
        return BlockWeights(dequantised, None, shape)
    points = None if zeros is None else _points(site.stored(zeros), bits, (*outer, count), by_column)

    def parts() -> Iterator[Array]:
        """(middle - zero) · scale, and |scale| where codes are turned."""
        rows = values.reshape(-1, count)
        step = max(1, PART_BYTES // (8 * count))
        for start in range(0, len(rows), step):
            scale = rows[start : start + step].astype(np.float64)
            part = np.zeros_like(scale) if signs is None else np.maximum(-scale, 0)
            if points is not None:
                zero = points[start : start + step]
                zero = unpacked(zero, bits)[:, :count] if zero.dtype == np.uint8 else zero
                part += (2.0 ** (bits - 1) - zero.astype(np.float64)) * scale
            yield part.astype(values.dtype)

    correction = site.store.made_once(
        ("correction", weight, scales, zeros),
        lambda: site.store.add_in_parts(f"{weight}.correction", site.dtype(scales), (*outer, count), parts()),
    )
    return BlockWeights(dequantised, correction, shape)


def _points(zeros: Array, bits: int, shape: tuple[int, ...], by_column: bool) -> Array:
    """Zero points as [all columns, ...]: uint8 that hold those of several blocks, or numbers."""
    if by_column and zeros.dtype == np.uint8:
        return unpacked(zeros, bits)[..., : shape[-2]].reshape(-1, 1).astype(np.int16)
    return zeros.reshape(math.prod(shape[:-1]), -1)
