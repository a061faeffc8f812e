"""Families cut for ranks that run side by side in threads, and which part each rank should take and give."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.torch_fx import at_once, models
from tests.torch_fx.lockstep import Ranks
from tpcompile.graph.local import Placed
from tpcompile.passes.compilation import Compilation
from tpcompile.pipeline import replanned
from tpcompile.torch.programs import Parallelized, planned, rewritten


@functools.cache
def analysed(name: str, training: bool) -> Compilation:
    """A family read, analysed and planned for 2 ranks, once per process."""
    return planned(models.exported(name), tp=2, training=training)


@functools.cache
def parallelized(name: str, tp: int, training: bool = False) -> Parallelized:
    """A family cut by the planner alone."""
    return rewritten(replanned(analysed(name, training), tp))


@functools.cache
def modules(name: str, tp: int, training: bool = False) -> list[Any]:
    """The modules of all ranks, made once per process."""
    made = parallelized(name, tp, training)
    return [made.rank_program(rank).module(check_guards=False) for rank in range(tp)]


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def part(whole: torch.Tensor, place: Placed | None, rank: int) -> torch.Tensor:
    """What a rank has of an input or output."""
    if place is None:
        return whole
    return torch.cat([whole.narrow(place.axis, a, b - a) for a, b in place.ranges[rank]], place.axis)


@dataclass(frozen=True)
class Ran:
    """Every output on every rank, in the order of the graph, and how often each collective ran."""

    outputs: list[list[torch.Tensor]]
    counts: Counter[str]


def run(made: Parallelized, mine: Sequence[Any], inputs: Sequence[Sequence[torch.Tensor]]) -> Ran:
    """Run all ranks on the inputs that each takes: `inputs[rank]` in the order of the graph."""
    ranks = Ranks(made.tp)

    def body(rank: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors(ranks.module(mine[rank], rank)(*inputs[rank]))

    return Ran(ranks.run(body), ranks.meeting.counts)


def run_at_once(made: Parallelized, inputs: Sequence[Sequence[torch.Tensor]]) -> Ran:
    """The same without programs: ranks run while they are written."""
    counts: Counter[str] = Counter()
    with torch.no_grad():
        found = at_once.run(made, [dict(enumerate(each)) for each in inputs], counts)
    return Ran([outputs for outputs, _ in found], counts)


def taken(made: Parallelized, inputs: Any) -> list[list[torch.Tensor]]:
    """What each rank takes of a model's inputs."""
    doors, names = made.work.local.doors, [value.name for value in made.work.program.inputs]
    pairs = list(zip(names, tensors(inputs), strict=True))
    return [[part(whole, doors.get(name), rank) for name, whole in pairs] for rank in range(made.tp)]


def assert_given(made: Parallelized, got: Ran, want: Any, tolerance: float = 1e-5) -> None:
    """Every rank gives its part of every output, to a tolerance that is relative to the largest element."""
    doors, names = made.work.local.doors, [value.name for value in made.work.program.outputs]
    for rank, outputs in enumerate(got.outputs):
        for name, mine, whole in zip(names, outputs, tensors(want), strict=True):
            expected = part(whole, doors.get(name), rank)
            assert mine.shape == expected.shape, (name, rank)
            error = float((mine - expected).abs().max())
            assert error <= tolerance * float(whole.abs().max()), (name, rank, error)
