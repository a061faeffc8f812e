"""Losses: over classes of which each rank has some, none is gathered."""

from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation

NONE = 0
"""torch's number for a loss that is not reduced."""


@rule("cross_entropy_loss", domain="aten")
def cross_entropy(op: Relation) -> None:
    """Classes may be cut: ranks agree on the largest logit, the sum of exponentials and the logit of the target."""
    x, target = op.input(0), op.input(1)
    if len(x) != 2 or len(target) != 1 or op.has(2):
        raise NotCovered("it is not one of rows of logits with one class each, all classes weighing the same")
    op.pair(x[0], target[0])
    if op.node.attribute("reduction", 1) == NONE:
        op.pair(x[0], op.output()[0])
    else:
        op.whole(x[0], "the loss is one of all rows")
    op.spreads(x[1])
