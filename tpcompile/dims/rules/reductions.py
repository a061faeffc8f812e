"""Operators that reduce axes."""

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import Relation
from tpcompile.dims.rules.reshapes import axes_of


@rule("ReduceSum ReduceMean", linear=(0,))
def reduce_sum(op: Relation) -> None:
    """A sum over a cut axis is a partial sum; a mean is one of means weighted by each rank's part."""
    for dim in reduced(op):
        op.sums(dim, mean=op.node.op == "ReduceMean")


@rule("ReduceL1 ReduceSumSquare")
def reduce_sizes(op: Relation) -> None:
    """A sum over a cut axis as well, but of a nonlinear function: partial sums are reduced before it."""
    for dim in reduced(op):
        op.sums(dim)


@rule("ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSum ReduceLogSumExp")
def reduce_whole(op: Relation) -> None:
    """Other reductions need the axis whole."""
    for k in range(len(op.node.outputs)):
        for dim in reduced(op, k):
            op.whole(dim, f"{op.node.op} reduces it")


def reduced(op: Relation, output: int = 0) -> list[Dim]:
    """Pair the axes that stay; returns the dims that are reduced."""
    x, y = op.input(0), op.output(output)
    axes = axes_of(op, len(x))
    if axes is None or (not axes and not op.node.attribute("noop_with_empty_axes", 0)):
        axes = set() if op.node.attribute("noop_with_empty_axes", 0) else set(range(len(x)))
    keep = op.node.attribute("keepdims", 1)
    targets = [dim for axis, dim in enumerate(y) if axis not in axes] if keep else y
    for dim, out in zip((dim for axis, dim in enumerate(x) if axis not in axes), targets, strict=True):
        op.pair(dim, out)
    return [dim for axis, dim in enumerate(x) if axis in axes]
