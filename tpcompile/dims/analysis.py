"""Name every dimension of a graph: apply the rules, then see where what they said does not hold together.

Correctness rests on the end of this file: a dim that no rule spoke of, a pair of dims that are not the same tree, or an
operator without a rule needs its inputs whole. So a missing rule costs speed, never numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from tpcompile.dims import rules as _rules  # noqa: F401 - fills the table
from tpcompile.dims.dim import Dim, identical, leaves, root
from tpcompile.dims.registry import find_rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.graph.program import Node, Program, Value

PER_USE = 4096
"""Stored tensors of up to this many elements get dims of their own at each use: exporters share constants."""


@dataclass
class Analysis:
    """The dims of every operand and what each node needs whole.

    `uncovered` holds the nodes that run whole for want of a rule, with the reason.
    """

    program: Program
    axes: dict[Value, list[Dim] | None] = field(default_factory=dict)
    at_use: dict[tuple[Node, int], list[Dim]] = field(default_factory=dict)
    relations: dict[Node, Relation] = field(default_factory=dict)
    blocked: dict[Node, dict[Dim, str]] = field(default_factory=dict)
    uncovered: dict[Node, str] = field(default_factory=dict)
    conflicts: dict[Value, frozenset[Dim]] = field(default_factory=dict)

    def operand_axes(self, node: Node, index: int) -> list[Dim] | None:
        """The dims of an operand, None where it is absent or of unknown rank."""
        value = node.inputs[index]
        if value is None:
            return None
        return self.at_use.get((node, index)) or self.axes[value]


def is_metadata(node: Node) -> bool:
    """Whether the node only computes shapes: it runs as it stands, on global values."""
    return bool(node.outputs) and all(output is None or output.known is not None for output in node.outputs)


def analyze(program: Program, ties: Sequence[tuple[Value, Value, Sequence[int]]] = ()) -> Analysis:
    """Apply the rules to every node.

    Args:
        program: with sizes (see `tpcompile.graph.shapes`).
        ties: pairs of values that must lie alike (the two ends of a cache), with the axes that do.
    """
    found = Analysis(program)
    for value in program.values.values():
        found.axes[value] = None if value.sizes is None else [Dim(sizes) for sizes in value.sizes]
    for node in program.nodes:
        if not is_metadata(node):
            _relate(found, node)
    for a, b, axes in ties:
        left, right = found.axes[a], found.axes[b]
        if left is not None and right is not None:
            tie = Relation(Node("Tie", "", "", [a], [b], {}), [left], [right])
            for axis in axes:
                tie.pair(left[axis], right[axis])
    for value, axes_of in found.axes.items():
        if axes_of is not None:
            found.conflicts[value] = frozenset(_repeated(axes_of))
    for a, b, axes in ties:
        for value in (a, b):
            found.conflicts[value] |= frozenset(_untied(found, a, b, axes))
    lost = any(any(crossed(count)) for relation in found.relations.values() for count in relation.counts)
    for node, relation in found.relations.items():
        found.blocked[node] = _settle(found, node, relation)
        if lost:
            for leaf in (leaf for axes in (*relation.inputs, *relation.outputs) for leaf in crossed(*(axes or ()))):
                found.blocked[node].setdefault(leaf, "its blocks go across parts that were found in it")
    return found


def crossed(*dims: Dim) -> Iterator[Dim]:
    """Leaves below dims over which blocks are counted though they turned out to be products or sums."""
    for dim in dims:
        top = root(dim)
        if top.kind == "blocks" and root(top.parts[0]).kind != "leaf":
            yield from leaves(top)
        else:
            yield from crossed(*top.parts)


def _untied(found: Analysis, a: Value, b: Value, axes: Sequence[int]) -> Iterator[Dim]:
    """Leaves of a cache's two ends along which it cannot be cut, as the ends would not lie alike: one may be longer."""
    for axis, (left, right) in enumerate(zip(found.axes[a] or (), found.axes[b] or (), strict=True)):
        if axis not in axes or not identical(left, right):
            yield from (leaf for dim in (left, right) for leaf in leaves(dim) if not leaf.unit)


