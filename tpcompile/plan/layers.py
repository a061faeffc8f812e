"""Which of the alike layers a node belongs to, for people to find their way: nothing is decided by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tpcompile.dims.analysis import Analysis, is_metadata
from tpcompile.graph.program import Node, Value
from tpcompile.plan.problem import Problem

A_GOOD_PART = 0.25
"""Alike layers are spoken of where their weights are this share of all."""


def layers_of(analysis: Analysis, problem: Problem) -> tuple[int, dict[Node, int]]:
    """How many alike layers there are, and each node's: -1 before the first, their number after the last.

    Classes that share a decision come once (or several times) in each layer, in order: the reader of a class' weight is
    in its layer. What follows such a reader up to the first meeting with another value (a bias, an activation, the
    residual sum) belongs to it; what only prepares a layer (the norm before it) to that layer; the rest to what it
    reads. Where nothing repeats, there is one layer, 0, and all nodes are in it.
    """
    place = {node: k for k, node in enumerate(analysis.program.nodes)}
    count = _count(problem)
    if count <= 1:
        return 1, dict.fromkeys(place, 0)
    own = _own(analysis, problem, place, count)
    latest = _latest(own, place)
    _extend(analysis, own, place)
    matrices = {
        value
        for classes in problem.groups
        if len(classes) == 1
        for value, _, _ in classes[0].places
        if len(value.sizes or ()) > 1  # norms and biases of the residual width stand in all layers
    }
    found: dict[Node, int] = {}
    for node in place:
        if node in own:
            found[node] = own[node]
            continue
        before = max((found.get(value.producer, -1) for value in _computed(node) if value.producer), default=-1)
        found[node] = count if before >= count - 1 and not matrices.isdisjoint(node.inputs) else before
    _prepare(analysis, found, own, latest)
    return count, found


def _count(problem: Problem) -> int:
    """The number of layers: how many classes most of the bytes that repeat have, where they are a good part of all."""
    weighed: Counter[int] = Counter()
    for group, classes in enumerate(problem.groups):
        weighed[len(classes)] += problem.stored_bytes(group)
    repeated = {count: nbytes for count, nbytes in weighed.items() if count > 1}
    most = max(repeated, key=lambda count: (repeated[count], count), default=1)
    return most if most > 1 and repeated[most] >= A_GOOD_PART * sum(problem.weights.values()) else 1


def _own(analysis: Analysis, problem: Problem, place: dict[Node, int], count: int) -> dict[Node, int]:
    """The layer of nodes that read a weight of a class that comes once in each layer."""
    own: dict[Node, int] = {}
    for classes in problem.groups:
        if len(classes) != count:
            continue
        readers = [
            sorted({place[node] for value, _, _ in cls.places for node, _ in value.consumers if node in place})
            for cls in classes
        ]
        if not all(readers):
            continue
        nodes = analysis.program.nodes
        for layer, found in enumerate(sorted(readers, key=lambda found: found[0])):
            for index in found:
                own.setdefault(nodes[index], layer)
    return own


def _computed(node: Node) -> list[Value]:
    """The operands that are computed from inputs."""
    return [v for v in node.inputs if v is not None and v.weight is None and v.known is None]


def _readers(analysis: Analysis, node: Node) -> Iterator[Node]:
    for value in node.outputs:
        for reader, _ in value.consumers if value is not None else ():
            if reader in analysis.relations and not is_metadata(reader):
                yield reader


def _extend(analysis: Analysis, own: dict[Node, int], place: dict[Node, int]) -> None:
    """What follows a layer's product up to the first operator of several computed operands belongs to the layer."""
    waiting = sorted(own, key=lambda node: place[node])
    for node in waiting:
        if len(_computed(node)) > 1 and not any(v is not None and v.weight is not None for v in node.inputs):
            continue
        for reader in _readers(analysis, node):
            if reader not in own:
                own[reader] = own[node]
                waiting.append(reader)


def _latest(own: dict[Node, int], place: dict[Node, int]) -> dict[Value, int]:
    """By value: the place of the last reader of a layer's weight that it comes from, -1 where there is none."""
    latest: dict[Value, int] = {}
    for node, index in place.items():
        found = index if node in own else max((latest.get(value, -1) for value in _computed(node)), default=-1)
        latest.update((value, found) for value in node.outputs if value is not None)
    return latest


def _prepare(analysis: Analysis, found: dict[Node, int], own: dict[Node, int], latest: dict[Value, int]) -> None:
    """What is no end of a layer's own products prepares the first layer that reads it.

    Not so where operands meet of which one has come through more products than the other: that is a layer's end.
    """
    for node in reversed(found):
        if node in own or found[node] < 0 or len({latest.get(value, -1) for value in _computed(node)}) > 1:
            continue
        later = [found[reader] for reader in _readers(analysis, node)]
        if later:
            found[node] = min(later)
