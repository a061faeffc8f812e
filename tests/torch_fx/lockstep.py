"""All ranks of a program in one process, each in a thread of its own: collectives meet at a barrier, backward as well.

Knows nothing of how programs are made; an operator of tpcompile is what its documentation says.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch


class Meeting:
    """Where ranks exchange tensors; `counts` says how often each operator ran on rank 0."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks)
        self.given: list[Any] = [None] * ranks
        self.counts: Counter[str] = Counter()

    def exchange(self, rank: int, what: str, value: Any) -> list[Any]:
        """What every rank gives."""
        if rank == 0:
            self.counts[what] += 1
        self.given[rank] = (what, value)
        self.barrier.wait(timeout=60)
        found = list(self.given)
        self.barrier.wait(timeout=60)
        assert {each[0] for each in found} == {what}
        return [each[1] for each in found]


class Ranks:
    """Runs a function once per rank, at the same time."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.meeting = ranks, Meeting(ranks)

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        """The results by rank; the first error is raised."""
        results: list[Any] = [None] * self.ranks
        errors: list[BaseException] = []

        def work(rank: int) -> None:
            try:
                results[rank] = body(rank)
            except BaseException as error:
                errors.append(error)
                self.meeting.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        if errors:
            raise (real or errors)[0]
        return results

    def module(self, module: torch.nn.Module, rank: int) -> Callable[..., Any]:
        """A GraphModule that runs as one rank."""
        return Interpreted(module, self.meeting, rank)


class Interpreted:
    """Runs a GraphModule node by node, collectives through a meeting."""

    def __init__(self, module: Any, meeting: Meeting, rank: int) -> None:
        self.module, self.meeting, self.rank = module, meeting, rank

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        interpreter = _Interpreter(self.module, self)
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        return self.module.graph.process_outputs(interpreter.run(*flat, enable_io_processing=False))


class _Interpreter(torch.fx.Interpreter):
    def __init__(self, module: Any, rank: Interpreted) -> None:
        super().__init__(module)
        self.of = rank

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return None if "_guards" in str(target) else super().call_module(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = str(target)
        if name.startswith("tpcompile."):
            meet, rank = self.of.meeting, self.of.rank
            match name.split(".")[1]:
                case "all_reduce":
                    return AllReduce.apply(args[0], meet, rank, args[1], args[2] if len(args) > 2 else "sum")
                case "copy":
                    return Copy.apply(args[0], meet, rank, args[1])
                case "all_gather":
                    return AllGather.apply(args[0], meet, rank, args[1])
                case "broadcast":
                    return meet.exchange(rank, "broadcast", args[0])[args[2]].clone()
                case "cross_entropy":
                    return _cross_entropy(meet, rank, *args), None
                case "once":
                    return Once.apply(args[0], args[1])
        return super().call_function(target, args, kwargs)


def _cross_entropy(
    meet: Meeting, rank: int, x: Any, target: Any, label: str, start: int, classes: int, reduction: int, ignore: int,
    smoothing: float,
) -> Any:  # fmt: skip
    """Written with operators that autograd knows, sums over ranks among them."""
    largest = AllReduce.apply(x.detach().amax(-1), meet, rank, label, "max")
    shifted = x - largest[:, None]
    total = AllReduce.apply(shifted.exp().sum(-1), meet, rank, label, "sum").log()
    here = torch.arange(start, start + x.shape[1])
    wanted = torch.where(target[:, None] == here[None], 1 - smoothing, 0.0) + smoothing / classes
    loss = (total - AllReduce.apply((wanted * shifted).sum(-1), meet, rank, label, "sum")) * (target != ignore)
    if reduction == 0:
        return loss
    return loss.sum() / ((target != ignore).sum() if reduction == 1 else 1)


def _members(label: str) -> list[int]:
    return [int(rank) for rank in label.split(",")]


def _reduced(meet: Meeting, rank: int, what: str, x: Any, label: str, reduce: str = "sum") -> Any:
    each = meet.exchange(rank, what, (label, x.detach()))
    mine = torch.stack([each[k][1] for k in _members(label)])
    return mine.sum(0) if reduce == "sum" else mine.amax(0)


class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, meet: Meeting, rank: int, label: str, reduce: str) -> Any:
        ctx.sums = reduce == "sum"
        return _reduced(meet, rank, f"all_reduce {reduce}", x, label, reduce)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return (g if ctx.sums else None), None, None, None, None


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, meet: Meeting, rank: int, label: str) -> Any:
        ctx.of = (meet, rank, label)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        meet, rank, label = ctx.of
        return _reduced(meet, rank, "backward all_reduce", g, label), None, None, None


class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, meet: Meeting, rank: int, label: str) -> Any:
        ctx.place, ctx.rows = _members(label).index(rank), x.shape[0]
        each = meet.exchange(rank, "all_gather", (label, x.detach()))
        return torch.cat([each[k][1] for k in _members(label)])

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g[ctx.place * ctx.rows : (ctx.place + 1) * ctx.rows], None, None, None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, keep: bool) -> Any:
        return x.clone() if keep else torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, None
