"""Which collectives each cut causes: sums where partial ones end, gathers where something is needed whole."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, factors, leaves, root
from tpcompile.dims.flow import PartialFlow, reduced_leaves
from tpcompile.graph.program import Region, Sizes, Value
from tpcompile.plan.uses import HALVES, largest_stored, value_bytes

if TYPE_CHECKING:
    from tpcompile.plan.problem import Problem


@dataclass(frozen=True)
class Site:
    """Where a plan may need a collective: `value` is sent if any of `groups` is cut (all of them, with `both`).

    `runs`: how many a run has, half of one in a branch of an If; `nbytes`: of the result, half precision as float32
    where that is what ranks sum it in.
    """

    op: str
    value: Value
    groups: frozenset[int]
    nbytes: int
    runs: float
    both: bool = False

    def caused(self, cut: Container[int]) -> bool:
        """Whether a plan that cuts these groups needs it."""
        return (all if self.both else any)(group in cut for group in self.groups)


LARGEST_WEIGHT = 3.0
"""How many typical AllReduces the largest counts as, at most."""
TYPICAL_BYTES_SHARE = 0.1
"""The bytes of a typical AllReduce count as this share of a mean weight at most: what more tokens or pixels add to a
collective they add to the products too, which are not priced."""


def add_reductions(
    problem: Problem,
    analysis: Analysis,
    groups_of: Callable[..., frozenset[int]],
    nominal: Callable[[Sizes], int],
    prompt: Callable[[Sizes], int],
    wide: bool,
) -> None:
    summed = {
        node: frozenset((0,)) if groups_of(reduced_leaves(analysis, node)) else frozenset()
        for node in analysis.relations
    }
    walk = PartialFlow(analysis, summed.__getitem__, lambda value: frozenset())
    flow = walk.run()
    passed = {value for node in analysis.relations for value in walk.passing(node)}
    found: list[tuple[frozenset[int], int, float]] = []
    of_products: list[int] = []
    sent: list[int] = []
    for value in flow.partial:
        if value in passed:
            continue
        groups = frozenset().union(*(groups_of(reduced_leaves(analysis, node)) for node in flow.sources[value]))
        if groups and (
            value in analysis.program.outputs or any(node in analysis.relations for node, _ in value.consumers)
        ):
            problem.reductions[groups] += runs(value.region)
            nbytes = value_bytes(value, nominal) * (2 if wide and value.dtype in HALVES else 1)
            problem.reduced_bytes[groups] += nbytes
            problem.sites.append(Site("all_reduce", value, groups, nbytes, runs(value.region)))
            found.append((groups, value_bytes(value, prompt), runs(value.region)))
            for node in flow.sources[value]:  # rows of rotary tables are narrow and many: they say nothing of layers
                read = largest_stored(node)
                if read and (analysis.relations[node].lookup is None or read >= problem.mean_product_bytes):
                    of_products.append(found[-1][1])
                    sent.append(nbytes)
                    break
    for node, relation in analysis.relations.items():
        agreed = relation.input(0) if relation.ranged else [relation.spread] if relation.spread is not None else []
        if agreed:
            blocked = analysis.blocked[node]
            groups = groups_of([leaf for dim in agreed for leaf in leaves(dim) if leaf not in blocked])
            # two numbers: the ends of the range; or three for each row: a maximum and two sums
            nbytes = 8 if relation.ranged else 12 * nominal(relation.input(0)[0].sizes)
            problem.reductions[groups] += runs(node.region)
            problem.reduced_bytes[groups] += nbytes
            if node.outputs[0] is not None:
                problem.sites.append(Site("all_reduce", node.outputs[0], groups, nbytes, runs(node.region)))
            found.append((groups, nbytes, runs(node.region)))
    if sent and problem.mean_product_bytes:  # what is sent may be empty
        usual = max(statistics.median(sent), 1)
        problem.byte_share = min(1.0, TYPICAL_BYTES_SHARE * problem.mean_product_bytes / usual)
    typical = statistics.median(of_products or [nbytes for _, nbytes, _ in found] or [1])
    for groups, nbytes, share in found:
        problem.reduction_weights[groups] += share * min(max(nbytes / max(typical, 1), 1.0), LARGEST_WEIGHT)


def runs(region: Region | None) -> float:
    """The share of runs that come into a region: the branches of an If are taken to be equally likely."""
    found = 1.0
    while region is not None:
        found, region = found / 2, region.parent
    return found


def add_gathers(
    problem: Problem,
    analysis: Analysis,
    cut_doors: frozenset[Value],
    groups_of: Callable[..., frozenset[int]],
    nominal: Callable[[Sizes], int],
) -> None:
    for value, axes in analysis.axes.items():
        if axes is None or value.weight is not None:
            continue
        inside = {leaf for dim in axes for leaf in leaves(dim) if leaf in problem.group_of}
        if value.producer is not None and value.producer not in analysis.relations:
            continue
        stays = {leaf for dim in axes if dim.static for leaf in leaves(dim)} if value in cut_doors else set()
        whole = inside - stays if value.producer is None else inside & analysis.blocked[value.producer].keys()
        readers = [node for node, _ in value.consumers if node in analysis.relations]
        sliced = {leaf for leaf in whole for node in readers if leaf not in analysis.blocked[node]}
        _forbid_mixed(problem, value, axes, sliced, "is read in parts")
        inside -= whole
        inside -= analysis.conflicts[value]
        if not inside:
            continue
        needed: set[Dim] = set(inside) if value.captors else set()
        for node, _ in value.consumers:
            if node in analysis.blocked:
                needed |= inside & analysis.blocked[node].keys()
        if value in analysis.program.outputs:
            needed |= inside - stays
            sides = [groups_of(inside.intersection(leaves(dim))) for dim in axes if dim.static and value in cut_doors]
            for one, other in itertools.combinations(sides, 2):
                for pair in {(min(a, b), max(a, b)) for a in one for b in other if a != b}:
                    problem.door_gathers[pair] += 1
                    problem.door_bytes[pair] += value_bytes(value, nominal)
                    site = Site("all_gather", value, frozenset(pair), value_bytes(value, nominal), 1, both=True)
                    problem.sites.append(site)
        if needed:
            groups = groups_of(needed)
            problem.gathers[groups] += runs(value.region)
            problem.gathered_bytes[groups] += value_bytes(value, nominal)
            problem.sites.append(Site("all_gather", value, groups, value_bytes(value, nominal), runs(value.region)))
            _forbid_mixed(problem, value, axes, needed, "is needed whole")


def _forbid_mixed(problem: Problem, value: Value, axes: Sequence[Dim], among: set[Dim], why: str) -> None:
    """What must be gathered or sliced, but cannot be split off from dynamic sizes, is not cut."""
    for dim in axes:
        if not dim.static and not separable(dim):
            for leaf in among.intersection(leaves(dim)):
                text = f"{value.name} {why} but mixes it with sizes that depend on inputs"
                problem.forbidden.setdefault(problem.group_of[leaf], text)


def separable(dim: Dim) -> bool:
    """Whether the static factors of an axis stand together at one end, so that they can be split off."""
    top = root(dim)
    if top.static or top.kind == "leaf":
        return True
    if top.kind != "product":
        return False
    kinds = [part.static for part in factors(top)]
    return kinds == sorted(kinds) or kinds == sorted(kinds, reverse=True)
