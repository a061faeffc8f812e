"""Losses. Over classes of which each rank has some, none is gathered."""

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
    y = op.output()
    if op.node.attribute("reduction", 1) == NONE:
        op.pair(x[0], y[0])
    else:
        op.whole(x[0], "the loss is one of all rows")
    op.spreads(x[1])


@rule(
    "binary_cross_entropy binary_cross_entropy_with_logits huber_loss kl_div l1_loss mse_loss smooth_l1_loss "
    "soft_margin_loss",
    domain="aten",
)
def loss(op: Relation) -> None:
    """Element by element; its mean is one of means weighted by each rank's part."""
    x, reduction = op.input(0), op.node.attribute("reduction", 1)
    for k in range(1, len(op.node.inputs)):
        for dim, other in zip(reversed(op.input(k)), reversed(x), strict=False):
            op.pair_or_broadcast(dim, other)
    if len(op.input(1)) != len(x) or any(a.sizes != b.sizes for a, b in zip(x, op.input(1), strict=True)):
        raise NotCovered("its operands broadcast to each other")
    for dim in x if reduction else ():
        op.sums(dim, mean=reduction == 1)
    for dim, out in zip(x, op.output(), strict=not reduction):
        op.pair(dim, out)
