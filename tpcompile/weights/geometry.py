"""How a part lies in its tensor's bytes: as long runs, or as columns of short rows.

A tensor is read row-major, so a part is a list of byte runs. A cut of the first axis gives few long runs, which are
copied as they are. A cut of a later axis gives many short ones that repeat from row to row: then the tensor is read
as `rows` of `row_bytes`, and each row's columns are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpcompile.weights.ranges import Part, Range, Ranges, cut_axes, join, size_of

LONG_BYTES = 256 * 1024
"""Runs of this mean length are copied one by one: a system call costs less than the copy."""


@dataclass(frozen=True)
class Columns:
    """`count` pieces of a row, `length` bytes each and `stride` bytes apart, from byte `start`."""

    start: int
    length: int
    stride: int
    count: int


@dataclass(frozen=True)
class Grid:
    """A part seen as columns of rows: `columns` of each of `rows`, `width` bytes of a row in all."""

    rows: Ranges
    columns: tuple[Columns, ...]
    width: int


@dataclass(frozen=True)
class View:
    """A tensor seen as rows: everything from `axis` on is a row of `row_bytes`; `inner_bits` is one index of `axis`."""

    axis: int
    row_bytes: int
    inner_bits: int


def on_whole_bytes(shape: tuple[int, ...], parts: Sequence[Part], bits: int) -> bool:
    """Whether every piece of every part starts and ends between two bytes."""
    for part in parts:
        for axis in cut_axes(shape, part):
            inner_bits = math.prod(shape[axis + 1 :]) * bits
            cuts = (at for piece in part.axes[axis] or () for at in piece)
            if math.prod(shape) * bits % 8 or any(at * inner_bits % 8 for at in (*cuts, shape[axis])):
                return False
    return True


def view_of(shape: tuple[int, ...], parts: Sequence[Part], bits: int) -> View:
    """The tensor as rows that begin at the last axis that any of `parts` cuts."""
    axis = max((axis for part in parts for axis in cut_axes(shape, part)), default=0)
    return View(axis, math.prod(shape[axis:]) * bits // 8, math.prod(shape[axis + 1 :]) * bits)


def grid_of(shape: tuple[int, ...], part: Part, view: View) -> Grid:
    """The part as columns of the rows of `view`."""
    rows = flat_ranges(shape[: view.axis], part.axes[: view.axis])
    columns = in_bytes(flat_ranges(shape[view.axis :][:1], part.axes[view.axis :][:1]), view.inner_bits)
    return Grid(rows, tuple(even_columns(columns)), size_of(columns))


def runs_of(shape: tuple[int, ...], part: Part, view: View) -> Ranges:
    """The part as runs of the tensor's bytes, in the order they are stored."""
    return in_bytes(flat_ranges(shape[: view.axis + 1], part.axes[: view.axis + 1]), view.inner_bits)


def mean_run_bytes(grid: Grid, view: View) -> float:
    """The mean length of the part's runs; rows held whole and side by side are one run."""
    if grid.width == view.row_bytes and len(grid.columns) == 1:
        return size_of(grid.rows) * view.row_bytes / max(1, len(grid.rows))
    return grid.width / max(1, sum(columns.count for columns in grid.columns))


def flat_ranges(shape: tuple[int, ...], entries: Sequence[Ranges | None]) -> Ranges:
    """Ranges of the flattened index of the axes `shape`, of which `entries` are held."""
    ranges: Ranges = ((0, 1),)
    for size, entry in zip(shape, entries, strict=True):
        if not size:
            return ()
        if entry is None or entry == ((0, size),):
            ranges = tuple((start * size, stop * size) for start, stop in ranges)
        else:
            ranges = join(
                (index * size + start, index * size + stop)
                for first, last in ranges
                for index in range(first, last)
                for start, stop in entry
            )
    return ranges


def in_bytes(ranges: Ranges, bits: int) -> Ranges:
    """Element ranges as byte ranges, for elements of `bits` bits."""
    return tuple((start * bits // 8, stop * bits // 8) for start, stop in ranges) if bits else ()


def even_columns(ranges: Sequence[Range]) -> Iterator[Columns]:
    """`ranges`, in their order, as few groups of equally long and equally spaced pieces."""
    first = 0
    while first < len(ranges):
        start, stop = ranges[first]
        length, stride, last = stop - start, stop - start, first + 1
        if last < len(ranges):
            stride = ranges[last][0] - start
        while last < len(ranges) and ranges[last] == (at := start + (last - first) * stride, at + length):
            last += 1
        yield Columns(start, length, stride, last - first)
        first = last
