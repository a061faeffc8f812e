"""Cross entropy of logits of which each rank has some classes: `torch.ops.tpcompile.cross_entropy`.

Ranks agree on the largest logit of each row, then on the sum of exponentials, the target's logit and the sum of logits;
the gradient of a rank's own logits needs nothing from the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tpcompile.torch.collectives import all_reduce

NONE, MEAN = 0, 1


@torch.library.custom_op("tpcompile::cross_entropy", mutates_args=())
def cross_entropy(
    x: Tensor,
    target: Tensor,
    group: str,
    start: int,
    classes: int,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss as torch.nn.functional.cross_entropy has it, and this rank's part of the probabilities.

    Args:
        x: logits [rows, classes of this rank].
        target: int64 [rows], classes counted over all ranks.
        group: the ranks that share the classes.
        start: this rank's first class.
        classes: how many there are in all.
        reduction: 0 none, 1 mean, 2 sum, as torch numbers them.
        ignore_index: targets that count nothing.
        label_smoothing: 0 … 1, the share of the target that all classes get alike.
    """
    logits = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    largest = all_reduce(logits.amax(-1), group, "max")
    shifted = logits - largest[:, None]
    powers = shifted.exp()
    mine, place, valid = _places(logits, target, start, ignore_index)
    picked = torch.where(mine, shifted.gather(1, place[:, None])[:, 0], shifted.new_zeros(()))
    parts = [powers.sum(-1), picked, *([shifted.sum(-1)] if label_smoothing else [])]
    sums = all_reduce(torch.stack(parts), group)
    total = sums[0].log()
    loss = total - sums[1]
    if label_smoothing:
        loss = (1 - label_smoothing) * loss + label_smoothing * (total - sums[2] / classes)
    loss = torch.where(valid, loss, loss.new_zeros(()))
    if reduction != NONE:
        loss = loss.sum() / (valid.sum() if reduction == MEAN else 1)
    return loss.to(x.dtype), powers / sums[0][:, None]


def _places(logits: Tensor, target: Tensor, start: int, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which targets this rank has, where they stand among its classes (0 where it has not), and which count."""
    valid = target != ignore_index
    mine = valid & (target >= start) & (target < start + logits.shape[-1])
    return mine, torch.where(mine, target - start, 0), valid


@cross_entropy.register_fake
def _(
    x: Tensor,
    target: Tensor,
    group: str,
    start: int,
    classes: int,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return x.new_empty(x.shape[:1] if reduction == NONE else ()), torch.empty_like(x, dtype=wide)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, target, _, start, classes, reduction, ignore_index, label_smoothing = inputs
    ctx.arguments = (x.dtype, start, classes, reduction, ignore_index, label_smoothing)
    ctx.save_for_backward(target, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    """softmax(x) − target, for the classes of this rank; rows that are ignored have none."""
    dtype, start, classes, reduction, ignore_index, label_smoothing = ctx.arguments
    target, probabilities = ctx.saved_tensors
    mine, place, valid = _places(probabilities, target, start, ignore_index)
    hit = mine.to(probabilities.dtype) * (1.0 - label_smoothing)
    found = probabilities - label_smoothing / classes
    found = found.scatter_add(1, place[:, None], -hit[:, None])
    each = gradient.to(found.dtype) / (valid.sum() if reduction == MEAN else 1)
    found = found * torch.where(valid, each, found.new_zeros(()))[:, None]
    return found.to(dtype), None, None, None, None, None, None, None


cross_entropy.register_autograd(_gradient, setup_context=_keep)
