"""Who holds what: the only arithmetic of cutting.

The degree tp is split into its prime sub-axes; a leaf may be cut over some of them. `index(dim, rank)` says which
elements of an axis a rank holds, in the order it holds them: weights, caches, local slices and gathers all use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tpcompile.dims.dim import Dim, leaves, root

SubAxes = tuple[int, ...]
"""Positions of prime sub-axes of the mesh, ascending; () where nothing is cut."""
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mesh:
    """The arrangement of `tp` ranks over prime sub-axes, the first the most significant digit of the rank."""

    tp: int

    @cached_property
    def primes(self) -> tuple[int, ...]:
        """The prime factors of tp in ascending order: 12 → (2, 2, 3)."""
        found, rest, divisor = [], self.tp, 2
        while rest > 1:
            while rest % divisor == 0:
                found.append(divisor)
                rest //= divisor
            divisor += 1
        return tuple(found)

    @property
    def all_axes(self) -> SubAxes:
        return tuple(range(len(self.primes)))

    def degree(self, axes: SubAxes) -> int:
        """Into how many blocks a cut over `axes` divides."""
        found = 1
        for axis in axes:
            found *= self.primes[axis]
        return found

    def digits(self, rank: int) -> tuple[int, ...]:
        """The coordinate of a rank on each sub-axis."""
        found: list[int] = []
        for prime in reversed(self.primes):
            rank, digit = divmod(rank, prime)
            found.append(digit)
        return tuple(reversed(found))

    def coordinate(self, rank: int, axes: SubAxes) -> int:
        """Which block of a cut over `axes` belongs to `rank`."""
        digits, found = self.digits(rank), 0
        for axis in axes:
            found = found * self.primes[axis] + digits[axis]
        return found

    def groups(self, axes: SubAxes) -> list[list[int]]:
        """The ranks that differ only on `axes`, each group ordered by coordinate."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.tp):
            digits = self.digits(rank)
            found.setdefault(tuple(d for axis, d in enumerate(digits) if axis not in axes), []).append(rank)
        return [sorted(group, key=lambda rank: self.coordinate(rank, axes)) for group in found.values()]


def block(size: int, degree: int, coordinate: int, grain: int = 1, turn: int = 0) -> tuple[int, int]:
    """(start, stop) of one of `degree` blocks of `size` elements, as even as can be, the larger ones first.

    Blocks start at multiples of `grain`; the last grain of all may be a shorter one. With a `turn` the larger blocks
    are those from that coordinate on, around the end to the beginning.
    """
    quotient, remainder = divmod(-(-size // grain), degree)
    start = coordinate * quotient
    if remainder:
        start += sum((k - turn) % degree < remainder for k in range(coordinate))
    stop = start + quotient + ((coordinate - turn) % degree < remainder)
    return min(start * grain, size), min(stop * grain, size)


@dataclass
class Cut:
    """Which leaves are cut over which sub-axes of a mesh, and what follows for any dim.

    `turns` are those of uneven leaves whose larger blocks are not the first ones: (the turn of `block`, by how many
    coordinates the blocks themselves are moved on).
    """

    mesh: Mesh
    axes: Mapping[Dim, SubAxes]
    turns: Mapping[Dim, tuple[int, int]] = field(default_factory=dict)
    _indices: dict[tuple[Dim, int], Indices] = field(default_factory=dict, repr=False)
    _restricted: dict[frozenset[Dim], Cut] = field(default_factory=dict, repr=False)

    def of(self, leaf: Dim) -> SubAxes:
        return self.axes.get(root(leaf), ())

    def block(self, leaf: Dim, rank: int) -> tuple[int, int]:
        """(start, stop) of what a rank holds of a leaf."""
        axes = self.of(leaf)
        if not axes:
            return 0, leaf.size
        (turn, moved), degree = self.turns.get(root(leaf), (0, 0)), self.mesh.degree(axes)
        return block(leaf.size, degree, (self.mesh.coordinate(rank, axes) + moved) % degree, leaf.grain, turn)

    def even(self, leaf: Dim) -> bool:
        """Whether all blocks of a cut leaf are of one size."""
        return leaf.size % (self.mesh.degree(self.of(leaf)) * leaf.grain) == 0

    def leaves(self, dim: Dim) -> list[Dim]:
        """The leaves of `dim` that are cut, each once, from left to right."""
        return list(dict.fromkeys(leaf for leaf in leaves(dim) if leaf in self.axes))

    def only(self, kept: frozenset[Dim]) -> Cut:
        """The same cut restricted to some leaves: what a value holds whose other leaves are whole."""
        if kept not in self._restricted:
            axes = {leaf: axes for leaf, axes in self.axes.items() if leaf in kept}
            self._restricted[kept] = Cut(self.mesh, axes, self.turns)
        return self._restricted[kept]

    def index(self, dim: Dim, rank: int) -> Indices:
        """The elements of a static `dim` that `rank` holds, in order.

        leaf: a block; product: the outer product of its parts' indices; sum: their concatenation with offsets; blocks:
        those that the elements fall into.
        """
        top = root(dim)
        key = (top, rank)
        if key not in self._indices:
            self._indices[key] = self._index(top, rank)
        return self._indices[key]

    def _index(self, top: Dim, rank: int) -> Indices:
        if top.kind == "leaf":
            return np.arange(*self.block(top, rank), dtype=np.int64)
        if top.kind == "blocks":
            return np.unique(self.index(top.parts[0], rank) // top.length)
        if top.kind == "product":
            found = np.zeros(1, dtype=np.int64)
            for part in top.parts:
                found = (found[:, None] * part.size + self.index(part, rank)[None, :]).reshape(-1)
            return found
        offset, pieces = 0, []
        for part in top.parts:
            pieces.append(self.index(part, rank) + offset)
            offset += part.size
        return np.concatenate(pieces)

    def local_size(self, dim: Dim, rank: int) -> int:
        """How many elements of a static dim a rank holds."""
        top = root(dim)
        if top.kind == "leaf":
            start, stop = self.block(top, rank)
            return stop - start
        sizes = [self.local_size(part, rank) for part in top.parts]
        if top.kind == "blocks":
            return -(-sizes[0] // top.length)
        if top.kind == "sum":
            return sum(sizes)
        found = 1
        for size in sizes:
            found *= size
        return found

    def ratio(self, dim: Dim, rank: int) -> tuple[int, int]:
        """(local, global) of the static, cut part of a dim whose other factors may be dynamic.

        Raises:
            ValueError: a cut leaf stands in a sum together with dynamic sizes, where no ratio exists.
        """
        top = root(dim)
        if not self.leaves(top):
            return 1, 1
        if top.static:
            return self.local_size(top, rank), top.size
        if top.kind != "product":
            raise ValueError(f"no fixed ratio for {top!r}")
        local, whole = 1, 1
        for part in top.parts:
            a, b = self.ratio(part, rank)
            local, whole = local * a, whole * b
        return local, whole

    def covered(self, dim: Dim) -> frozenset[int]:
        """The sub-axes over which *every* element of the dim is cut: all segments of a sum, any factor of a product."""
        top = root(dim)
        if top.kind == "leaf":
            return frozenset(self.of(top))
        found = [self.covered(part) for part in top.parts]
        return frozenset.intersection(*found) if top.kind == "sum" else frozenset.union(*found)

    def touched(self, dim: Dim) -> frozenset[int]:
        """The sub-axes over which any element of the dim is cut."""
        return frozenset(axis for leaf in self.leaves(dim) for axis in self.of(leaf))
