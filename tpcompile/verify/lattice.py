"""How a value lies on the ranks, in the layout checker's own small words.

axis     which indices of the whole axis each rank holds, in order
Lies     one axis description per axis, and of what sums it is a share (none: a finished value)
VARIES   each rank has its own value by intent: offsets, masks, local sizes
UNKNOWN  not decided; nothing is concluded from it
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

from tpcompile.verify.files import Array

ANY, PADDING = -1, -2


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of a value on all ranks.

    `sizes` are the whole axis as a row-major product; None is a factor of unknown size along which all entries are
    alike (an Expand). `held[rank]` has one row per local index: its coordinate in each factor, ANY where alike,
    PADDING where junk.
    """

    sizes: tuple[int | None, ...]
    held: tuple[Array, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(rows) for rows in self.held)

    @cached_property
    def flat(self) -> tuple[int, tuple[Array, ...]] | None:
        """The whole size and each rank's indices; None where a factor is of unknown size."""
        if None in self.sizes:
            return None
        sizes = [size for size in self.sizes if size is not None]
        steps = np.array([math.prod(sizes[at + 1 :]) for at in range(len(sizes))], np.int64)
        return math.prod(sizes), tuple(
            np.where((rows == PADDING).any(axis=1), PADDING, rows @ steps) for rows in self.held
        )

    @cached_property
    def whole(self) -> bool:
        return self.flat is not None and all(np.array_equal(index, np.arange(self.flat[0])) for index in self.flat[1])

    @property
    def alike(self) -> bool:
        return self.sizes == (None,)

    @cached_property
    def complete(self) -> bool:
        """All of it on every rank: whole, alike, or a product of such factors."""
        if self.flat is not None:
            return self.whole
        known = [at for at, size in enumerate(self.sizes) if size is not None]
        return all(np.array_equal(self.held[0], rows) for rows in self.held) and all(
            len(np.unique(self.held[0][:, at])) == self.sizes[at] for at in known
        )

    @property
    def unit(self) -> bool:
        """One entry that stands for all: broadcasts against any axis."""
        return (self.whole or self.alike) and set(self.lengths) == {1}

    def __str__(self) -> str:
        if self.whole or self.flat is None:
            return f"{self.flat[0]} whole" if self.flat else f"{list(self.lengths)} alike"
        return f"{self.flat[0]} cut {'|'.join(short(index) for index in self.flat[1])}"


def short(index: Array) -> str:
    """Indices in a few signs: 0-3,8-11."""
    runs = np.split(index, np.flatnonzero(np.diff(index) != 1) + 1) if index.size else []
    texts = [f"{run[0]}" if run.size == 1 else f"{run[0]}-{run[-1]}" for run in runs[:3]]
    return ",".join(texts) + ("…" if len(runs) > 3 else "")


def whole(size: int, tp: int) -> Axis:
    return cut(size, [np.arange(size)] * tp)


def cut(size: int, held: Sequence[Array]) -> Axis:
    return Axis((size,), tuple(np.asarray(index, np.int64).reshape(-1, 1) for index in held))


def alike(lengths: Sequence[int]) -> Axis:
    return Axis((None,), tuple(np.full((length, 1), ANY) for length in lengths))


def meet(a: Axis, b: Axis) -> Axis | None:
    """The one axis that both describe; None where they hold different indices or this cannot be told."""
    if a.lengths != b.lengths:
        return None
    if a.alike or b.alike:
        return b if a.alike else a
    if a.flat and b.flat:
        same = a.flat[0] == b.flat[0] and all(map(np.array_equal, a.flat[1], b.flat[1]))
        return a if same else None
    if a.flat is None and b.flat is None:
        return a if a.sizes == b.sizes and all(map(np.array_equal, a.held, b.held)) else None
    known, loose = (a, b) if a.flat else (b, a)
    assert known.flat is not None
    size, held = known.flat
    for sizes in factorizations(size, loose.sizes):
        coordinates = [np.stack(np.unravel_index(np.maximum(index, 0), sizes), axis=1) for index in held]
        if all(((rows == mine) | (rows == ANY)).all() for rows, mine in zip(loose.held, coordinates, strict=True)):
            return known
    return None


