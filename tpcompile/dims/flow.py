"""Where partial sums flow: through linear operators, until something needs the sum.

The same walk serves the planner (what *could* be partial, to count an AllReduce of merged branches once) and the
rewriting (what *is* partial under a plan).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, leaves
from tpcompile.graph.program import Node, Value

SubAxisSet = frozenset[int]


@dataclass
class Flow:
    """`partial[value]`: the sub-axes over which a value is a pending sum; `sources[value]`: the nodes that summed."""

    partial: dict[Value, SubAxisSet] = field(default_factory=dict)
    sources: dict[Value, frozenset[Node]] = field(default_factory=dict)


class PartialFlow:
    """The walk, lazy and memoized per value.

    Args:
        analysis: the relations.
        summed: the sub-axes over which a node's own sums are partial, empty where they are not.
        cut: the sub-axes over which a value's axes are cut: a sum pending over the same cannot pass.
    """

    def __init__(
        self, analysis: Analysis, summed: Callable[[Node], SubAxisSet], cut: Callable[[Value], SubAxisSet]
    ) -> None:
        self.analysis, self.summed, self.cut = analysis, summed, cut
        self.doors = frozenset(analysis.program.outputs)
        self._certain: dict[Value, SubAxisSet] = {}
        self._found: dict[Value, SubAxisSet] = {}
        self._only_measured: dict[Node, bool] = {}

    def run(self) -> Flow:
        """Walk over all nodes in order."""
        flow = Flow()
        for node in self.analysis.program.nodes:
            for output in node.outputs:
                if output is None or node not in self.analysis.relations:
                    continue
                axes = self.partial(output)
                if axes:
                    flow.partial[output] = axes
                    passed = [flow.sources.get(value, frozenset()) for value in self.passing(node)]
                    own = frozenset((node,)) if self.summed(node) else frozenset()
                    flow.sources[output] = own.union(*passed)
        return flow

    def alone(self, value: Value) -> bool:
        """Whether one operand reads the value: else its sum is needed more than once."""
        return len(self._readers(value)) == 1 and value not in self.doors and not value.captors

    def _readers(self, value: Value) -> list[Node]:
        """The nodes that need the value's numbers, once for each operand."""
        return [node for node, _ in value.consumers if node in self.analysis.relations and not self._measured(node)]

    def _measured(self, node: Node) -> bool:
        """Whether a linear node is there for the shape of its result only: a pending sum is as good as the sum then."""
        if node not in self._only_measured:
            self._only_measured[node] = bool(self.analysis.relations[node].linear) and not any(
                output in self.doors or output.captors or self._readers(output)
                for output in node.outputs
                if output is not None
            )
        return self._only_measured[node]

    def partial(self, value: Value) -> SubAxisSet:
        """The sub-axes over which the value is a pending sum."""
        if value not in self._found:
            self._found[value] = self._partial(value, masks=True)
        return self._found[value]

    def certain(self, value: Value) -> SubAxisSet:
        """As `partial`, without what is only partial because a whole operand was masked for a later sum."""
        if value not in self._certain:
            self._certain[value] = self._partial(value, masks=False)
        return self._certain[value]

    def passing(self, node: Node) -> list[Value]:
        """The operands whose pending sums pass through the node."""
        relation = self.analysis.relations[node]
        if self.summed(node) or not any(output is not None and self.partial(output) for output in node.outputs):
            return []
        operands = [value for index, value in enumerate(node.inputs) if value is not None and index in relation.linear]
        return [value for value in operands if self.partial(value) and self.alone(value)]

    def _partial(self, value: Value, masks: bool) -> SubAxisSet:
        node = value.producer
        relation = self.analysis.relations.get(node) if node is not None else None
        if node is None or relation is None or node in self.analysis.uncovered:
            return frozenset()
        own = self.summed(node)
        if not relation.linear:
            return own
        recurse = self.partial if masks else self.certain
        operands = [v for index, v in enumerate(node.inputs) if v is not None and index in relation.linear]
        pending = [v for v in operands if self.alone(v) and recurse(v)]
        if not pending:
            return own
        axes = frozenset().union(*(recurse(v) for v in pending))
        if own or any(axes & self.cut(output) for output in node.outputs if output is not None):
            return own
        if relation.joint:
            others = [v for v in operands if v not in pending and v.weight is None]
            if others and not (masks and self._joins_later(value)):
                return frozenset()
        elif len(pending) > 1:
            return frozenset()
        return axes

    def _joins_later(self, value: Value) -> bool:
        """Whether the value's only reader adds another pending sum to it, so that one reduction serves both."""
        if not self.alone(value):
            return False
        reader = self._readers(value)[0]
        relation = self.analysis.relations[reader]
        if not relation.joint:
            return False
        return any(
            other is not None
            and other is not value
            and index in relation.linear
            and self.alone(other)
            and self.certain(other)
            for index, other in enumerate(reader.inputs)
        )


def reduced_leaves(analysis: Analysis, node: Node) -> frozenset[Dim]:
    """The leaves a node sums over and may be cut along."""
    relation = analysis.relations[node]
    blocked = analysis.blocked[node]
    return frozenset(
        leaf
        for reduced in relation.reduced
        for leaf in leaves(reduced.dim)
        if leaf not in blocked and leaf.static and not leaf.unit
    )
