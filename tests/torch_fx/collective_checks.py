"""What four ranks do together, with `tpcompile.torch.collectives`: each compares with what one process computes.

Values are drawn alike on all ranks: `of(r)` is rank r's tensor, known to every rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.torch_fx import on_ranks
from tpcompile.errors import Refused
from tpcompile.torch import cross_entropy as _cross_entropy  # noqa: F401 - registers the operator
from tpcompile.torch import groups
from tpcompile.torch.collectives import counted

ALL, PAIRS = "0,1,2,3", {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
ops = torch.ops.tpcompile


def rank() -> int:
    return dist.get_rank()


def of(place: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rank `place`'s tensor: values of mixed sign, other ones on each rank."""
    generator = torch.Generator().manual_seed(100 + place)
    if dtype == torch.bool:
        return torch.rand(*shape, generator=generator) < 0.3
    if not dtype.is_floating_point:
        return torch.randint(-50, 50, shape, generator=generator).to(dtype)
    return (torch.randn(*shape, generator=generator) * 4).to(dtype)


def same(found: Tensor, wanted: Tensor, close: float = 0.0) -> None:
    torch.testing.assert_close(found, wanted, rtol=close, atol=close)


def refusal(call: Any) -> str:
    try:
        call()
    except Refused as refused:
        return str(refused)
    return "nothing was refused"


def check_without_use_it_is_refused() -> None:
    """First of all: here `use` was not called yet."""
    assert refusal(lambda: ops.all_reduce(torch.ones(3), ALL)) == (
        "TP750 tpcompile: a collective runs, and nothing says which processes are its group. "
        "Call tpcompile.torch.groups.use(tp, labels_of(program)) after init_process_group, in all processes"
    )


def check_processes_that_want_different_numbers_are_refused() -> None:
    text = refusal(lambda: groups.use(4 if rank() else 2))
    assert text == (
        "TP750 groups.use: processes want different numbers of ranks: 2, 4, 4, 4. "
        "Call it with the same tp in all processes"
    )


def check_each_process_gives_its_own_labels() -> None:
    made = groups.use(4, [PAIRS[rank()]])
    assert (made.tp, made.dp, made.rank, made.replica) == (4, 1, rank(), 0)
    assert set(made.by_label) == {ALL, PAIRS[rank()]}
    assert dist.get_process_group_ranks(made.by_label[PAIRS[rank()]]) == [rank() % 2, rank() % 2 + 2]
    assert made.data_parallel.size() == 1
    again = groups.use(4, [str(rank())])
    assert again.by_label[ALL] is made.by_label[ALL] and again.by_label[str(rank())].size() == 1


def check_sums_and_maxima() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32):
        close = {torch.bfloat16: 0.1, torch.float16: 0.01, torch.float32: 1e-5}.get(dtype, 0.0)
        parts = [of(place, 3, 5, dtype=dtype) for place in range(4)]
        same(ops.all_reduce(parts[rank()], ALL), torch.stack(parts).sum(0).to(dtype), close)
        same(ops.all_reduce(parts[rank()], ALL, "max"), torch.stack(parts).amax(0))
        pair = [parts[rank() % 2], parts[rank() % 2 + 2]]
        same(ops.all_reduce(parts[rank()], PAIRS[rank()]), pair[0] + pair[1], close)
    flags = [of(place, 40, dtype=torch.bool) for place in range(4)]
    same(ops.all_reduce(flags[rank()], ALL, "max"), torch.stack(flags).any(0))


def check_gathers_and_broadcasts() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        parts = [of(place, 3, 5, dtype=dtype) for place in range(4)]
        same(ops.all_gather(parts[rank()], ALL), torch.cat(parts))
        same(ops.all_gather(parts[rank()].T, PAIRS[rank()]), torch.cat([parts[rank() % 2].T, parts[rank() % 2 + 2].T]))
        same(ops.broadcast(parts[rank()], ALL, 2), parts[2])
        root = rank() % 2 + 2
        same(ops.broadcast(parts[rank()], PAIRS[rank()], root), parts[root])


def check_a_group_of_one_sends_nothing() -> None:
    mine = of(rank(), 3, 5)
    with counted() as sent:
        for made in (ops.all_reduce(mine, str(rank())), ops.all_gather(mine, str(rank())),
                     ops.broadcast(mine, str(rank()), rank())):  # fmt: skip
            same(made, mine)
            assert made.data_ptr() != mine.data_ptr()
    assert sent == []


def check_once_keeps_one_rank_and_gives_all_the_gradient() -> None:
    bias = of(9, 5).requires_grad_()
    same(ops.all_reduce(ops.once(bias, rank() == 2), ALL), bias.detach())
    weights = of(8, 5)
    (ops.all_reduce(ops.once(bias, rank() == 2), ALL) * weights).sum().backward()
    assert bias.grad is not None
    same(bias.grad, weights)


