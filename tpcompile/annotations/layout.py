"""How a tensor lies on devices, in one form for what annotations say and what plans do.

An annotated axis is a row-major product of sizes, each in so many shards ("N blocks are divided into M shards" in
onnx.proto); shards of all axes are numbered with the last axis fastest, and the list of devices says who has which
(onnx, docs/proposals/0006-ONNXMultiDeviceProposal.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim, factors, leaves, root


@dataclass(frozen=True)
class Factor:
    """Part of an axis: `size` elements (None where that depends on inputs) in `shards` shards.

    `held` says which shard each device of the layout has, in the order of its devices; it is empty for one shard.
    """

    size: int | None
    shards: int = 1
    held: tuple[int, ...] = ()

    @property
    def even(self) -> bool:
        return self.shards == 1 or (self.size is not None and self.size % self.shards == 0)

    def __str__(self) -> str:
        size = "?" if self.size is None else str(self.size)
        return size if self.shards == 1 else f"{size} in {self.shards}"


@dataclass(frozen=True)
class Layout:
    """Where a tensor lies: on `devices` (ascending), cut along `axes` (axis → its factors), whole where there is none.

    Two layouts are equal where every device holds the same of the tensor.
    """

    devices: tuple[int, ...]
    axes: tuple[tuple[int, tuple[Factor, ...]], ...] = field(default=())

    @property
    def whole(self) -> bool:
        return not self.axes

    def __str__(self) -> str:
        if self.whole:
            return "whole"
        return ", ".join(f"axis {axis}: {' × '.join(map(str, found))}" for axis, found in self.axes)


class Unsayable(Exception):
    """Annotations have no words for how an axis is cut; the text says how it is."""


def layout(devices: Sequence[int], axes: Iterable[tuple[int, Sequence[Factor]]]) -> Layout:
    """A layout in its one form: axes in order, those that are not cut left out."""
    kept = [(axis, normal(found)) for axis, found in axes]
    return Layout(tuple(devices), tuple(sorted((axis, found) for axis, found in kept if found)))


def normal(found: Sequence[Factor]) -> tuple[Factor, ...]:
    """Neighbours that are cut as one are one; () where nothing is cut."""
    merged: list[Factor] = []
    for factor in found:
        if factor.size == 1 and factor.shards == 1:
            continue
        together = _merged(merged[-1], factor) if merged else None
        if together is None:
            merged.append(factor)
        else:
            merged[-1] = together
    return tuple(merged) if any(factor.shards > 1 for factor in merged) else ()


def _merged(outer: Factor, inner: Factor) -> Factor | None:
    """Two neighbours as one factor, None where their shards are no runs of elements."""
    size = None if outer.size is None or inner.size is None else outer.size * inner.size
    if outer.shards == inner.shards == 1:
        return Factor(size)
    if inner.shards == 1 and outer.even:
        return Factor(size, outer.shards, outer.held)
    if outer.shards > 1 and outer.size == outer.shards and inner.even:
        held = tuple(a * inner.shards + b for a, b in zip(outer.held, inner.held, strict=True))
        return Factor(size, outer.shards * inner.shards, held or outer.held)
    return None


def split(factor: Factor, outer_size: int) -> tuple[Factor, Factor] | None:
    """The same cut as that of two factors, the outer of `outer_size`; None where shards would be no runs of it."""
    if factor.size is not None and factor.size % outer_size:
        return None
    rest = None if factor.size is None else factor.size // outer_size
    if factor.shards == 1:
        return Factor(outer_size), Factor(rest)
    if outer_size % factor.shards == 0:
        return Factor(outer_size, factor.shards, factor.held), Factor(rest)
    if factor.shards % outer_size:
        return None
    inner = factor.shards // outer_size
    outer_held, inner_held = zip(*(divmod(shard, inner) for shard in factor.held), strict=True)
    return Factor(outer_size, outer_size, tuple(outer_held)), Factor(rest, inner, tuple(inner_held))


# -- from dims that are cut ------------------------------------------


@dataclass(frozen=True)
class Share:
    """How a leaf is cut: the factors it is said to be a product of, one where its shards are runs."""

    factors: tuple[Factor, ...]

    @property
    def shards(self) -> int:
        """Of all factors together."""
        return math.prod(factor.shards for factor in self.factors)

    @property
    def held(self) -> tuple[int, ...]:
        """Which of these each device has, in the order of the layout's devices."""
        found: tuple[int, ...] = ()
        for factor in self.factors:
            if factor.shards > 1:
                inner = factor.held
                found = tuple(a * factor.shards + b for a, b in zip(found, inner, strict=True)) if found else inner
        return found


def planned(axes: Sequence[Dim], cut: Cut) -> Layout:
    """How a value of these axes lies under a cut.

    Raises:
        Unsayable: an axis is cut in a way that shards of equal factors do not describe.
    """
    shares = {leaf: _share(leaf, cut) for dim in axes for leaf in cut.leaves(dim)}
    return laid(axes, shares, range(cut.mesh.tp))


def _share(leaf: Dim, cut: Cut) -> Share:
    mesh, axes = cut.mesh, cut.of(leaf)
    degree, (_, moved) = mesh.degree(axes), cut.turns.get(root(leaf), (0, 0))
    held = tuple((mesh.coordinate(rank, axes) + moved) % degree for rank in range(mesh.tp))
    return Share((Factor(leaf.size, degree, held),))


def laid(axes: Sequence[Dim], shares: Mapping[Dim, Share], devices: Sequence[int]) -> Layout:
    """How a value of these axes lies on devices where leaves are cut as `shares` says; raises as `planned`."""
    return layout(devices, [(axis, list(_said(dim, shares))) for axis, dim in enumerate(axes)])


def _said(dim: Dim, shares: Mapping[Dim, Share]) -> Iterator[Factor]:
    """The factors of an axis."""
    for part in factors(dim):
        top = root(part)
        if shares.keys().isdisjoint(leaves(top)):
            yield Factor(top.size if top.static else None)
        elif top.kind == "leaf":
            yield from _leaf(shares[top], top.size if top.static else None, top.grain)
        elif top.kind == "blocks":
            counted = root(top.parts[0])
            if counted.kind != "leaf" or len(shares[counted].factors) > 1:
                raise Unsayable("blocks are counted over parts of it")
            yield from _leaf(shares[counted], top.size, counted.grain // top.length)
        else:
            parts = [normal(list(_said(part, shares))) for part in top.parts]
            if any(part != parts[0] for part in parts) or len({part.sizes for part in top.parts}) > 1:
                sizes = " | ".join(repr(part.size) if part.static else "?" for part in top.parts)
                raise Unsayable(f"it is {sizes}, one after the other, each cut for itself")
            yield Factor(len(top.parts))
            yield from parts[0]


def _leaf(share: Share, size: int | None, grain: int) -> Iterator[Factor]:
    """A cut leaf of `size`, which begins new blocks at multiples of `grain` only."""
    first = share.factors[0]
    if len(share.factors) > 1:
        yield from share.factors
    elif grain == 1 or size is None or size % (grain * first.shards) == 0:
        yield Factor(size, first.shards, first.held)
    elif size % grain == 0:
        yield Factor(size // grain, first.shards, first.held)
        yield Factor(grain)
    else:
        raise Unsayable(f"it is cut where blocks of {grain} of its {size} begin")