def factorizations(size: int, factors: Sequence[int | None]) -> Iterator[tuple[int, ...]]:
    """Every way to give the unknown `factors` a size so that the product is `size`."""
    if not factors:
        if size == 1:
            yield ()
        return
    choices = (factors[0],) if factors[0] is not None else _divisors(size)
    for first in choices:
        if size % first == 0:
            yield from ((first, *rest) for rest in factorizations(size // first, factors[1:]))


@cache
def _divisors(size: int) -> tuple[int, ...]:
    small = [d for d in range(1, math.isqrt(size) + 1) if size % d == 0]
    return tuple(sorted({*small, *(size // d for d in small)}))


def select(axis: Axis, chosen: Sequence[Array]) -> Axis:
    """The axis after each rank took the local indices `chosen[rank]`, in that order.

    What all ranks take alike from a whole axis is a new whole axis; so is the union of what they take from a cut one.
    """
    rows = tuple(held[index] for held, index in zip(axis.held, chosen, strict=True))
    if axis.flat is None:
        return Axis(axis.sizes, rows)
    same = all(np.array_equal(chosen[0], index) for index in chosen)
    if axis.whole and same:
        return whole(len(chosen[0]), len(chosen))
    size, flats = axis.flat
    taken = [index[mine] for index, mine in zip(flats, chosen, strict=True)]
    union = np.unique(np.concatenate(taken))
    union = union[union >= 0]
    if union.size == size:
        return cut(size, taken)
    return cut(union.size, [np.where(index < 0, PADDING, np.searchsorted(union, index)) for index in taken])


def joined(axes: Sequence[Axis]) -> Axis:
    """Axes one after the other, as a Concat makes them. Every one must be of known size."""
    starts, total = [], 0
    for axis in axes:
        assert axis.flat is not None
        starts.append(total)
        total += axis.flat[0]
    tp = len(axes[0].held)
    flats = [axis.flat[1] for axis in axes if axis.flat is not None]
    return cut(
        total,
        [
            np.concatenate([np.where(f[r] < 0, PADDING, f[r] + s) for f, s in zip(flats, starts, strict=True)])
            for r in range(tp)
        ],
    )


def merged(axes: Sequence[Axis]) -> Axis:
    """Neighbouring axes as one, row-major."""
    sizes = tuple(size for axis in axes for size in axis.sizes)
    held = []
    for rank in range(len(axes[0].held)):
        grids = np.indices([axis.lengths[rank] for axis in axes]).reshape(len(axes), -1)
        held.append(np.concatenate([axis.held[rank][grid] for axis, grid in zip(axes, grids, strict=True)], axis=1))
    return simplified(Axis(sizes, tuple(held)))


def simplified(axis: Axis) -> Axis:
    return cut(*axis.flat) if axis.flat else (alike(axis.lengths) if all(size is None for size in axis.sizes) else axis)


def divided(axis: Axis, lengths: Sequence[Sequence[int]], wanted: Sequence[int] = ()) -> list[Axis] | None:
    """One axis as several, of local `lengths[rank]`: every rank must hold a box, of runs where it can; else None.

    Where several ways fit, the one whose whole sizes are `wanted` is taken.
    """
    tp, count = len(axis.held), len(lengths[0])
    if axis.flat is None:
        return _divided_between_factors(axis, lengths)
    size, flats = axis.flat
    if any((index < 0).any() for index in flats):
        return None
    best: tuple[tuple[bool, int, tuple[int, ...]], list[Axis]] | None = None
    for sizes in factorizations(size, [None] * count):
        if any(sizes[at] < lengths[rank][at] for rank in range(tp) for at in range(count)):
            continue
        held: list[list[Array]] = [[] for _ in range(count)]
        for rank in range(tp):
            grids = [grid.reshape(lengths[rank]) for grid in np.unravel_index(flats[rank], sizes)]
            for at, grid in enumerate(grids):
                line = np.moveaxis(grid, at, 0).reshape(grid.shape[at], -1)
                if line.shape[1] and not (line == line[:, :1]).all():
                    break
                held[at].append(line[:, 0] if line.shape[1] else line.reshape(-1))
            else:
                continue
            break
        else:
            broken = sum(bool((np.diff(index) != 1).any()) for lines in held for index in lines)
            rank_of_way = sizes != tuple(wanted), broken, sizes[::-1]  # few breaks, then cuts as far left as can be
            if best is None or rank_of_way < best[0]:
                best = rank_of_way, [cut(sizes[at], held[at]) for at in range(count)]
    return best[1] if best else None


def _divided_between_factors(axis: Axis, lengths: Sequence[Sequence[int]]) -> list[Axis] | None:
    """Cut a product with factors of unknown size where the factors meet."""
    found, start = [], 0
    tp = len(axis.held)
    extent = [[_extent(axis.held[rank], lengths[rank], at) for at in range(len(axis.sizes))] for rank in range(tp)]
    if any(extent[rank] is None for rank in range(tp)) or any(value is None for row in extent for value in row):
        return None
    for at in range(len(lengths[0])):
        goal, now, stop = [mine[at] for mine in lengths], [1] * tp, start
        while now != goal and stop < len(axis.sizes):
            now = [have * (extent[rank][stop] or 1) for rank, have in enumerate(now)]
            stop += 1
        if now != goal:
            return None
        if stop == start:
            found.append(whole(1, tp))
            continue
        rest = [math.prod(mine[at + 1 :]) for mine in lengths]
        rows = [axis.held[rank][:: rest[rank]][: goal[rank], start:stop] for rank in range(tp)]
        found.append(simplified(Axis(axis.sizes[start:stop], tuple(rows))))
        start = stop
    return found if start == len(axis.sizes) else None


def _extent(rows: Array, lengths: Sequence[int], factor: int) -> int | None:
    """How many local indices a factor has; told for the alike ones by what the others leave."""
    if (rows[:, factor] != ANY).all():
        return len(np.unique(rows[:, factor]))
    others = [len(np.unique(rows[:, at])) for at in range(rows.shape[1]) if at != factor and (rows[:, at] != ANY).all()]
    if len(others) != rows.shape[1] - 1:
        return None
    return len(rows) // max(1, math.prod(others))


@dataclass(frozen=True, eq=False)
class Lookup:
    """Rows taken from a cut table: `rows[rank]` their numbers in the whole table, `ids` the numbers asked for."""

    rows: tuple[Array, ...]
    owners: tuple[int, ...]
    ids: Array | None


Shares = frozenset[tuple[int | None, ...]]
"""Per pending sum, what each rank adds: ranks with one number add the same term; None adds zero."""


@dataclass(frozen=True, eq=False)
class Lies:
    """Where the parts of a value lie; `shares` not empty: a partial value, to be reduced by `reduce`."""

    axes: tuple[Axis, ...]
    shares: Shares = field(default_factory=frozenset)
    reduce: str = "sum"
    lookup: Lookup | None = None

    @property
    def finished(self) -> bool:
        return not self.shares and self.lookup is None

    @property
    def whole(self) -> bool:
        return self.finished and all(axis.whole for axis in self.axes)

    @property
    def settled(self) -> bool:
        """The same on all ranks as far as its axes go."""
        return self.finished and all(axis.complete for axis in self.axes)

    def __str__(self) -> str:
        parts = [f"axis {at}: {axis}" for at, axis in enumerate(self.axes) if not axis.whole]
        parts += [f"partial ({self.reduce})"] if self.shares else []
        parts += ["an unmasked lookup"] if self.lookup else []
        return "; ".join(parts) or "whole"


@dataclass(frozen=True, eq=False)
class Stacked:
    """What all ranks have of a partial value, along a new first axis, on every rank: to be reduced over it by `reduce`.

    `axes` and `shares` are those of the partial value.
    """

    axes: tuple[Axis, ...]
    shares: Shares
    reduce: str
    value = "the parts of a partial value beside each other"


class Free(enum.Enum):
    VARIES = "its own on each rank"
    UNKNOWN = "not decided"


State = Lies | Stacked | Free


def whole_value(shape: Sequence[int], tp: int) -> Lies:
    return Lies(tuple(whole(size, tp) for size in shape))


def shares_of(axis: Axis) -> Shares | str:
    """What a sum over `axis` leaves: nothing where each rank has all of it; a text where terms overlap or lack."""
    if axis.whole:
        return frozenset()
    if axis.flat is None or any((index < 0).any() for index in axis.flat[1]):
        return "an axis whose indices are not known"
    sets = [frozenset(index.tolist()) for index in axis.flat[1]]
    kinds = list(dict.fromkeys(sets))
    if len(kinds) == 1 and len(kinds[0]) == axis.flat[0]:
        return frozenset()
    if sum(map(len, kinds)) != axis.flat[0] or len(frozenset().union(*kinds)) != axis.flat[0]:
        return f"an axis whose indices overlap or lack between ranks ({axis})"
    return frozenset({tuple(kinds.index(mine) for mine in sets)})
