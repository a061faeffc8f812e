"""Prices of the objective `latency`: what reading, multiplying and sending take on a machine, in bytes read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut
from tpcompile.graph.program import Node, Sizes
from tpcompile.plan.communication import Group, all_gather, all_reduce, group_of
from tpcompile.plan.cost import Prices
from tpcompile.plan.problem import Problem
from tpcompile.plan.step_time import LocalSizes, computed_in, node_work
from tpcompile.plan.topology import Device, Topology
from tpcompile.plan.uses import PICKING, item_bytes, segments, stored_bytes, uncut_leaves, weight_uses


@dataclass(frozen=True)
class MachinePrices(Prices):
    """Collectives by the α-β model over all ranks of `group`; `bytes_per_us` is what a device reads meanwhile."""

    group: Group = field(default_factory=lambda: Group(()))
    bytes_per_us: float = 1.0

    def all_reduce(self, count: float, nbytes: float, tp: int) -> float:
        return count * all_reduce(self.group, nbytes / count).us * self.bytes_per_us if count else 0.0

    def all_gather(self, count: float, nbytes: float, tp: int) -> float:
        return count * all_gather(self.group, nbytes / count).us * self.bytes_per_us if count else 0.0


def machine_prices(
    analysis: Analysis, problem: Problem, topology: Topology, nominal: Callable[[Sizes], int]
) -> MachinePrices:
    """Prices on `topology` at the sizes that `nominal` gives symbols."""
    reads = topology.reads(problem.mesh.tp)
    return MachinePrices(
        latency=0.0,
        per_byte=0.0,
        caches=True,
        relative=False,
        reads=_reads(analysis, problem, topology.device, reads, nominal),
        group=group_of(topology, tuple(range(problem.mesh.tp))),
        bytes_per_us=reads,
    )


def _reads(
    analysis: Analysis, problem: Problem, device: Device, reads: float, nominal: Callable[[Sizes], int]
) -> Counter[frozenset[int]]:
    """What each set of stored bytes costs: read once, or as long as its products compute; nothing where looked up."""
    whole = LocalSizes(Cut(problem.mesh, {}), nominal)
    found: Counter[frozenset[int]] = Counter()
    for value, axes, nodes in weight_uses(analysis):
        nbytes = stored_bytes(value)
        readers = [node for node in nodes if node in analysis.relations]
        factor = max((_price(analysis, node, nbytes, device, reads, whole) for node in readers), default=1.0)
        stuck = uncut_leaves(analysis, value, nodes)
        for segment, size in segments(axes):
            groups = frozenset(
                problem.group_of[leaf] for leaf in segment if leaf in problem.group_of and leaf not in stuck
            )
            found[groups] += round(factor * size * item_bytes(value.dtype))
    return found


def _price(analysis: Analysis, node: Node, nbytes: float, device: Device, reads: float, whole: LocalSizes) -> float:
    """What a byte of a weight costs at a reader, in bytes read."""
    if node.op in PICKING or analysis.relations[node].lookup is not None:
        return 0.0  # a few rows, however large the table
    work = node_work(analysis, node, whole)
    return max(1.0, work.operations / device.operations(computed_in(node)) * reads / max(nbytes, 1.0))
