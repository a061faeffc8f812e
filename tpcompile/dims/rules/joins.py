"""Operators that join and take apart along an axis: the axis is the sum of the parts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation

Known = tuple[np.ndarray[Any, Any], ...] | None
LENGTHS_DEPEND = "where it is joined or taken apart depends on the inputs"


@rule("Concat")
def concat(op: Relation) -> None:
    """The axis is the concatenation of the parts' axes; each may be cut on its own."""
    y = op.output()
    axis = op.axis("axis", len(y))
    parts = [op.input(k) for k in range(len(op.node.inputs))]
    for x in parts:
        for k, (dim, out) in enumerate(zip(x, y, strict=True)):
            if k != axis:
                op.pair(dim, out)
    join(op, y[axis], [x[axis] for x in parts])


@rule("Split")
def split(op: Relation) -> None:
    """The axis is the concatenation of the results' axes. A sum is reduced before: else once for each result."""
    x = op.input(0)
    axis = op.axis("axis", len(x), 0)
    parts = [op.output(k) for k in range(len(op.node.outputs))]
    for y in parts:
        for k, (dim, out) in enumerate(zip(x, y, strict=True)):
            if k != axis:
                op.pair(dim, out)
    pieces = [y[axis] for y in parts]
    if join(op, x[axis], pieces):
        if op.node.version < 13:  # the lengths are an attribute
            op.local_attribute("split", lambda cut, rank: [cut.local_size(piece, rank) for piece in pieces], *pieces)
        else:
            entries = {k: _size(piece) for k, piece in enumerate(pieces)}
            op.local_entries(1, len(pieces), entries, *pieces, drops=("num_outputs",))


def join(op: Relation, whole: Dim, parts: Sequence[Dim]) -> bool:
    """Relate an axis to its concatenated parts; False where lengths depend on inputs and nothing may be cut."""
    if all(dim.static for dim in (whole, *parts)):
        op.pair(whole, op.concatenation(*[part for part in parts if part.size] or parts))
        for part in parts:
            if not part.size:
                op.fresh(part)
        return True
    for dim in (whole, *parts):
        op.whole(dim, LENGTHS_DEPEND)
    return False


def _size(dim: Dim) -> Callable[[Cut, int], int]:
    return lambda cut, rank: cut.local_size(dim, rank)


def take(
    op: Relation, dim: Dim, out: Dim | None, start: int, stop: int
) -> tuple[Callable[[Cut, int], int], Callable[[Cut, int], int], tuple[Dim, ...]]:
    """Relate a static axis to the elements [start, stop) taken from it; `out` None where the axis goes (one element).

    Returns the local start and stop, and the dims whose cut moves them.
    """
    samples = len(dim.sizes)
    before, after = Dim((start,) * samples), Dim((dim.size - stop,) * samples)
    middle = out if out is not None else Dim((1,) * samples)
    op.pair(dim, op.concatenation(*[part for part in (before, middle, after) if part.size]))

    def local_start(cut: Cut, rank: int) -> int:
        return cut.local_size(before, rank) if start else 0

    def local_stop(cut: Cut, rank: int) -> int:
        return local_start(cut, rank) + cut.local_size(middle, rank)

    return local_start, local_stop, (dim,)


@rule("Slice", linear=(0,))
def slice_(op: Relation) -> None:
    """A contiguous slice of a static axis is one part of its sum, every n-th element one of n; others need it whole."""
    x, y = op.input(0), op.output()
    known = [op.known(k) if op.has(k) else None for k in range(1, 5)]
    if (op.has(4) and known[3] is None) or (op.has(3) and known[2] is None):
        raise NotCovered("its axes or steps are computed")
    count = len(known[0][0]) if known[0] is not None else len(known[2][0]) if known[2] is not None else 1
    axes = [int(a) % len(x) for a in known[2][0]] if known[2] is not None else list(range(count))
    steps = [int(s) for s in known[3][0]] if known[3] is not None else [1] * count
    for axis, (dim, out) in enumerate(zip(x, y, strict=True)):
        if axis not in axes:
            op.pair(dim, out)
            continue
        position = axes.index(axis)
        bounds = _bounds(known[0], known[1], position, dim) if steps[position] == 1 else None
        if dim.static and (_varies(op, 1, position) or _varies(op, 2, position)):
            bounds = None  # both samples may reach past the end where other inputs do not
        elif steps[position] > 1 and _takes_every(known[0], known[1], position, steps[position], dim):
            inner = Dim((steps[position],) * len(dim.sizes))
            op.whole(inner, f"one of every {steps[position]} elements is taken")
            op.pair(dim, op.product(out, inner))
            op.local_entries(2, count, {position: _size(dim)}, dim)
            continue
        if bounds is None or not dim.static:
            if bounds is not None and all(b == (0, size) for b, size in zip(bounds, dim.sizes, strict=True)):
                op.pair(dim, out)  # takes all of it
            else:
                op.whole(dim, LENGTHS_DEPEND)
                op.whole(out, LENGTHS_DEPEND)
        elif bounds[0] == (0, dim.size):
            op.pair(dim, out)
            if _reads_end(known[1], position, dim):
                op.local_entries(2, count, {position: _size(dim)}, dim)
        else:
            start, stop, when = take(op, dim, out, *bounds[0])
            op.local_entries(1, count, {position: start}, *when)
            op.local_entries(2, count, {position: stop}, *when)


def _bounds(starts: Known, stops: Known, position: int, dim: Dim) -> list[tuple[int, int]] | None:
    """(start, stop) within the axis, per sample."""
    if starts is None or stops is None:
        return None
    found = []
    for sample, size in enumerate(dim.sizes):
        start, stop, _ = slice(int(starts[sample][position]), int(stops[sample][position])).indices(size)
        found.append((start, max(start, stop)))
    if dim.static and any(bounds != found[0] for bounds in found):
        return None
    return found


def _takes_every(starts: Known, stops: Known, position: int, step: int, dim: Dim) -> bool:
    """Whether one of every `step` elements of a static axis is taken, to its end: gate and up columns in turn."""
    if starts is None or stops is None or not dim.static or dim.size % step:
        return False
    found = {
        slice(int(start[position]), int(stop[position]), step).indices(dim.size)[:2]
        for start, stop in zip(starts, stops, strict=True)
    }
    start, stop = next(iter(found))
    return len(found) == 1 and start < step and stop > dim.size - step + start


def _varies(op: Relation, operand: int, position: int) -> bool:
    """Whether an entry of a known operand depends on the inputs' sizes."""
    value = op.value(operand)
    return value is not None and value.varies is not None and bool(value.varies.reshape(-1)[position])


def _reads_end(stops: Known, position: int, dim: Dim) -> bool:
    """Whether the stop is spelled as the axis' own size (and not as "to the end")."""
    return stops is not None and any(0 <= int(stop[position]) <= dim.size for stop in stops)


@rule("Pad")
def pad(op: Relation) -> None:
    """Axes that get no padding are as they were."""
    x, y = op.input(0), op.output()
    known = op.known(1)
    axes = op.known(3)
    if known is None or (op.has(3) and axes is None):
        raise NotCovered("the padding is computed")
    which = [int(a) % len(x) for a in axes[0]] if axes is not None else list(range(len(x)))
    for axis, (dim, out) in enumerate(zip(x, y, strict=True)):
        padded = axis in which and any(
            int(k[which.index(axis)]) or int(k[which.index(axis) + len(which)]) for k in known
        )
        if padded:
            op.whole(dim, "a padded axis")
            op.whole(out, "a padded axis")
        else:
            op.pair(dim, out)
