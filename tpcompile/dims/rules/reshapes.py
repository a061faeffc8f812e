"""Operators that only rearrange axes. What sizes they are given become local; what stands there as −1 or 0 stays."""

from collections.abc import Sequence

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation


@rule("Transpose", linear=(0,))
def transpose(op: Relation) -> None:
    """A permutation of axes."""
    x, y = op.input(0), op.output()
    perm = op.node.attribute("perm") or list(reversed(range(len(x))))
    for position, axis in enumerate(perm):
        op.pair(x[axis], y[position])


def _squeezed(op: Relation, many: Sequence[Dim], few: Sequence[Dim], axes: set[int]) -> None:
    kept = [dim for axis, dim in enumerate(many) if axis not in axes]
    if len(kept) != len(few):
        raise NotCovered("the axes do not fit")
    for a, b in zip(kept, few, strict=True):
        op.pair(a, b)


def axes_of(op: Relation, rank: int) -> set[int] | None:
    """The axes given by attribute or operand 1, non-negative; None where none are given."""
    found = op.node.attribute("axes")
    if found is None and op.has(1):
        known = op.known(1)
        if known is None:
            raise NotCovered("its axes are computed")
        found = known[0].reshape(-1).tolist()
    return None if found is None else {int(axis) % rank for axis in found}


@rule("Unsqueeze", linear=(0,))
def unsqueeze(op: Relation) -> None:
    """Axes of size 1 appear."""
    y = op.output()
    axes = axes_of(op, len(y))
    _squeezed(op, y, op.input(0), axes or set())


@rule("Squeeze", linear=(0,))
def squeeze(op: Relation) -> None:
    """Axes of size 1 go."""
    x = op.input(0)
    axes = axes_of(op, len(x))
    if axes is None:  # spelled out where cut: a rank's part of another axis may have size 1 as well
        units = [axis for axis, dim in enumerate(x) if dim.unit]
        axes = set(units)
        if op.node.version < 13:
            op.local_attribute("axes", lambda cut, rank: units, *x)
        else:
            entries = {k: (lambda cut, rank, axis=axis: axis) for k, axis in enumerate(units)}
            op.local_entries(1, len(units), entries, *x)
    _squeezed(op, x, op.output(), axes)


@rule("Reshape", linear=(0,))
def reshape(op: Relation) -> None:
    """Row-major regrouping: 4096 becomes heads × head size, and the other way round."""
    regroup(op, op.input(0), op.output())
    op.scaled_shape(1, op.output())


@rule("Flatten", linear=(0,))
def flatten(op: Relation) -> None:
    """All axes become two."""
    regroup(op, op.input(0), op.output())


def regroup(op: Relation, left: Sequence[Dim], right: Sequence[Dim]) -> None:
    """Pair the smallest runs of axes on both sides whose products are equal in every sample."""
    i = j = 0
    while i < len(left) or j < len(right):
        a, b = list(left[i : i + 1]), list(right[j : j + 1])
        i, j = i + len(a), j + len(b)
        while (p := _product(a, left)) != (q := _product(b, right)):
            if all(x <= y for x, y in zip(p, q, strict=True)) and i < len(left):
                a.append(left[i])
                i += 1
            elif j < len(right):
                b.append(right[j])
                j += 1
            elif i < len(left):
                a.append(left[i])
                i += 1
            else:
                raise NotCovered("input and output differ in size")
        if a and b:
            op.pair_products(a, b)
        for dim in (*a, *b):
            if dim.unit:
                op.fresh(dim)


def _product(dims: Sequence[Dim], side: Sequence[Dim]) -> tuple[int, ...]:
    samples = len(side[0].sizes) if side else 2
    found = [1] * samples
    for dim in dims:
        found = [a * b for a, b in zip(found, dim.sizes, strict=True)]
    return tuple(found)


@rule("Expand")
def expand(op: Relation) -> None:
    """Sizes of 1 become n: a fresh dim, of which each rank makes its part. A sum is reduced while it is small."""
    x, y = op.input(0), op.output()
    for dim, out in zip(reversed(x), reversed(y), strict=False):
        if dim.sizes == out.sizes:
            op.pair(dim, out)
        elif dim.unit:
            op.fresh(out)
        else:
            raise NotCovered("sizes do not broadcast")
    for out in y[: len(y) - len(x)]:
        op.fresh(out)
    known = op.known(1)
    if known is None:
        raise NotCovered("the target shape is not known")
    length = len(known[0])
    op.scaled_shape(1, y[len(y) - length :])


@rule("Tile")
def tile(op: Relation) -> None:
    """Whole copies one after the other: the copies are the outer factor of the result."""
    x, y = op.input(0), op.output()
    known = op.known(1)
    if known is None:
        raise NotCovered("the repeats are computed")
    for axis, (dim, out) in enumerate(zip(x, y, strict=True)):
        repeats = tuple(int(k[axis]) for k in known)
        if set(repeats) == {1}:
            op.pair(dim, out)
        elif dim.unit:
            op.whole(out, "the copies a Tile makes")
        else:
            copies = Dim(repeats)
            op.whole(copies, "the copies a Tile makes")
            op.pair(op.product(copies, dim), out)


@rule("ConstantOfShape")
def constant_of_shape(op: Relation) -> None:
    """A fresh value, of which each rank makes its part."""
    for dim in op.output():
        op.fresh(dim)
    op.scaled_shape(0, op.output())


@rule("Range")
def sequence(op: Relation) -> None:
    """Each rank makes all of it and takes its part."""
    for dim in op.output():
        op.whole(dim, "a Range counts from its start")
