"""Why a plan is what it is: the reason of every dimension left whole, what ranks hold, which weights stay whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim, leaves
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Choice, Solver, Wish
from tpcompile.plan.uses import stored_bytes, uncut_leaves, weight_uses

ASKED_AT_MOST = 64
"""Kinds of dimension for which the price of cutting them is computed: one small solve each."""


@dataclass(frozen=True)
class WholeWeights:
    """Weights that every rank holds all of, for one reason."""

    reason: str
    names: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class Holding:
    """Bytes of weights: of the source, of each rank, and what stays whole on all ranks, by reason."""

    source_bytes: int
    rank_bytes: tuple[int, ...]
    whole: tuple[WholeWeights, ...]


def bytes_text(count: float) -> str:
    """Bytes for people: 512 B, 4.2 kB, 13.5 MB, 2.1 GB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def reasons_left_whole(solver: Solver, choice: Choice, cost_bytes: float, wishes: list[Wish]) -> Mapping[int, str]:
    """For each group that is not cut, why: it cannot be, or what cutting it would add to the plan's cost."""
    problem = solver.problem
    found: dict[int, str] = {}
    for group, classes in enumerate(problem.groups):
        if group in choice:
            continue
        parts = classes[0].most_parts
        pinned = [wish.label for wish in wishes if not wish.cut and any(group in term for term in wish.terms)]
        smallest = min(problem.mesh.primes, default=1)
        if pinned:
            found[group] = pinned[0]
        elif group in problem.forbidden:
            found[group] = problem.forbidden[group]
        elif (group, group) in problem.exclusive:
            found[group] = "two such dimensions meet in one product"
        elif parts < smallest:
            found[group] = f"{parts} parts are too few for {smallest} ranks"
        elif len(found) < ASKED_AT_MOST:
            found[group] = _price(solver, group, cost_bytes, wishes)
    return found


def _price(solver: Solver, group: int, cost_bytes: float, wishes: list[Wish]) -> str:
    forced = solver.solve([*wishes, Wish("cut it", (frozenset((group,)),), True)])
    if forced is None and wishes:
        return "the pins leave no room for it"
    if forced is None:
        return f"{solver.problem.groups[group][0].most_parts} parts are too few for {solver.problem.mesh.tp} ranks"
    other, cost = forced
    instead = [g for g in solver.problem.groups_excluded_by(group) if g not in other]
    text = f"cutting it would cost {bytes_text(max(cost - cost_bytes, 0))} of reading more a step"
    if instead:
        largest = max(instead, key=lambda g: solver.problem.stored_bytes(g))
        if solver.problem.stored_bytes(largest) and cost > cost_bytes:
            text += f", with {solver.problem.groups[largest][0].name} whole in its place"
    return text


def holding(analysis: Analysis, problem: Problem, cut: Cut) -> Holding:
    """What each rank holds of the weights under a cut, and why what stays whole does."""
    ranks = problem.mesh.tp
    total, each = 0.0, [0.0] * ranks
    reasons: dict[str, list[tuple[str, float]]] = defaultdict(list)
    seen = set()
    for value, axes, nodes in weight_uses(analysis):
        if value.weight is None or value in seen:
            continue
        seen.add(value)
        nbytes = stored_bytes(value)
        total += nbytes
        stuck = uncut_leaves(analysis, value, nodes)
        local = cut.only(frozenset(leaf for dim in axes for leaf in cut.leaves(dim) if leaf not in stuck))
        share = [1.0] * ranks
        for dim in axes:
            if local.leaves(dim):
                share = [part * local.local_size(dim, rank) / dim.size for rank, part in enumerate(share)]
        each = [held + nbytes * part for held, part in zip(each, share, strict=True)]
        if all(part == 1 for part in share) and problem.mesh.tp > 1:
            reasons[why_whole(analysis, problem, axes, stuck, nodes)].append((value.name, nbytes))
    whole = [
        WholeWeights(
            reason,
            tuple(name for name, _ in sorted(found, key=lambda item: -item[1])),
            round(sum(size for _, size in found)),
        )
        for reason, found in reasons.items()
    ]
    return Holding(round(total), tuple(round(held) for held in each), tuple(sorted(whole, key=lambda w: -w.nbytes)))


def why_whole(analysis: Analysis, problem: Problem, axes: list[Dim], stuck: set[Dim], nodes: list) -> str:  # type: ignore[type-arg]
    """The reason that matters most: the one of the largest dimension."""
    sized = sorted((leaf for dim in axes for leaf in leaves(dim) if not leaf.unit), key=lambda leaf: -leaf.sizes[0])
    if not sized:
        return "scalars"
    free = [leaf for leaf in sized if leaf not in stuck and leaf in problem.group_of]
    if free:
        return "not cut in this plan"
    for leaf in sized:
        for node in nodes:
            if leaf in analysis.blocked[node]:
                return analysis.blocked[node][leaf]
    return "it stands in no dimension that can be cut"
