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
        starts, stops = _entries(known[0], position, dim), _entries(known[1], position, dim)
        varies = _varies(op, 1, position) or _varies(op, 2, position)
        start, stop, when = sliced(op, dim, out, starts, stops, steps[position], varies)
        for operand, local in ((1, start), (2, stop)):
            if local is not None:
                op.local_entries(operand, count, {position: local}, *when)


Bounds = Sequence[int | None] | None
"""Where a slice begins or ends in each sample, None for the axis' own end; None where that is computed."""
Local = Callable[[Cut, int], int]


def sliced(
    op: Relation, dim: Dim, out: Dim, starts: Bounds, stops: Bounds, step: int, varies: bool
) -> tuple[Local | None, Local | None, tuple[Dim, ...]]:
    """Relate an axis to a slice of it.

    `varies` says that where it begins or ends depends on the inputs, though samples may agree. Returns the local start
    and stop, None for what stays as it is, and the dims whose cut changes them.
    """
    bounds = _bounds(starts, stops, dim) if step == 1 else None
    if dim.static and varies:
        bounds = None  # both samples may reach past the end where other inputs do not
    elif step > 1 and _takes_every(starts, stops, step, dim):
        inner = Dim((step,) * len(dim.sizes))
        op.whole(inner, f"one of every {step} elements is taken")
        op.pair(dim, op.product(out, inner))
        return None, _size(dim), (dim,)
    if bounds is None or not dim.static:
        if bounds is not None and all(b == (0, size) for b, size in zip(bounds, dim.sizes, strict=True)):
            op.pair(dim, out)  # takes all of it
        else:
            op.whole(dim, LENGTHS_DEPEND)
            op.whole(out, LENGTHS_DEPEND)
        return None, None, ()
    if bounds[0] == (0, dim.size):
        op.pair(dim, out)
        return None, _size(dim) if _reads_end(stops, dim) else None, (dim,)
    return take(op, dim, out, *bounds[0])


def _entries(known: Known, position: int, dim: Dim) -> Bounds:
    return None if known is None else [int(known[k][position]) for k in range(len(dim.sizes))]


def _bounds(starts: Bounds, stops: Bounds, dim: Dim) -> list[tuple[int, int]] | None:
    """(start, stop) within the axis, per sample."""
    if starts is None or stops is None:
        return None
    found = []
    for size, first, last in zip(dim.sizes, starts, stops, strict=True):
        start, stop, _ = slice(first, last).indices(size)
        found.append((start, max(start, stop)))
    if dim.static and any(bounds != found[0] for bounds in found):
        return None
    return found


def _takes_every(starts: Bounds, stops: Bounds, step: int, dim: Dim) -> bool:
    """Whether one of every `step` elements of a static axis is taken, to its end: gate and up columns in turn."""
    if starts is None or stops is None or not dim.static or dim.size % step:
        return False
    found = {slice(*ends, step).indices(dim.size)[:2] for ends in zip(starts, stops, strict=True)}
    start, stop = next(iter(found))
    return len(found) == 1 and start < step and stop > dim.size - step + start


def _varies(op: Relation, operand: int, position: int) -> bool:
    """Whether an entry of a known operand depends on the inputs' sizes."""
    value = op.value(operand)
    return value is not None and value.varies is not None and bool(value.varies.reshape(-1)[position])


def _reads_end(stops: Bounds, dim: Dim) -> bool:
    """Whether the stop is spelled as the axis' own size (and not as "to the end")."""
    return stops is not None and any(stop is not None and 0 <= stop <= dim.size for stop in stops)


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