def two_layers(up: Tensor, down: Tensor, bias: Tensor, x: Tensor, on: str = "") -> Tensor:
    """A column-parallel and a row-parallel product; with `on` one rank's part of them, else the whole."""
    if on:
        x, bias = ops.copy(x, on), ops.once(bias, groups.position(on) == 0)
    y = torch.tanh(x @ up.T) @ down.T + bias
    return ops.all_reduce(y, on) if on else y


def check_gradients_of_two_layers() -> None:
    """Against one process: parts of cut weights get parts of the gradient, whole ones all of it, everywhere."""
    for label in (ALL, PAIRS[rank()]):
        ranks = groups.members(label)
        place = ranks.index(rank())
        whole = [of(50, 24, 7), of(51, 5, 24), of(52, 5), of(53, 2, 3, 7)]
        leaves = [tensor.clone().requires_grad_() for tensor in whole]
        (two_layers(*leaves) * of(54, 2, 3, 5)).sum().backward()
        mine = [whole[0].chunk(len(ranks))[place], whole[1].chunk(len(ranks), 1)[place], whole[2], whole[3]]
        mine = [tensor.clone().requires_grad_() for tensor in mine]
        with counted() as sent:
            (two_layers(*mine, on=label) * of(54, 2, 3, 5)).sum().backward()
        wanted = [leaf.grad for leaf in leaves]
        wanted[0], wanted[1] = wanted[0].chunk(len(ranks))[place], wanted[1].chunk(len(ranks), 1)[place]
        for found, gradient in zip(mine, wanted, strict=True):
            same(found.grad, gradient, 1e-4)
        assert [(item.op, item.nbytes, item.phase, item.group) for item in sent] == [
            ("all_reduce", 2 * 3 * 5 * 4, "forward", label), ("all_reduce", 2 * 3 * 7 * 4, "backward", label)
        ]  # fmt: skip


def check_complex_gradients_of_a_copy_are_summed() -> None:
    """Rotations by complex numbers (RoPE) have complex gradients."""
    whole = torch.complex(of(70, 3, 5), of(71, 3, 5)).requires_grad_()
    parts = [torch.complex(of(72 + place, 3, 5), of(76 + place, 3, 5)) for place in range(4)]
    (ops.copy(whole, ALL) * parts[rank()]).real.sum().backward()
    assert whole.grad is not None
    same(whole.grad, torch.stack(parts).sum(0).conj().resolve_conj(), 1e-5)


def check_gradient_of_a_gather() -> None:
    """Each rank gets its part of the gradient of the whole, once, and nothing is sent for it."""
    whole = of(60, 12, 5).requires_grad_()
    (whole.tanh() * of(61, 12, 5)).sum().backward()
    assert whole.grad is not None
    mine = whole.detach().chunk(4)[rank()].clone().requires_grad_()
    with counted() as sent:
        (ops.all_gather(mine, ALL).tanh() * of(61, 12, 5)).sum().backward()
    assert mine.grad is not None
    same(mine.grad, whole.grad.chunk(4)[rank()], 1e-6)
    assert [(item.op, item.nbytes, item.phase) for item in sent] == [("all_gather", 12 * 5 * 4, "forward")]


def check_second_gradients() -> None:
    """A penalty on gradients: conjugates of conjugates."""
    whole = of(62, 8, 5).requires_grad_()
    mine = whole.detach().chunk(4)[rank()].clone().requires_grad_()

    def penalty(rows: Tensor, leaf: Tensor, label: str = "") -> Tensor:
        x = ops.all_gather(rows, label) if label else rows
        (gradient,) = torch.autograd.grad((x**3).sum(), leaf, create_graph=True)
        total = ops.all_reduce((gradient**2).sum(), label) if label else (gradient**2).sum()
        return total

    penalty(whole, whole).backward()
    penalty(mine, mine, ALL).backward()
    assert whole.grad is not None and mine.grad is not None
    same(mine.grad, whole.grad.chunk(4)[rank()], 1e-2)


def check_a_maximum_and_a_broadcast_have_no_gradient() -> None:
    logits = of(rank(), 3, 5).requires_grad_()
    lowered = logits - ops.all_reduce(logits, ALL, "max") - ops.broadcast(logits, ALL, 1)
    lowered.sum().backward()
    assert logits.grad is not None
    same(logits.grad, torch.ones(3, 5))


