"""How long collectives take over the links of a topology, in microseconds, by the α-β model.

A message of n bytes from neighbour to neighbour takes α + n/β (Hockney, "The communication challenge for MPP", Parallel
Computing 20, 1994); to that comes what a collective costs before the first byte moves. The algorithms and their step
counts are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19 (2005); the ring of AllReduce is bandwidth-optimal (Patarasuk and Yuan, JPDC 69, 2009); the two trees that use
both directions of each link are those of Sanders, Speck and Träff, Parallel Computing 35 (2009).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpcompile.plan.topology import Level, Topology


@dataclass(frozen=True)
class Timed:
    """How long a collective takes and by which algorithm (the fastest)."""

    us: float
    algorithm: str


@dataclass(frozen=True)
class Group:
    """The ranks of a collective as links see them: how many it has on each level that it uses, innermost first."""

    parts: tuple[tuple[Level, int], ...]

    @property
    def ranks(self) -> int:
        return math.prod(count for _, count in self.parts)

    @property
    def slowest(self) -> Level:
        """The links that a flat algorithm is as slow as: those of the outermost level it crosses."""
        return self.parts[-1][0]


def group_of(topology: Topology, ranks: tuple[int, ...]) -> Group:
    """Where a group of ranks lies. Each level's count is what the fullest of its boxes holds of the group."""
    parts: list[tuple[Level, int]] = []
    members = sorted(ranks)
    for level in topology.levels:
        boxes: dict[int, set[int]] = {}
        for member in members:
            boxes.setdefault(member // level.ranks, set()).add(member)
        count = max(map(len, boxes.values()), default=1)
        if count > 1:
            parts.append((level, count))
        members = sorted(boxes)
    if len(members) > 1:  # more ranks than the topology has: beyond its outermost links there are only more of them
        parts.append((topology.levels[-1], len(members)))
    return Group(tuple(parts))


def ring_all_reduce(level: Level, ranks: int, nbytes: float) -> float:
    """2(N−1) steps, each of n/N bytes: α₀ + 2(N−1)α + 2(N−1)/N · n/β."""
    return level.start_us + 2 * (ranks - 1) * level.hop_us + 2 * (ranks - 1) / ranks * nbytes / level.bytes_per_us


def tree_all_reduce(level: Level, ranks: int, nbytes: float) -> float:
    """Up and down two trees, each with half of the bytes: α₀ + 2⌈log₂N⌉α + 2n/β."""
    return level.start_us + 2 * math.ceil(math.log2(ranks)) * level.hop_us + 2 * nbytes / level.bytes_per_us


def ring_half(level: Level, ranks: int, nbytes: float) -> float:
    """AllGather to n bytes, or ReduceScatter of n: α₀ + (N−1)α + (N−1)/N · n/β."""
    return level.start_us + (ranks - 1) * level.hop_us + (ranks - 1) / ranks * nbytes / level.bytes_per_us


def pairwise_all_to_all(level: Level, ranks: int, nbytes: float) -> float:
    """N−1 exchanges of n/N² bytes where n are those of all ranks together: α₀ + (N−1)α + (N−1)/N² · n/β."""
    return level.start_us + (ranks - 1) * level.hop_us + (ranks - 1) / ranks**2 * nbytes / level.bytes_per_us


def tree_broadcast(level: Level, ranks: int, nbytes: float) -> float:
    """Down two trees: α₀ + ⌈log₂N⌉α + n/β."""
    return level.start_us + math.ceil(math.log2(ranks)) * level.hop_us + nbytes / level.bytes_per_us


def crossing_bytes(level: Level, ranks: int) -> float:
    """The bytes of an AllReduce from which on the ring is as fast as the tree: both cost the same there.

    2(N−1)α + 2(N−1)/N·n/β = 2⌈log₂N⌉α + 2n/β gives n = αβ·N·(N−1−⌈log₂N⌉).
    """
    return level.hop_us * level.bytes_per_us * ranks * (ranks - 1 - math.ceil(math.log2(ranks)))


def all_reduce(group: Group, nbytes: float) -> Timed:
    """A sum of `nbytes` on every rank: by ring, tree or level by level, whichever is fastest.

    Level by level: scatter the sum within a node, sum what each device holds of it with its peers in other nodes,
    gather within the node. Only 1/N of the bytes cross between nodes for each of the N devices of one.
    """
    if group.ranks <= 1:
        return Timed(0.0, "none")
    level, ranks = group.slowest, group.ranks
    found = [Timed(ring_all_reduce(level, ranks, nbytes), "ring"), Timed(tree_all_reduce(level, ranks, nbytes), "tree")]
    if len(group.parts) > 1:
        (inner, count), outer = group.parts[0], Group(group.parts[1:])
        across = all_reduce(outer, nbytes / count).us
        found.append(Timed(2 * ring_half(inner, count, nbytes) + across, "hierarchical"))
    return min(found, key=lambda timed: timed.us)


def all_gather(group: Group, nbytes: float) -> Timed:
    """`nbytes` on every rank, a part from each: by ring, or between nodes first and then within each."""
    if group.ranks <= 1:
        return Timed(0.0, "none")
    found = [Timed(ring_half(group.slowest, group.ranks, nbytes), "ring")]
    if len(group.parts) > 1:
        (inner, count), outer = group.parts[0], Group(group.parts[1:])
        found.append(Timed(all_gather(outer, nbytes / count).us + ring_half(inner, count, nbytes), "hierarchical"))
    return min(found, key=lambda timed: timed.us)


reduce_scatter = all_gather
"""The same steps in the other order, and the same bytes."""


def all_to_all(group: Group, nbytes: float) -> Timed:
    """Every rank sends each other its part of `nbytes`, which are those of all ranks together."""
    if group.ranks <= 1:
        return Timed(0.0, "none")
    return Timed(pairwise_all_to_all(group.slowest, group.ranks, nbytes), "pairwise")


def broadcast(group: Group, nbytes: float) -> Timed:
    """`nbytes` from one rank to all."""
    if group.ranks <= 1:
        return Timed(0.0, "none")
    return Timed(tree_broadcast(group.slowest, group.ranks, nbytes), "tree")


TIMES = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
}
"""By operation: how long it takes for a group and the bytes of the whole result (of all ranks, for all_to_all)."""
