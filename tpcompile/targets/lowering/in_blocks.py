"""Products and lookups of weights of few bits with a scale for each block: they keep their bits in the engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tpcompile.targets.lowering.block_weights import product_in_blocks, weights_in_blocks
from tpcompile.targets.lowering.packed import codes_of_words, words
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.reordered import Operands, brought_together
from tpcompile.targets.lowering.site import Site


@lowering("com.microsoft", "MatMulNBits")
def matmul_in_blocks(site: Site) -> str:
    """MatMul with weights that are dequantised from signed codes."""
    x, weight = site.input(0), site.input(1)
    bits, length = site.attribute("bits", 4), site.attribute("block_size")
    if site.attribute("weight_prepacked", 0):
        raise NotLowered("its weight is packed for one kind of device")
    if site.rank(weight) != 3 or site.size(weight, 2) * 8 != length * bits:
        raise NotLowered("its weight is not in blocks of bytes")
    n, count, _ = (site.size(weight, axis) for axis in range(3))
    rank, k = site.rank(x), site.attribute("K")
    given = Operands(x, weight, site.input(2), site.input(3) if site.has(3) else None, count)
    if site.has(4):
        given = brought_together(site, given, site.input(4), (n, count, length), bits)
    elif k < count * length:
        pads = [0] * (2 * rank - 1) + [count * length - k]
        given = replace(given, x=site.emit("Pad", [x, site.integers(*pads)]))
    shape = (n, given.blocks, length)
    weights = weights_in_blocks(site, given.weight, given.scales, given.zeros, bits, shape)
    y = product_in_blocks(site, given.x, rank, weights)
    return site.emit("Add", [y, site.input(5)]) if site.has(5) else y


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
