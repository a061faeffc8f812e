"""Products and lookups of weights of few bits with a scale for each block: they keep their bits in the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tpcompile.targets.lowering.packed import PART_BYTES, codes_of_words, signed_codes, unpacked, words
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Array, Site


@lowering("com.microsoft", "MatMulNBits")
def matmul_in_blocks(site: Site) -> str:
    """MatMul with weights dequantised from signed codes; zero points are a second, small product.

    x · ((codes - zeros) · scales) = x · ((codes - middle) · scales) + (x summed over each block) · ((middle - zeros) ·
    scales). The first is the form for which TensorRT has kernels; the second has one row for a whole block.
    """
    x, weight = site.input(0), site.input(1)
    bits, length = site.attribute("bits", 4), site.attribute("block_size")
    if site.attribute("weight_prepacked", 0):
        raise NotLowered("its weight is packed for one kind of device")
    n, count, blob = (site.size(weight, axis) for axis in range(site.rank(weight)))
    if blob * 8 != length * bits:
        raise NotLowered("its weight is not in blocks of bytes")
    if site.has(4):
        raise NotLowered("its rows are in another order")
    zeros = site.input(3) if site.has(3) else None
    weights = in_blocks(site, weight, site.input(2), zeros, bits, (n, count, length))
    rank, k = site.rank(x), site.attribute("K")
    if k < count * length:
        pads = [0] * (2 * rank - 1) + [count * length - k]
        x = site.emit("Pad", [x, site.integers(*pads)])
    y = site.emit("MatMul", [x, site.transpose(weights.dequantised, 1, 0)])
    if weights.correction:
        blocks = site.reshape(x, *[0] * (rank - 1), count, length)
        sums = site.reduce("ReduceSum", blocks, rank, keepdims=False)
        y = site.emit("Add", [y, site.emit("MatMul", [sums, site.transpose(weights.correction, 1, 0)])])
    return site.emit("Add", [y, site.input(5)]) if site.has(5) else y


@dataclass(frozen=True)
class InBlocks:
    """Weights [..., columns, rows] = `dequantised` + `correction` [..., columns, blocks] on each row of a block."""

    dequantised: str
    correction: str | None


def in_blocks(site: Site, weight: str, scales: str, zeros: str | None, bits: int, shape: tuple[int, ...]) -> InBlocks:
    """Weights of stored unsigned codes in bytes; `shape` is [..., columns, blocks, codes in a block].

    Where a weight of 8 bits has a scale below 0, which TensorRT refuses, it is (-1 - code) · |scale| + |scale|.
    """
    *outer, count, length = shape
    values = site.stored(scales).reshape(*outer, count)
    below = np.asarray(values < 0)
    turned = below if bits == 8 and below.any() else None
    codes = signed_codes(
        site,
        weight,
        bits,
        (*outer, count * length),
        length * bits // 8,
        None if turned is None else turned.reshape(-1),
    )
    known = site.store.view(scales, site.dtype(scales), (*outer, count))
    if turned is not None:
        known = site.store.made_once(("positive", scales), lambda: site.store.add(f"{scales}.positive", np.abs(values)))
    dequantised = site.emit("DequantizeLinear", [codes, known], axis=len(outer), block_size=length)
    if zeros is None and turned is None:
        return InBlocks(dequantised, None)

    def parts() -> Iterator[Array]:
        """(middle - zero) · scale, and |scale| where codes are turned."""
        given = None if zeros is None else site.stored(zeros).reshape(-1, site.stored(zeros).size // math.prod(outer))
        rows = values.reshape(-1, count)
        step = max(1, PART_BYTES // (8 * count))
        for start in range(0, len(rows), step):
            scale = rows[start : start + step].astype(np.float64)
            part = np.maximum(-scale, 0) if turned is not None else np.zeros_like(scale)
            if given is not None:
                zero = np.asarray(given[start : start + step])
                zero = unpacked(zero, bits)[:, :count] if zero.dtype == np.uint8 else zero
                part += (2.0 ** (bits - 1) - zero.astype(np.float64)) * scale
            yield part.astype(values.dtype)

    correction = site.store.made_once(
        ("correction", scales, zeros),
        lambda: site.store.add_in_parts(f"{weight}.correction", site.dtype(scales), (*outer, count), parts()),
    )
    return InBlocks(dequantised, correction)


@lowering("com.microsoft", "GatherBlockQuantized")
def gather_in_blocks(site: Site) -> str:
    """The lookup first, of codes, scales and zero points; then only what was looked up is dequantised."""
    table, ids, scales = site.input(0), site.input(1), site.input(2)
    rank, gained = site.rank(table), site.rank(ids) - 1
    axis, blocked = site.attribute("gather_axis", 0) % rank, site.attribute("quantize_axis", 1) % rank
    if axis == rank - 1 or axis == blocked:
        raise NotLowered("the numbers of a byte belong to several rows")
    length = site.attribute("block_size", 128)
    codes = _looked_up(site, table, axis)
    scale = site.emit("Gather", [scales, ids], axis=axis)
    place = blocked + gained * (blocked > axis)
    size = site.size(table, blocked)
    if site.dtype(table) == "uint8" and blocked == rank - 1:
        size *= 8 // site.attribute("bits", 4)
    block_of_each = site.store.made_once(
        ("block of each", size, length),
        lambda: site.store.add("block_of_each", (np.arange(size) // length).astype(np.int32)),
    )
    kind = site.dtype(scales)
    values = site.cast(codes, kind)
    if site.has(3):
        zeros = site.cast(_looked_up(site, site.input(3), axis, site.size(scales, rank - 1)), kind)
        values = site.emit("Sub", [values, site.emit("Gather", [zeros, block_of_each], axis=place)])
    elif site.dtype(table) == "uint8":
        values = site.emit("Sub", [values, site.constant(1 << (site.attribute("bits", 4) - 1), kind)])
    return site.emit("Mul", [values, site.emit("Gather", [scale, block_of_each], axis=place)])


def _looked_up(site: Site, table: str, axis: int, length: int | None = None) -> str:
    """The int64 codes of what is looked up in a packed table; `length` of them in each row if not all."""
    kind, ids = site.dtype(table), site.input(1)
    if kind not in ("uint8", "int4", "uint4"):
        raise NotLowered(f"its numbers are {kind}")
    *rows, last = (site.size(table, k) for k in range(site.rank(table)))
    bits = site.attribute("bits", 4) if kind == "uint8" else 4
    in_row = last * (8 // bits if kind == "uint8" else 1)
    if in_row * bits % 8:
        raise NotLowered("a row ends within a byte")
    stored = words(site, table, tuple(rows), in_row * bits // 8)
    found = site.emit("Gather", [stored, ids], axis=axis)
    rank = len(rows) + site.rank(ids)
    codes = codes_of_words(site, found, rank, bits, length or in_row, -(-in_row * bits // 32))
    if kind == "int4":  # 8 … 15 stand for -8 … -1
        eight = site.constant(8, "int64")
        moved = site.emit("Mod", [site.emit("Add", [codes, eight]), site.constant(16, "int64")])
        codes = site.emit("Sub", [moved, eight])
    return codes
