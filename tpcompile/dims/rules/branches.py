"""Branches: what an If makes is what one of its branches makes, so that both must lie alike."""

from tpcompile.dims.registry import rule
from tpcompile.dims.relation import Relation


@rule("If")
def branches(op: Relation) -> None:
    """Axes of equal size line up with those of both branches; others depend on the condition and need whole."""
    count = len(op.node.outputs)
    for k, output in enumerate(op.node.outputs):
        if output is None:
            continue
        ends = [op.input(1 + k + branch * count) for branch in range(len(op.node.regions))]
        for dims in zip(op.output(k), *ends, strict=True):
            if len({dim.sizes for dim in dims}) == 1:
                for dim in dims[1:]:
                    op.pair(dim, dims[0])
            else:
                for dim in dims:
                    op.whole(dim, "its branches differ in this size")
