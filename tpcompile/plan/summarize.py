"""Make the summary of a plan: every figure and every reason that is shown anywhere is found here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim, leaves
from tpcompile.dims.placement import active_leaves
from tpcompile.graph.program import Node, Sizes, Value
from tpcompile.plan.advice import cheaper_place
from tpcompile.plan.collectives import Site, runs
from tpcompile.plan.layers import layers_of
from tpcompile.plan.plan import Plan
from tpcompile.plan.problem import DimClass, Problem
from tpcompile.plan.roles import axis_roles
from tpcompile.plan.step_time import Call, LocalSizes, TimedNode, calls_of, computing, counted, timed_nodes
from tpcompile.plan.summary import CollectiveRow, CutDimension, RankHolds, StepEntry, WeightRow, WholeDimension
from tpcompile.plan.topology import Topology
from tpcompile.plan.uses import weight_uses


@dataclass
class Summarizer:
    """Finds the parts of a summary; `nominal` gives sizes at the symbols the plan is made for."""

    analysis: Analysis
    problem: Problem
    plan: Plan
    topology: Topology
    nominal: Callable[[Sizes], int]

    @cached_property
    def sizes(self) -> LocalSizes:
        return LocalSizes(self.plan.cut, self.nominal)

    @cached_property
    def timed(self) -> list[TimedNode]:
        """Every node that computes, in order, with its time."""
        return list(timed_nodes(self.analysis, computing(self.analysis), self.sizes, self.topology))

    @cached_property
    def calls(self) -> dict[Site, Call]:
        return calls_of(self.problem, self.plan, self.topology)

    @cached_property
    def uses(self) -> dict[Value, list[tuple[list[Dim], list[Node]]]]:
        """By stored tensor: its dims and readers, small ones once per use."""
        found: dict[Value, list[tuple[list[Dim], list[Node]]]] = defaultdict(list)
        for value, axes, nodes in weight_uses(self.analysis):
            found[value].append((axes, nodes))
        return found

    @cached_property
    def layer(self) -> tuple[int, dict[Node, int]]:
        return layers_of(self.analysis, self.problem)

    @property
    def layers(self) -> int:
        return self.layer[0]

    @cached_property
    def cut_groups(self) -> dict[int, frozenset[Dim]]:
        """The leaves that are cut, by group, in the order of groups."""
        found: dict[int, set[Dim]] = defaultdict(set)
        for leaf in self.plan.cut.axes:
            found[self.problem.group_of[leaf]].add(leaf)
        return {group: frozenset(found[group]) for group in sorted(found)}

    def cut_dimensions(self) -> Iterator[CutDimension]:
        """The kinds of dimension that are cut, those with most bytes first."""
        spared, index = self._spared(), {cls[0].name: k for k, cls in enumerate(self.problem.groups)}
        for found in self.plan.groups:
            if not found.axes:
                continue
            group = index[found.name]
            mine = [call for site, call in self.calls.items() if group in site.groups]
            how, node = self._largest(self.problem.groups[group][0])
            yield CutDimension(
                found.name, how, node, found.count, found.size, found.axes, found.degree, found.blocks, found.weights,
                found.stored_bytes, found.saved_bytes, spared[group],
                {op: count for op, count in counted(mine).items() if count},
                sum(call.count * call.us for call in mine),
            )  # fmt: skip

    def _largest(self, cls: DimClass) -> tuple[str, str]:
        """What a dimension is to the readers of its largest weight, and the first of these."""
        value, axis, _ = cls.largest
        for axes, nodes in self.uses[value]:
            if cls.leaf in leaves(axes[axis]):
                return axis_roles(self.analysis, axes, nodes)[axis], nodes[0].name if nodes else ""
        return "column", ""

    def _spared(self) -> dict[int, float]:
        """Microseconds of reading and computing that each cut takes off a rank, the others staying as they are."""
        touched: dict[int, list[TimedNode]] = defaultdict(list)
        for found in self.timed:
            if found.kind != "fused":
                relation = self.analysis.relations[found.node]
                inside = {
                    self.problem.group_of[leaf]
                    for axes in (*relation.inputs, *relation.outputs)
                    for dim in axes or ()
                    for leaf in self.plan.cut.leaves(dim)
                }
                for group in inside:
                    touched[group].append(found)
        spared = {}
        for group, mine in self.cut_groups.items():
            rest = Cut(self.plan.cut.mesh, {k: v for k, v in self.plan.cut.axes.items() if k not in mine})
            nodes = [found.node for found in touched[group]]
            whole = timed_nodes(self.analysis, nodes, LocalSizes(rest, self.nominal), self.topology)
            spared[group] = sum(found.us for found in whole) - sum(found.us for found in touched[group])
        return spared

    def whole_dimensions(self) -> Iterator[WholeDimension]:
        """The kinds of dimension of stored tensors that stay whole, those with most bytes first."""
        for found in self.plan.groups:
            if not found.axes and found.stored_bytes:
                yield WholeDimension(
                    found.name, found.count, found.size, found.stored_bytes, found.reason, found.remedy
                )

    def collectives(self) -> Iterator[CollectiveRow]:
        """The collectives of a step, in the order of the program."""
        place = {node: k for k, node in enumerate(self.analysis.program.nodes)}
        names = [classes[0].name for classes in self.problem.groups]
        for site, call in sorted(self.calls.items(), key=lambda item: place.get(item[0].value.producer, -1)):  # type: ignore[arg-type]
            maker = site.value.producer
            yield CollectiveRow(
                site.op, site.value.name, maker.name if maker is not None else "", site.runs, site.nbytes, call.us,
                call.timed.algorithm,
                tuple(names[group] for group in sorted(site.groups) if group in self.cut_groups),
                self.layer[1].get(maker, -1) if maker is not None else -1,
                cheaper_place(self.analysis, self.problem, site, self.nominal),
            )  # fmt: skip

    def step(self, weights: Sequence[WeightRow]) -> Iterator[StepEntry]:
        """The nodes of a step and the collectives behind them, one after the other."""
        how = {row.name: row.how for row in weights}
        behind: dict[Node | None, list[tuple[Site, Call]]] = defaultdict(list)
        for site, call in self.calls.items():
            behind[site.value.producer].append((site, call))
        made: dict[Value, int] = {}
        now, count = 0.0, 0

        def sent(site: Site, call: Call) -> StepEntry:
            nonlocal now, count
            begun, us = now, call.count * call.us
            now, reads = now + us, (made[site.value],) if site.value in made else ()
            made[site.value], count = count, count + 1
            layer = self.layer[1].get(site.value.producer, -1) if site.value.producer is not None else -1
            return StepEntry(site.value.name, site.op, "communication", begun, us, layer, "", (), reads)

        for site, call in behind[None]:
            yield sent(site, call)
        for found in self.timed:
            node, begun = found.node, now
            started = self.topology.device.step_us * runs(node.region) if found.kind != "fused" else 0.0
            us = found.us + started
            read = [value for value in node.inputs if value is not None]
            stored = tuple(
                dict.fromkeys(value.name for value in read if value.weight is not None and value.name in how)
            )
            reads = tuple(dict.fromkeys(made[value] for value in read if value in made))
            yield StepEntry(
                node.name, node.op, found.kind, begun, us, self.layer[1].get(node, -1), self._lies(node, stored, how),
                stored, reads,
            )  # fmt: skip
            now += us
            made.update((value, count) for value in node.outputs if value is not None)
            count += 1
            for site, call in behind.get(node, ()):
                yield sent(site, call)

    def _lies(self, node: Node, stored: Sequence[str], how: dict[str, str]) -> str:
        """What of a node a rank computes (see `StepEntry.cut`)."""
        if not active_leaves(self.analysis, self.plan.cut, node):
            return "whole"
        return next((how[name] for name in stored if how[name] not in ("whole", "gathered")), "cut")

    def ranks(self, weights: Sequence[WeightRow], caches: float, activations: float) -> Iterator[RankHolds]:
        """What each rank holds."""
        for rank in range(self.plan.mesh.tp):
            held = sum(row.rank_bytes[rank] for row in weights)
            yield RankHolds(rank, held, round(caches), round(activations))
