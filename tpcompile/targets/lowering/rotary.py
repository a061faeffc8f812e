"""Rotary embedding: pairs of a head's features turn by angles that follow from a token's position.

Letters used in all files on attention: b batch, s queries, t keys, h heads, d the size of a head.
"""

from __future__ import annotations

import numpy as np

from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site


def turned(site: Site, x: str, cosines: str, sines: str, size: int, width: int, *, interleaved: bool) -> str:
    """`x` [., ., ., size], the first `width` features of its last axis turned.

    Args:
        site: where nodes are emitted.
        x: a value of four axes.
        cosines: broadcastable to [., ., ., width / 2].
        sines: likewise.
        size: of the last axis.
        width: the number of features that turn, even.
        interleaved: pairs are neighbours; otherwise a feature of the first half of `width` and one of the second.
    """
    half = width // 2
    if interleaved:
        x, *rest = site.split(x, 3, [width, size - width]) if width < size else [x]
        pairs = site.split(site.reshape(x, 0, 0, 0, half, 2), 4, [1, 1])
        first, second = (site.squeeze(part, 4) for part in pairs)
    else:
        first, second, *rest = site.split(x, 3, [half, half, *([size - width] if width < size else [])])
    made = [
        site.emit("Sub", [site.emit("Mul", [first, cosines]), site.emit("Mul", [second, sines])]),
        site.emit("Add", [site.emit("Mul", [second, cosines]), site.emit("Mul", [first, sines])]),
    ]
    if interleaved:
        both = site.emit("Concat", [site.unsqueeze(part, 4) for part in made], axis=4)
        made = [site.reshape(both, 0, 0, 0, width)]
    return site.emit("Concat", [*made, *rest], axis=3) if len(made) + len(rest) > 1 else made[0]


def count_to(site: Site, length: str) -> str:
    """[0, 1, … length - 1] as int64; `length` is one element."""
    zero, one = site.constant(0, "int64"), site.constant(1, "int64")
    return site.emit("Range", [zero, site.squeeze(length, 0), one])


def angles(site: Site, table: str, positions: str, heads_at: int) -> str:
    """Rows of a table [positions, width / 2], with an axis for heads."""
    return site.unsqueeze(site.emit("Gather", [table, positions], axis=0), heads_at)


@lowering("com.microsoft", "RotaryEmbedding")
def rotary_embedding(site: Site) -> str:
    """Positions are a row per sequence, or the first of all; a table's row holds the angles of a position."""
    _plain(site)
    positions = site.input(1)
    heads_at = 1 if site.rank(site.input(0)) == 4 else 2
    if site.rank(positions) < 2:  # the first position
        steps = count_to(site, site.length(site.input(0), heads_at ^ 3))
        positions = site.unsqueeze(site.emit("Add", [steps, positions]), 0)
    cosines, sines = (angles(site, site.input(k), positions, heads_at) for k in (2, 3))
    return _turn(site, cosines, sines, site.size(site.input(2), 1))


@lowering("com.microsoft", "MRotaryEmbedding")
def rotary_embedding_of_images(site: Site) -> str:
    """A token has three positions, of time, height and width; each angle goes by one of them."""
    _plain(site)
    time, height, width = site.attribute("mrope_section")
    half = site.size(site.input(2), 1)
    by = np.zeros(half, np.int64)  # 0 time, 1 height, 2 width
    if site.attribute("mrope_layout", 0):
        by[1 : 3 * height : 3], by[2 : 3 * width : 3] = 1, 2
    else:
        by[time : time + height], by[time + height :] = 1, 2
    streams = site.split(site.input(1), 0, [1, 1, 1])
    heads_at = 1 if site.rank(site.input(0)) == 4 else 2
    tables: list[str] = []
    for k in (2, 3):
        found, *others = (angles(site, site.input(k), site.squeeze(ids, 0), heads_at) for ids in streams)
        for number, other in enumerate(others, 1):
            found = site.emit("Where", [site.constant(by == number, "bool"), other, found])
        tables.append(found)
    cosines, sines = tables
    return _turn(site, cosines, sines, half)


@lowering("", "RotaryEmbedding")
def standard_rotary_embedding(site: Site) -> str:
    """As ONNX Runtime's, but the angles may come by token, [b, s, width / 2]."""
    heads_at = 1 if site.rank(site.input(0)) == 4 else 2
    if site.has(3):
        cosines, sines = (angles(site, site.input(k), site.input(3), heads_at) for k in (1, 2))
    else:
        cosines, sines = (site.unsqueeze(site.input(k), heads_at) for k in (1, 2))
    return _turn(site, cosines, sines, site.size(site.input(1), -1))


def _plain(site: Site) -> None:
    if site.attribute("is_packed_batching", 0):
        raise NotLowered("sequences of different lengths are packed")
    if site.attribute("scale", 1.0) != 1.0:
        raise NotLowered("a scale, which ONNX Runtime's kernels read differently")


def _turn(site: Site, cosines: str, sines: str, half: int) -> str:
    """The operand turned, in its own layout: [b, h, s, d] or [b, s, h·d]."""
    x, count, width = site.input(0), site.attribute("num_heads", 0), site.attribute("rotary_embedding_dim", 0)
    interleaved = bool(site.attribute("interleaved", 0))
    if site.rank(x) == 4:
        size = site.size(x, 3)
        return turned(site, x, cosines, sines, size, width or size, interleaved=interleaved)
    total = site.size(x, 2)
    size = total // count if count else 2 * half
    apart = site.reshape(x, 0, 0, total // size, size)
    made = turned(site, apart, cosines, sines, size, width or size, interleaved=interleaved)
    return site.reshape(made, 0, 0, total)
