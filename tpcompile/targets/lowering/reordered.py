"""Weights whose rows belong to blocks in an order of their own: rows that share a scale are brought together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tpcompile.targets.lowering.packed import PART_BYTES, unpacked
from tpcompile.targets.lowering.registry import NotLowered
from tpcompile.targets.lowering.site import Array, Site


@dataclass(frozen=True)
class Operands:
    """A product in blocks: x [..., blocks · length], and the stored operands of `blocks` blocks."""

    x: str
    weight: str
    scales: str
    zeros: str | None
    blocks: int


def brought_together(site: Site, given: Operands, order: str, shape: tuple[int, int, int], bits: int) -> Operands:
    """Operands in which every block is of rows that share a scale, `order` [rows or more] being each row's old block.

    A block that is not full is filled up with a zero behind x. `shape` is [columns, blocks, length].
    """
    if given.zeros is not None:  # whose order the operator's implementations do not agree on
        raise NotLowered("its rows are in another order, and there are zero points")
    columns, count, length = shape
    rows, rank = site.attribute("K"), site.rank(site.input(0))
    blocks = site.stored(order).reshape(-1)[:rows]
    slots, sources = [], []
    for block in np.unique(blocks):
        members = np.flatnonzero(blocks == block)
        for start in range(0, len(members), length):
            part = members[start : start + length]
            slots.append(np.pad(part, (0, length - len(part)), constant_values=rows))
            sources.append(block)
    places = np.concatenate(slots)
    x = given.x
    if (places == rows).any():
        x = site.emit("Pad", [x, site.integers(*[0] * (2 * rank - 1), 1)])
    key = (order, length)
    chosen = site.store.made_once(("places", *key), lambda: site.store.add(f"{order}.places", places.astype(np.int64)))
    x = site.emit("Gather", [x, chosen], axis=rank - 1)
    data = site.store.bytes_of(given.weight).reshape(columns, -1)
    behind = np.minimum(places, rows - 1)

    def parts() -> Iterator[Array]:
        step = max(1, PART_BYTES // (count * length))
        for start in range(0, columns, step):
            yield _packed(unpacked(data[start : start + step], bits)[:, behind], bits)

    weight = site.store.made_once(
        ("moved", given.weight, *key),
        lambda: site.store.add_in_parts(
            f"{given.weight}.moved", "uint8", (columns, len(sources), length * bits // 8), parts()
        ),
    )
    scales = site.stored(given.scales).reshape(columns, count)
    moved = site.store.made_once(
        (given.scales, *key), lambda: site.store.add(f"{given.scales}.moved", np.ascontiguousarray(scales[:, sources]))
    )
    return Operands(x, weight, moved, None, len(sources))


def _packed(codes: Array, bits: int) -> Array:
    """Codes along the last axis as bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: Array = np.bitwise_or.reduce(codes.reshape(*codes.shape[:-1], -1, 8 // bits) << shifts, axis=-1)
    return packed