def check_cross_entropy_over_classes_that_ranks_have_parts_of() -> None:
    groups.use(4)
    shares = [(0, 7), (7, 14), (14, 20), (20, 26)]
    start, stop = shares[rank()]
    target = torch.tensor([3, 25, -100, 13, 7, 0])
    for dtype, close in ((torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.03)):
        whole = (of(70, 6, 26) * 3).to(dtype).requires_grad_()
        mine = whole.detach()[:, start:stop].clone().requires_grad_()
        for reduction, name in enumerate(("none", "mean", "sum")):
            for smoothing in (0.0, 0.2):
                whole.grad = mine.grad = None
                wanted = torch.nn.functional.cross_entropy(
                    whole.float() if dtype == torch.bfloat16 else whole,
                    target, reduction=name, label_smoothing=smoothing,
                )  # fmt: skip
                with counted() as sent:
                    loss, _ = ops.cross_entropy(mine, target, ALL, start, 26, reduction, -100, smoothing)
                    weights = torch.linspace(-1, 2, wanted.numel(), dtype=wanted.dtype).reshape(wanted.shape)
                    (loss * weights).sum().backward()
                (wanted * weights).sum().backward()
                same(loss.detach(), wanted.detach().to(dtype), close)
                same(mine.grad, whole.grad[:, start:stop], close)
                assert [(call.op, call.phase) for call in sent] == [("all_reduce", "forward")] * 2


def check_what_a_collective_refuses() -> None:
    assert refusal(lambda: ops.all_reduce(torch.ones(3, dtype=torch.bool), ALL)) == (
        "TP753 tpcompile::all_reduce: there is no sum of bool over ranks. "
        'Reduce real numbers by "sum" or "max", booleans by "max"'
    )
    assert refusal(lambda: ops.all_reduce(torch.ones(3), ALL, "avg")) == (
        "TP753 tpcompile::all_reduce: there is no avg of float32 over ranks. "
        'Reduce real numbers by "sum" or "max", booleans by "max"'
    )
    assert refusal(lambda: ops.all_reduce(torch.ones(3), "1,2")) == (
        "TP751 group '1,2': no such group was made. Pass it to groups.use: `use(tp, labels_of(program))`"
    )
    other = PAIRS[(rank() + 1) % 4]
    assert refusal(lambda: ops.all_gather(torch.ones(3), other)) == (
        f"TP751 group {other!r}: tensor-parallel rank {rank()} runs a collective of a group that it is not in. "
        "Give each process the program of its own rank"
    )
    assert refusal(lambda: ops.broadcast(torch.ones(3), PAIRS[rank()], (rank() + 1) % 4)) == (
        f"TP751 group {PAIRS[rank()]!r}: broadcasts from rank {(rank() + 1) % 4}, which is not in it. "
        "Broadcast from a rank of the group"
    )


def check_two_replicas_of_two_ranks() -> None:
    """DistributedDataParallel over the processes that hold the same part: gradients of the mean over all samples."""
    made = groups.use(2)
    assert (made.tp, made.dp, made.rank, made.replica) == (2, 2, rank() % 2, rank() // 2)
    assert dist.get_process_group_ranks(made.by_label["0,1"]) == [rank() // 2 * 2, rank() // 2 * 2 + 1]
    assert dist.get_process_group_ranks(made.data_parallel) == [rank() % 2, rank() % 2 + 2]

    class Layers(torch.nn.Module):
        def __init__(self, on: str) -> None:
            super().__init__()
            up, down = of(50, 24, 7) / 4, of(51, 5, 24) / 4
            cut = (up.chunk(2)[made.rank], down.chunk(2, 1)[made.rank]) if on else (up, down)
            self.up, self.down = (torch.nn.Parameter(part.clone()) for part in cut)
            self.bias, self.on = torch.nn.Parameter(of(52, 5)), on

        def forward(self, x: Tensor) -> Tensor:
            return two_layers(self.up, self.down, self.bias, x, self.on)

    samples, one, mine = of(55, 4, 3, 7), Layers(""), Layers("0,1")
    one(samples).square().mean().backward()
    wrapped = torch.nn.parallel.DistributedDataParallel(mine, process_group=made.data_parallel)
    wrapped(samples.chunk(2)[made.replica]).square().mean().backward()
    assert one.up.grad is not None and one.down.grad is not None and one.bias.grad is not None
    assert mine.up.grad is not None and mine.down.grad is not None and mine.bias.grad is not None
    same(mine.up.grad, one.up.grad.chunk(2)[made.rank], 1e-4)
    same(mine.down.grad, one.down.grad.chunk(2, 1)[made.rank], 1e-4)
    same(mine.bias.grad, one.bias.grad, 1e-4)


if __name__ == "__main__":
    on_ranks.main(globals())
