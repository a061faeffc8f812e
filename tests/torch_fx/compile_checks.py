"""torch.compile (inductor) around collectives, on two ranks: the numbers, gradients and traffic of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter

import torch
import torch._dynamo  # before ranks are forked: each would import it
import torch.distributed as dist
from torch import Tensor

from tests.torch_fx import on_ranks
from tests.torch_fx.collective_checks import of, ops, same, two_layers
from tpcompile.torch import groups
from tpcompile.torch.collectives import counted

ALL = "0,1"


def block(up: Tensor, down: Tensor, bias: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """All operators of a rank program, in a form that has gradients on every rank."""
    x = ops.copy(x, ALL)
    y = torch.tanh(x @ up.T) @ down.T + ops.once(bias, groups.current().rank == 0)
    y = ops.all_reduce(y, ALL)
    logits = ops.copy(y, ALL) @ table.T
    logits = logits - ops.all_reduce(logits.detach().amax(-1, keepdim=True), ALL, "max")
    total = ops.all_reduce(logits.exp().sum(-1), ALL)
    return total.log() + ops.all_gather(table, ALL).mean() + ops.broadcast(y, ALL, 1).sum()


def parts_of_block(rank: int) -> list[Tensor]:
    whole = [of(50, 14, 7) / 9, of(51, 5, 14) / 9, of(52, 5), of(53, 22, 5) / 9, of(54, 2, 3, 7)]
    return [whole[0].chunk(2)[rank], whole[1].chunk(2, 1)[rank], whole[2], whole[3].chunk(2)[rank], whole[4]]


def compare(function: Callable[..., Tensor], backend: str, parts: list[Tensor], sent_in_all: int) -> None:
    """Values, gradients and traffic of `function` on `parts`, compiled and eager."""
    found = []
    for run in (function, torch.compile(function, backend=backend, fullgraph=True)):
        leaves = [part.clone().requires_grad_() for part in parts]
        with counted() as sent:
            y = run(*leaves)
            y.square().mean().backward()
        found.append((y.detach(), [leaf.grad for leaf in leaves], sent))
    (eager, gradients, traffic), (compiled, others, again) = found
    same(compiled, eager, 1e-5)
    for other, gradient in zip(others, gradients, strict=True):
        assert other is not None and gradient is not None
        same(other, gradient, 1e-5)
    order = attrgetter("phase", "op", "nbytes")
    assert sorted(again, key=order) == sorted(traffic, key=order) and len(traffic) == sent_in_all


def check_every_operator_is_traced() -> None:
    rank = groups.use(2).rank
    assert rank == dist.get_rank()
    compare(block, "aot_eager", parts_of_block(rank), 7)


def check_inductor_compiles_two_layers() -> None:
    up, down, bias, _, x = parts_of_block(groups.current().rank)
    compare(partial(two_layers, on=ALL), "inductor", [up, down, bias, x], 2)


if __name__ == "__main__":
    on_ranks.main(globals())
