"""What an annotation of an axis means for the dims that stand in it: which leaf is cut into how many shards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tpcompile.annotations.layout import Factor, Layout, Share, split
from tpcompile.dims.dim import Dim, factors, leaves, root


class Misfit(Exception):
    """The annotation cuts across the parts of an axis; the text names them."""


def shares(axes: Sequence[Dim], found: Layout) -> dict[Dim, Share]:
    """The leaves that a layout cuts.

    Raises:
        Misfit: it cuts an axis in a way that cuts no leaf.
    """
    cut: dict[Dim, Share] = {}
    for axis, parts in found.axes:
        try:
            match_axis(axes[axis], parts, cut)
        except Misfit as reason:
            raise Misfit(f"axis {axis} {reason}") from None
    return cut


def match_axis(dim: Dim, parts: Sequence[Factor], cut: dict[Dim, Share]) -> None:
    """Enter the leaves of an axis that `parts` cut into `cut`; raises Misfit where they cut no leaf."""
    whole = factors(dim)
    if len(whole) == 1 and root(whole[0]).kind == "leaf":
        _enter(root(whole[0]), parts, dim, cut)
        return
    unknown = [k for k, part in enumerate(parts) if part.size is None]
    if len(unknown) > 1:
        raise Misfit("has several sizes that depend on inputs")
    if not unknown:
        if not root(dim).static:
            if len(parts) > 1:
                raise Misfit(f"is {_spelled(dim)}, whose size depends on inputs")
            _contiguous(whole, parts[0], dim, cut)
        else:
            _aligned(whole, list(parts), dim, cut)
        return
    middle, before, after = parts[unknown[0]], list(parts[: unknown[0]]), list(parts[unknown[0] + 1 :])
    left, more = _reach(whole, before, dim, middle.shards == 1)
    count, rest = _reach(whole[::-1], after, dim, middle.shards == 1)
    right = len(whole) - count
    _aligned(whole[:left], [*before, Factor(more)], dim, cut)
    _aligned(whole[right:], [Factor(rest), *after], dim, cut)
    if middle.shards > 1:
        _contiguous(whole[left:right], middle, dim, cut)


def _reach(whole: Sequence[Dim], parts: Sequence[Factor], dim: Dim, beyond: bool) -> tuple[int, int]:
    """How many factors from the beginning on are of the size of all parts, and what they have of the part after.

    Raises:
        Misfit: they have of it though not `beyond`, or no number of factors has all the parts.
    """
    need, have, count = math.prod(part.size or 1 for part in parts), 1, 0
    while have < need and count < len(whole) and whole[count].static:
        have *= whole[count].size
        count += 1
    if have % need or (have > need and not beyond):
        raise _across(dim)
    return count, have // need


def _aligned(whole: list[Dim], parts: list[Factor], dim: Dim, cut: dict[Dim, Share]) -> None:
    """Walk over factors of an axis and parts of an annotation, both of one size in all, from the outermost."""
    todo, parts = list(whole), [part for part in parts if part.size != 1]
    while todo and parts:
        top, part = root(todo.pop(0)), parts[0]
        size = part.size or 1
        if size < top.size:
            _parts(top, _pop(parts, top.size, dim), dim, cut)
            continue
        if size > top.size:
            pair = split(part, top.size)
            if pair is None:
                raise _across(dim)
            part, parts[0] = pair
        else:
            parts.pop(0)
        if part.shards > 1:
            _enter(top, [part], dim, cut)


def _pop(parts: list[Factor], size: int, dim: Dim) -> list[Factor]:
    """Take parts that are of `size` together from the beginning of the list."""
    taken: list[Factor] = []
    while size > 1 and parts:
        part = parts.pop(0)
        if (part.size or 1) > size:
            pair = split(part, size)
            if pair is None:
                raise _across(dim)
            part, rest = pair
            parts.insert(0, rest)
        if size % (part.size or 1):
            raise _across(dim)
        taken.append(part)
        size //= part.size or 1
    return taken


def _parts(top: Dim, parts: Sequence[Factor], dim: Dim, cut: dict[Dim, Share]) -> None:
    """Several parts of an annotation in one factor: parts of a leaf, or of a sum of parts that are cut alike."""
    if all(part.shards == 1 for part in parts):
        return
    counted = root(top.parts[0]) if top.kind == "blocks" else top
    if top.kind == "leaf":
        _enter(top, parts, dim, cut)
        return
    if counted.kind == "leaf" and [part.shards for part in parts[1:]] == [1]:
        if parts[1].size != counted.grain // top.length:
            raise _across(dim)
        _enter(counted, parts[:1], dim, cut)
        return
    pair = split(parts[0], len(top.parts)) if top.kind == "sum" and (parts[0].size or 1) >= len(top.parts) else None
    if pair is None or pair[0].shards > 1 or len({part.sizes for part in top.parts}) > 1:
        raise _across(dim)
    for part in top.parts:
        _aligned(factors(part), [pair[1], *parts[1:]] if pair[1].size != 1 else list(parts[1:]), dim, cut)


def _contiguous(whole: Sequence[Dim], part: Factor, dim: Dim, cut: dict[Dim, Share]) -> None:
    """Runs of an axis whose size depends on inputs: its outermost factors are cut."""
    for place, factor in enumerate(whole):
        top = root(factor)
        if part.shards == 1:
            return
        if not top.static or place == len(whole) - 1:
            _enter(top, [part], dim, cut)
            return
        pair = split(Factor(None, part.shards, part.held), top.size)
        if pair is None:
            raise _across(dim)
        outer, part = pair
        _enter(top, [outer], dim, cut)


def _enter(top: Dim, parts: Sequence[Factor], dim: Dim, cut: dict[Dim, Share]) -> None:
    """A leaf, or what blocks are counted over, is cut so."""
    if top.kind == "blocks":
        top = root(top.parts[0])
    if top.kind != "leaf" or top not in set(leaves(dim)):
        raise _across(dim)
    if len(parts) == 1:
        parts = [Factor(top.size if top.static else None, parts[0].shards, parts[0].held)]
    cut[top] = Share(tuple(parts))


def _across(dim: Dim) -> Misfit:
    return Misfit(f"is {_spelled(dim)}: the shards go across these parts")


def _spelled(dim: Dim) -> str:
    """An axis with the parts that it has: "32 × 128", "4096 | 1024 | 1024"."""
    top = root(dim)
    if top.kind == "leaf":
        return str(top.size) if top.static else "a size of its own"
    if top.kind == "blocks":
        return f"{top.size} blocks"
    inside = [f"({_spelled(part)})" if root(part).kind in ("sum", "product") else _spelled(part) for part in top.parts]
    return (" × " if top.kind == "product" else " | ").join(inside)