def _relate(found: Analysis, node: Node) -> None:
    inputs: list[list[Dim] | None] = []
    for index, value in enumerate(node.inputs):
        axes = None if value is None else found.axes[value]
        if value is not None and axes is not None and _apart(value):
            axes = found.at_use[node, index] = [Dim(dim.sizes) for dim in axes]
        inputs.append(axes)
    outputs = [None if value is None else found.axes[value] for value in node.outputs]
    relation = Relation(node, inputs, outputs)
    try:
        find_rule(node.domain, node.op).apply(relation)
        _all_spoken_of(found.program, relation)
    except (NotCovered, LookupError, TypeError, ValueError, ZeroDivisionError) as reason:
        # a form its rule did not think of: whole is always right, and the reason is shown
        relation = Relation(node, inputs, outputs)
        found.uncovered[node] = str(reason) if isinstance(reason, NotCovered) else f"its rule fails: {reason!r}"
    found.relations[node] = relation


def _all_spoken_of(program: Program, relation: Relation) -> None:
    """A rule may not be silent on an output that is read: it would be taken for whole where others are cut."""
    for index, value in enumerate(relation.node.outputs):
        if value is None or index in relation.answered or (value.sizes is None and value.dtype is None):
            continue
        if value.consumers or value.captors or value in program.outputs:
            raise NotCovered(f"its rule says nothing of output {index}")


def _apart(value: Value) -> bool:
    """Whether each reader of a stored tensor may have its own part of it."""
    weight = value.weight
    return weight is not None and not weight.single and math.prod(weight.shape) <= PER_USE


def _settle(found: Analysis, node: Node, relation: Relation) -> dict[Dim, str]:
    blocked = relation.settle(lambda value: value.known is not None and value.weight is None)
    if node in found.uncovered:
        blocked = dict.fromkeys(blocked, found.uncovered[node])
    for value in itertools.chain(node.inputs, node.outputs):
        for leaf in found.conflicts.get(value, ()) if value is not None else ():
            blocked.setdefault(leaf, "it stands on two axes of one tensor, or a cache grows along it")
    kept = [axes for axes in relation.outputs if axes is not None]
    for reduced in relation.reduced:
        inside = set(leaves(reduced.dim))
        for axes in kept:
            for leaf in inside.intersection(leaf for dim in axes for leaf in leaves(dim)):
                blocked.setdefault(leaf, "it is summed over and kept")
        for leaf in _repeated([reduced.dim]):
            blocked.setdefault(leaf, "it stands twice in one axis")
    if relation.spread is not None and root(relation.spread).kind != "leaf":
        for leaf in leaves(relation.spread):
            blocked.setdefault(leaf, "what ranks would have of it is not one run")
    if relation.lookup is not None:
        table = relation.input(0)[relation.lookup.axis]
        if root(table).kind != "leaf":
            for leaf in leaves(table):
                blocked.setdefault(leaf, "the rows of this table are not one run")
    return blocked


def _repeated(axes: Sequence[Dim]) -> Iterator[Dim]:
    """Leaves that stand in two factors of the value: a cut would cut it twice."""
    seen: set[Dim] = set()
    for dim in axes:
        inside = set()
        for leaf in leaves(dim):
            if not leaf.unit:
                inside.add(leaf)
        yield from inside & seen
        seen |= inside
        yield from _repeated_within(dim)


def _repeated_within(dim: Dim) -> Iterator[Dim]:
    top = root(dim)
    if top.kind == "product":
        yield from _repeated(top.parts)
    elif top.kind == "sum":
        for part in top.parts:
            yield from _repeated_within(part)


def product_related(axes: Sequence[Dim], among: Collection[Dim] | None = None) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of leaves that stand in different factors of a value: they cannot be cut over one sub-axis together.

    Leaves of fixed size that is not 1, or those of `among`.
    """

    def counts(leaf: Dim) -> bool:
        return leaf.static and not leaf.unit if among is None else leaf in among

    inside = [[leaf for leaf in leaves(dim) if counts(leaf)] for dim in axes]
    for a, b in itertools.combinations(inside, 2):
        yield from itertools.product(a, b)
    for dim in axes:
        yield from _related_within(dim, among)


def _related_within(dim: Dim, among: Collection[Dim] | None) -> Iterator[tuple[Dim, Dim]]:
    top = root(dim)
    if top.kind == "product":
        yield from product_related(top.parts, among)
    elif top.kind == "sum":
        for part in top.parts:
            yield from _related_within(part, among)
