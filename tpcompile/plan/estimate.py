"""What a plan comes to on a machine: what each rank holds, what is sent, and what a step takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut, Mesh
from tpcompile.graph.program import Sizes
from tpcompile.plan.plan import Plan
from tpcompile.plan.problem import Problem
from tpcompile.plan.step_time import StepTime, calls_of, counted, peak_activations, step_time
from tpcompile.plan.topology import Topology
from tpcompile.plan.uses import stored_bytes

PAYS = 1.25
"""Twice as many ranks pay where they are at least this many times as fast."""


@dataclass(frozen=True)
class Memory:
    """Bytes on the rank with most of each: stored weights, caches that come in, computed values at their peak."""

    weights: float
    caches: float
    activations: float

    @property
    def total(self) -> float:
        return self.weights + self.caches + self.activations


@dataclass(frozen=True)
class Estimate:
    """A plan on a topology, at sizes of symbols.

    Attributes:
        sizes: what the step was computed at, by symbol.
        rank, whole: memory of the fullest rank, and of one device that runs the whole model.
        step, alone: the time of a step on all ranks, and on one device.
        tokens: how many tokens a step computes, 1 where the model has none.
        layers: how many layers there are that are alike, 1 where none are.
        collectives: how many of each operation a step has.
        cuts: whether anything is cut.
        split: "exact", "uneven" (ranks hold different amounts), or "uneven, padded" (and gathers pad their parts).
    """

    topology: Topology
    tp: int
    sizes: Mapping[str, int]
    rank: Memory
    whole: Memory
    step: StepTime
    alone: StepTime
    tokens: int
    layers: int
    collectives: Mapping[str, int]
    cuts: bool
    split: str

    @property
    def speedup(self) -> float:
        """How many times as fast as one device."""
        return self.alone.total / self.step.total if self.step.total else 1.0

    @property
    def fits(self) -> bool:
        """Whether the fullest rank's memory holds it."""
        return self.rank.total <= self.topology.device.memory_bytes


def estimate(
    analysis: Analysis,
    problem: Problem,
    plan: Plan,
    weights: Sequence[int],
    source_bytes: int,
    topology: Topology,
    nominal: Callable[[Sizes], int],
    sizes: Mapping[str, int],
    tokens: int,
) -> Estimate:
    """What a plan comes to; `problem` was built at the sizes that `nominal` gives symbols, which are `sizes`.

    `weights` are the bytes of them on each rank, of `source_bytes` in the model.
    """
    cut, uncut = plan.cut, Cut(Mesh(1), {})
    calls = calls_of(problem, plan, topology).values()
    counts = counted(calls)
    return Estimate(
        topology,
        plan.mesh.tp,
        dict(sizes),
        Memory(max(weights), _cache_bytes(problem, cut), _activations(analysis, plan, nominal)),
        Memory(source_bytes, sum(problem.caches.values()), peak_activations(analysis, uncut, nominal)),
        step_time(analysis, cut, calls, topology, nominal),
        step_time(analysis, uncut, (), topology, nominal),
        tokens,
        max((group.count for group in plan.groups if group.axes), default=1),
        counts,
        plan.cuts_something,
        _split(problem, plan),
    )


def _activations(analysis: Analysis, plan: Plan, nominal: Callable[[Sizes], int]) -> float:
    """Computed values at their peak, and the largest weight that is gathered on top of them."""
    whole = max(map(stored_bytes, plan.gathered), default=0.0)
    return peak_activations(analysis, plan.cut, nominal) + whole


def _cache_bytes(problem: Problem, cut: Cut) -> float:
    """Bytes of the caches that come in, on the rank that holds most of them."""
    share = {
        problem.group_of[leaf]: Cut(cut.mesh, {leaf: axes}).local_size(leaf, 0) / leaf.size
        for leaf, axes in cut.axes.items()
    }
    return sum(
        nbytes * math.prod(share.get(group, 1.0) for group in groups) for groups, nbytes in problem.caches.items()
    )


def _split(problem: Problem, plan: Plan) -> str:
    uneven = {group.name for group in plan.groups if len(set(group.blocks)) > 1}
    if not uneven:
        return "exact"
    gathered = frozenset().union(*problem.gathers)
    return "uneven, padded" if any(problem.groups[k][0].name in uneven for k in gathered) else "uneven"


def stops_paying(estimates: list[Estimate]) -> str | None:
    """Where more ranks are hardly faster, in a sentence; None where they still are at the largest degree."""
    ordered = sorted(estimates, key=lambda found: found.tp)
    for fewer, more in itertools.pairwise(ordered):
        gain = more.speedup / fewer.speedup
        if gain < PAYS ** math.log2(more.tp / fewer.tp):
            share = more.step.communication_share
            most = "one rank does" if fewer.tp == 1 else f"{fewer.tp} ranks do"
            return (
                f"more than {most} not pay here: {more.tp} are {gain:.2f} times as fast as {fewer.tp}, "
                f"and {share:.0%} of their time is communication"
            )
    return None
