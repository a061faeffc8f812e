"""What a step costs on a machine, in microseconds: a roofline for every node, and the collectives between them.

A node takes as long as its bytes need to come from memory or its operations from the arithmetic units, whichever is
longer (Williams, Waterman and Patterson, "Roofline", CACM 52, 2009). Nothing overlaps: a collective waits for what it
sends, and what reads it waits for the collective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tpcompile.dims.analysis import Analysis, is_metadata
from tpcompile.dims.cut import Cut, SubAxes
from tpcompile.dims.dim import Dim, root
from tpcompile.graph.program import Node, Sizes, Value
from tpcompile.plan.collectives import Site, runs
from tpcompile.plan.communication import TIMES, Group, Timed, group_of
from tpcompile.plan.plan import Plan
from tpcompile.plan.problem import Problem
from tpcompile.plan.topology import Topology
from tpcompile.plan.uses import PICKING, item_bytes, stored_bytes

VIEWS = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"))
"""They move nothing."""
MOVES = frozenset(("Concat", "Gather", "GatherND", "GatherElements", "ScatterND", "ScatterElements", "TensorScatter"))
"""They move what they read to another place, in a kernel of their own."""
ATTENTION = frozenset(("Attention", "MultiHeadAttention", "GroupQueryAttention"))
"""Products of their own within one operator: queries with keys, weights with values."""


@dataclass(frozen=True)
class NodeWork:
    """What the rank with most of a node does: bytes read and written, and operations, a multiply-add being two."""

    bytes: float
    operations: float


@dataclass(frozen=True)
class Call:
    """Collectives that are alike: `count` of them in a run, each over `group` with a result of `bytes`."""

    op: str
    count: float
    bytes: float
    group: Group

    @property
    def timed(self) -> Timed:
        """One of them."""
        return TIMES[self.op](self.group, self.bytes)

    @property
    def us(self) -> float:
        return self.timed.us


@dataclass
class StepTime:
    """A step in microseconds, by what it is spent on. `memory` are nodes bound by it, `compute` the others."""

    memory: float = 0.0
    compute: float = 0.0
    starts: float = 0.0
    communication: float = 0.0
    sent_bytes: float = field(default=0.0)
    """Results of all collectives."""

    @property
    def total(self) -> float:
        return self.memory + self.compute + self.starts + self.communication

    @property
    def communication_share(self) -> float:
        return self.communication / self.total if self.total else 0.0


class LocalSizes:
    """How large values are on the rank that holds most, at given sizes of symbols, under a cut."""

    def __init__(self, cut: Cut, nominal: Callable[[Sizes], int]) -> None:
        self.cut = Cut(cut.mesh, cut.axes)  # without turns rank 0 has the largest block of everything
        self.nominal = nominal
        self._known: dict[tuple[Dim, frozenset[Dim]], float] = {}

    def of(self, dim: Dim, whole: frozenset[Dim] | set[Dim] = frozenset()) -> float:
        """The size of an axis; leaves in `whole` are not cut here."""
        top = root(dim)
        inside = frozenset(leaf for leaf in self.cut.leaves(top) if leaf not in whole)
        key = (top, inside)
        if key not in self._known:
            local = self.cut.only(inside)
            if top.static:
                self._known[key] = float(local.local_size(top, 0))
            else:
                held, of_all = local.ratio(top, 0) if _has_ratio(top) else (1, 1)
                self._known[key] = self.nominal(top.sizes) * held / of_all
        return self._known[key]

    def elements(self, axes: Sequence[Dim], whole: frozenset[Dim] | set[Dim] = frozenset()) -> float:
        """How many elements a value of these axes has."""
        return math.prod(self.of(dim, whole) for dim in axes)


def _has_ratio(top: Dim) -> bool:
    """Whether a dim of dynamic size has one fixed share: not where cut leaves stand in a sum with dynamic ones."""
    return top.kind == "product" or top.kind == "leaf"


def node_work(analysis: Analysis, node: Node, sizes: LocalSizes) -> NodeWork:
    """Bytes and operations of one node on the rank that holds most of it."""
    relation, blocked = analysis.relations[node], set(analysis.blocked[node])
    written = read = elements = 0.0
    for value, axes in zip(node.outputs, relation.outputs, strict=True):
        if value is not None and axes is not None:
            count = sizes.elements(axes, blocked)
            written += count * item_bytes(value.dtype)
            elements = max(elements, count)
    picks = node.op in PICKING or relation.lookup is not None
    for index, (value, axes) in enumerate(zip(node.inputs, relation.inputs, strict=True)):
        if value is not None and axes is not None and not (picks and index == 0):
            read += sizes.elements(axes, blocked) * item_bytes(value.dtype)
    if picks:
        read += written  # of a table only the rows that are looked up
    if node.op in VIEWS:
        return NodeWork(0.0, 0.0)
    summed = sizes.elements([reduced.dim for reduced in relation.reduced], blocked) if relation.reduced else 1.0
    products = sum(1 for axes in relation.inputs if axes) > 1 and relation.reduced and not picks
    if node.op in ATTENTION:
        return NodeWork(read + written, 4 * elements * _keys(analysis, node, sizes))
    return NodeWork(read + written, (2 if products else 1) * elements * summed)


def _keys(analysis: Analysis, node: Node, sizes: LocalSizes) -> float:
    """How many keys each query meets in a fused attention: the length of the longest of its other operands."""
    relation = analysis.relations[node]
    lengths = [
        sizes.of(axes[2 if len(axes) == 4 else 1])
        for axes in (*relation.inputs[:5], *relation.outputs[1:3])
        if axes is not None and len(axes) in (3, 4)
    ]
    return max(lengths, default=1.0)


def computing(analysis: Analysis) -> Iterator[Node]:
    """The nodes that run on a device: not those that only compute shapes."""
    return (node for node in analysis.relations if not is_metadata(node))


@dataclass(frozen=True)
class TimedNode:
    """How long a node takes and what bounds it: "memory" or "compute", or "fused" where it has no time of its own."""

    node: Node
    us: float
    kind: str


def timed_nodes(
    analysis: Analysis, nodes: Iterable[Node], sizes: LocalSizes, topology: Topology
) -> Iterator[TimedNode]:
    """The roofline of each node, without what starting it costs; one in a branch of an If counts half."""
    device, reads = topology.device, topology.reads(sizes.cut.mesh.tp)
    for node in nodes:
        work = node_work(analysis, node, sizes)
        if not work.bytes or (device.fuses and not _stands_alone(analysis, node)):
            yield TimedNode(node, 0.0, "fused")
            continue
        by_memory = work.bytes / reads
        by_compute = work.operations / device.operations(computed_in(node))
        often = runs(node.region)
        yield TimedNode(node, often * max(by_memory, by_compute), "compute" if by_compute > by_memory else "memory")


def step_time(
    analysis: Analysis, cut: Cut, calls: Iterable[Call], topology: Topology, nominal: Callable[[Sizes], int]
) -> StepTime:
    """The time of one run at the sizes that `nominal` gives symbols."""
    found = StepTime()
    for timed in timed_nodes(analysis, computing(analysis), LocalSizes(cut, nominal), topology):
        if timed.kind != "fused":
            found.compute += timed.us if timed.kind == "compute" else 0.0
            found.memory += timed.us if timed.kind == "memory" else 0.0
            found.starts += topology.device.step_us * runs(timed.node.region)
    for call in calls:
        found.communication += call.count * call.us
        found.sent_bytes += call.count * call.bytes
    return found


def _stands_alone(analysis: Analysis, node: Node) -> bool:
    """Whether a node is no part of another one where things are fused: a product, or one that moves what it reads."""
    weighty = bool(analysis.relations[node].reduced) and sum(value is not None for value in node.inputs) > 1
    return node.op in ATTENTION or node.op in MOVES or weighty


def computed_in(node: Node) -> str:
    """The type that a node computes in: that of its first operand that is no integer index."""
    values: list[Value] = [value for value in node.inputs if value is not None]
    kinds = [value.dtype or "float32" for value in values]
    return next((kind for kind in kinds if kind.startswith(("float", "bfloat"))), kinds[0] if kinds else "float32")


def calls_of(problem: Problem, plan: Plan, topology: Topology) -> dict[Site, Call]:
    """The collectives of a run under a plan, as the planner counts them, by where they are."""
    mesh = problem.mesh
    axes_of = {problem.group_of[leaf]: axes for leaf, axes in plan.cut.axes.items()}
    crossed: dict[SubAxes, Group] = {}

    def call(site: Site, over: SubAxes) -> Call:
        if over not in crossed:
            crossed[over] = group_of(topology, tuple(mesh.groups(over)[0]))
        return Call(site.op, site.runs, site.nbytes, crossed[over])

    found: dict[Site, Call] = {}
    for site in problem.sites:
        if site.caused(axes_of):
            lost = (max(site.groups),) if site.both else site.groups  # a cache stays cut along one axis
            found[site] = call(site, tuple(sorted({axis for group in lost for axis in axes_of.get(group, ())})))
    for value in sorted(plan.gathered, key=lambda value: value.name):
        site = Site("all_gather", value, frozenset(), round(stored_bytes(value)), 1.0)
        found[site] = call(site, mesh.all_axes)
    return found


def counted(calls: Iterable[Call]) -> dict[str, int]:
    """How many of each collective a run has."""
    found = {"all_reduce": 0.0, "all_gather": 0.0}
    for call in calls:
        found[call.op] += call.count
    return {op: math.ceil(count) for op, count in found.items()}


def peak_activations(analysis: Analysis, cut: Cut, nominal: Callable[[Sizes], int]) -> float:
    """The most bytes of computed values that are alive at once on the rank that holds most, nothing in place.

    Inputs and outputs of the graph count while they are needed; weights do not.
    """
    sizes, program = LocalSizes(cut, nominal), analysis.program
    size_of: dict[Value, float] = {}
    last: dict[Value, int] = dict.fromkeys(program.outputs, len(program.nodes))
    live = 0.0
    for value in program.inputs:
        size_of[value] = _bytes_of(analysis, value, sizes)
        live += size_of[value]
    for index in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[index]
        held = [value for value in (*node.inputs, *node.captured) if value is not None]
        until = max((last.get(value, index) for value in node.outputs if value is not None), default=index)
        for value in held:  # what a view shows stays as long as the view
            last[value] = max(last.get(value, -1), until if node.op in VIEWS else index)
    ends: dict[int, list[Value]] = {}
    for value, index in last.items():
        ends.setdefault(index, []).append(value)
    peak = live
    for index, node in enumerate(program.nodes):
        for made in node.outputs if node.op not in VIEWS else ():
            if made is not None:
                size_of[made] = _bytes_of(analysis, made, sizes)
                live += size_of[made]
        peak = max(peak, live)
        live -= sum(size_of.get(value, 0.0) for value in ends.get(index, ()))
    return peak


def _bytes_of(analysis: Analysis, value: Value, sizes: LocalSizes) -> float:
    """Bytes of a value as its node makes it; 0 for what is computed on the host or of unknown shape."""
    axes = analysis.axes[value]
    if value.known is not None or axes is None:
        return 0.0
    blocked = set(analysis.blocked.get(value.producer, ())) if value.producer is not None else set()
    return sizes.elements(axes, blocked) * item_bytes(value.dtype)
