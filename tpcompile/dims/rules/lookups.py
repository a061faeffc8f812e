"""Operators that pick elements by index: tables, selections, scatters."""

from collections.abc import Callable

from tpcompile.dims.cut import Cut
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import Lookup, NotCovered, Relation
from tpcompile.dims.rules.joins import take


@rule("Gather")
def gather(op: Relation) -> None:
    """A constant index takes one part of a sum; ids look up a table, masked where the table is cut (a partial sum)."""
    x, ids, y = op.input(0), op.input(1), op.output()
    axis = op.axis("axis", len(x), 0)
    for k, dim in enumerate(x[:axis]):
        op.pair(dim, y[k])
    for k, dim in enumerate(x[axis + 1 :]):
        op.pair(dim, y[axis + len(ids) + k])
    op.passes_partials(0)
    picked = _constant_run(op, x[axis].sizes) if x[axis].static else None
    if picked is not None and len(ids) <= 1:
        first, count = picked
        start, _, when = take(op, x[axis], y[axis] if ids else None, first, first + count)
        if ids:
            op.whole(ids[0], "several elements picked by a constant index")
        length = count if ids else 1

        def entry(k: int) -> Callable[[Cut, int], int]:
            return lambda cut, rank: start(cut, rank) + k

        op.local_entries(1, length if ids else 0, {k: entry(k) for k in range(length)}, *when)
        if ids and count > 1:
            op.whole(y[axis], "several elements picked by a constant index")
        return
    for k, dim in enumerate(ids):
        op.pair(dim, y[axis + k])
    table = op.value(0)
    if table is not None and x[axis].static and table.known is None:
        op.sums(x[axis])
        op.lookup = Lookup(axis)
    else:
        op.whole(x[axis], "elements picked by index")


def _constant_run(op: Relation, sizes: tuple[int, ...]) -> tuple[int, int] | None:
    """(first, count) where the index is the same run of neighbours in every sample."""
    known, index = op.known(1), op.value(1)
    if known is None or index is None or not index.fixed:
        return None
    found = []
    for array, size in zip(known, sizes, strict=True):
        flat = [int(i) % size for i in array.reshape(-1)]
        if not flat or flat != list(range(flat[0], flat[0] + len(flat))):
            return None
        found.append((flat[0], len(flat)))
    return found[0] if all(f == found[0] for f in found) else None


@rule("GatherElements")
def gather_elements(op: Relation) -> None:
    """All axes but the indexed one line up."""
    x, ids, y = op.input(0), op.input(1), op.output()
    axis = op.axis("axis", len(x), 0)
    for k, (dim, index, out) in enumerate(zip(x, ids, y, strict=True)):
        op.pair(index, out)
        if k == axis:
            op.whole(dim, "elements picked by index")
            op.whole(out, "elements picked by index")
        elif dim.sizes == index.sizes:
            op.pair(dim, index)
        else:
            op.whole(dim, "elements picked by index")
            op.whole(out, "elements picked by index")


@rule("GatherND")
def gather_nd(op: Relation) -> None:
    """Leading axes of the indices and trailing axes of the data make the result."""
    x, ids, y = op.input(0), op.input(1), op.output()
    batch = op.node.attribute("batch_dims", 0)
    if not ids[-1].static:
        raise NotCovered("the depth of its indices is not known")
    depth = ids[-1].size
    op.whole(ids[-1], "coordinates")
    for k in range(batch):
        op.pair(x[k], ids[k])
    for k, dim in enumerate(ids[:-1]):
        op.pair(dim, y[k])
    for k, dim in enumerate(x[batch + depth :]):
        op.pair(dim, y[len(ids) - 1 + k])
    picked = _constant_run(op, x[batch].sizes) if depth == 1 and not batch and x[0].static and len(ids) == 2 else None
    if picked is not None and picked[1] == 1:
        start, _, when = take(op, x[0], y[0], picked[0], picked[0] + 1)
        op.local_entries(1, 1, {0: start}, *when)
        return
    for dim in x[batch : batch + depth]:
        op.whole(dim, "elements picked by index")


@rule("ScatterND")
def scatter_nd(op: Relation) -> None:
    """Trailing axes that are not indexed line up; indexed ones need whole."""
    x, ids, updates, y = op.input(0), op.input(1), op.input(2), op.output()
    depth = ids[-1].size
    if not ids[-1].static:
        raise NotCovered("the depth of its indices is not known")
    for k, (dim, out) in enumerate(zip(x, y, strict=True)):
        op.pair(dim, out)
        if k < depth:
            op.whole(dim, "elements written by index")
    op.whole(ids[-1], "coordinates")
    for k, dim in enumerate(ids[:-1]):
        op.pair(dim, updates[k])
        op.whole(dim, "elements written by index")
    for k, dim in enumerate(x[depth:]):
        op.pair(dim, updates[len(ids) - 1 + k])


@rule("ScatterElements")
def scatter_elements(op: Relation) -> None:
    """All axes but the indexed one line up."""
    x, ids, updates, y = op.input(0), op.input(1), op.input(2), op.output()
    axis = op.axis("axis", len(x), 0)
    for k, (dim, index, update, out) in enumerate(zip(x, ids, updates, y, strict=True)):
        op.pair(dim, out)
        op.pair(index, update)
        if k != axis and dim.sizes == index.sizes:
            op.pair(dim, index)
        else:
            op.whole(dim, "elements written by index")
            op.whole(index, "elements written by index")


@rule("TensorScatter")
def tensor_scatter(op: Relation) -> None:
    """A cache written along one axis, at the place each sequence is at; the other axes line up."""
    x, updates, y = op.input(0), op.input(1), op.output()
    axis = op.axis("axis", len(x), -2)
    for k, (dim, update, out) in enumerate(zip(x, updates, y, strict=True)):
        op.pair(dim, out)
        if k == axis:
            op.whole(dim, "elements written by index")
            op.whole(update, "elements written by index")
        else:
            op.pair(update, out)
    if op.has(2):
        op.pair(op.input(2)[0], x[0])


@rule("OneHot")
def one_hot(op: Relation) -> None:
    """The axes of the indices, and a new one that needs whole."""
    ids, y = op.input(0), op.output()
    axis = op.axis("axis", len(y), -1)
    op.whole(y[axis], "each index picks its place in it")
    for dim, out in zip(ids, (out for k, out in enumerate(y) if k != axis), strict=True):
        op.pair(dim, out)


@rule("Compress")
def compress(op: Relation) -> None:
    """The axis that is picked from needs whole; without one everything does."""
    if op.node.attribute("axis") is None:
        raise NotCovered("it picks from the flattened tensor")
    x, y = op.input(0), op.output()
    axis = op.axis("axis", len(x))
    for k, (dim, out) in enumerate(zip(x, y, strict=True)):
        if k == axis:
            for whole in (dim, out, *op.input(1)):
                op.whole(whole, "elements picked by a mask")
        else:
            op.pair(dim, out)


@rule("ReverseSequence", linear=(0,))
def reverse_sequence(op: Relation) -> None:
    """Each sequence is turned by itself: its length needs whole."""
    op.same(0)
    op.whole(op.input(0)[op.node.attribute("time_axis", 0)], "a sequence is turned")
    op.pair(op.input(1)[0], op.input(0)[op.node.attribute("batch_axis", 1)])
