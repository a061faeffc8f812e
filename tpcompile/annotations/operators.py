"""Whether an operator can run on operands that lie as annotated, how its results then lie, and what must be sent.

The operator's own rule says which axes are linked, which it sums over and which it needs whole: see
onnx, docs/proposals/0007-ShardingFormalism.md, for what is asked of elementwise operators, reductions and products.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tpcompile.annotations.layout import Layout, Share, Unsayable, laid
from tpcompile.annotations.match import Misfit, shares
from tpcompile.annotations.spec import Wrong
from tpcompile.dims.analysis import Analysis, analyze, product_related
from tpcompile.dims.dim import Dim, leaves
from tpcompile.dims.relation import Relation
from tpcompile.graph.program import Node, Program

HERE = "Leave it whole at this node: the runtime then gathers it before"


@dataclass(frozen=True)
class Operand:
    """An operand of a node: its name, and how it lies, None where the node may have it as it needs it.

    `said` tells an annotation of this node from what follows from others.
    """

    name: str
    layout: Layout | None
    said: bool


@dataclass
class Outcome:
    """What becomes of a node: `wrong` with its operands; `unchecked`, why nothing is known; how results lie.

    `results` has None for a result of which nothing is known; `summed` are the devices each sum is over, 1 for none.
    """

    wrong: list[Wrong] = field(default_factory=list)
    unchecked: str = ""
    results: list[Layout | None] = field(default_factory=list)
    summed: int = 1
    implied: list[str] = field(default_factory=list)


def run_on(node: Node, operands: Mapping[int, Operand], devices: Sequence[int]) -> Outcome:
    """What a node comes to on operands that lie so (by place); `devices` are all there are."""
    found = Outcome(results=[None] * len(node.outputs))
    told = [operand for operand in operands.values() if operand.layout is not None]
    where = _devices(told, devices, found)
    if where is None:
        return found
    analysis = alone(node)
    relation = analysis.relations[node]
    if all(operand.layout is not None and operand.layout.whole for operand in told):
        found.unchecked = _uncovered(analysis, node)
        found.results = [Layout(where)] * len(node.outputs)
        return found
    if node in analysis.uncovered:
        found.unchecked = _uncovered(analysis, node)
        return found
    cut = _cut_leaves(relation, operands, where, found)
    if found.wrong or found.unchecked:
        return found
    found.wrong += _linked(relation, operands, cut, found)
    merged = {leaf: share for by_leaf in cut.values() for leaf, share in by_leaf.items()}
    found.wrong += _needed_whole(analysis, node, operands, cut)
    if not found.wrong:
        found.wrong += _apart(relation, merged, operands)
    if not found.wrong:
        _finish(relation, merged, where, found)
    return found


def alone(node: Node) -> Analysis:
    """The dims of a node by themselves: what it links, whatever comes before and after it."""
    values = {value.name: value for value in (*node.inputs, *node.outputs) if value is not None}
    return analyze(Program([node], [], [], values, {}))


def _uncovered(analysis: Analysis, node: Node) -> str:
    return analysis.uncovered.get(node, "")


def _devices(told: Sequence[Operand], devices: Sequence[int], found: Outcome) -> tuple[int, ...] | None:
    """The devices that take part: those that annotations of the node name, each of which must have every operand."""
    said = [operand for operand in told if operand.said]
    named = said or [operand for operand in told if operand.layout is not None and not operand.layout.whole]
    if not named:
        return tuple(devices)
    first = named[0]
    where = first.layout.devices if first.layout is not None else ()
    for operand in told:
        if operand.layout is None or operand.layout.devices is where or operand.layout.devices == where:
            continue
        lacking = sorted(set(where) - set(operand.layout.devices))
        extra = sorted(set(operand.layout.devices) - set(where)) if operand.said else []
        if lacking or extra:
            has, lacks = (first.name, operand.name) if lacking else (operand.name, first.name)
            fact = f"device {(lacking or extra)[0]} has {has} and nothing of {lacks}"
            found.wrong.append(Wrong("TP172", fact, "Name the same devices for all tensors that the node reads"))
            return None
    return where


def _cut_leaves(
    relation: Relation, operands: Mapping[int, Operand], where: Sequence[int], found: Outcome
) -> dict[int, dict[Dim, Share]]:
    """The leaves that each operand is cut along, on the devices that take part."""
    cut: dict[int, dict[Dim, Share]] = {}
    for index, operand in operands.items():
        axes = relation.inputs[index]
        if operand.layout is None or operand.layout.whole:
            cut[index] = {}
            continue
        if axes is None:
            found.unchecked = f"the shape of {operand.name} is not known"
            return cut
        try:
            by_leaf = shares(axes, operand.layout)
        except Misfit as reason:
            found.wrong.append(Wrong("TP171", f"{operand.name}: {reason}", "Cut it along one of them, or not here"))
            continue
        if operand.layout.devices != tuple(where):
            place = {device: k for k, device in enumerate(operand.layout.devices)}
            kept = [place[device] for device in where]
            by_leaf = {leaf: _on(share, kept) for leaf, share in by_leaf.items()}
        cut[index] = by_leaf
    return cut


def _on(share: Share, kept: Sequence[int]) -> Share:
    """What some of the devices have, by their places."""
    return Share(tuple(replace(f, held=tuple(f.held[k] for k in kept)) if f.held else f for f in share.factors))


def _linked(
    relation: Relation, operands: Mapping[int, Operand], cut: Mapping[int, Mapping[Dim, Share]], found: Outcome
) -> Iterator[Wrong]:
    """Operands that are cut differently along one dimension; those that may lie as needed are cut as the others."""
    first: dict[Dim, int] = {}
    for index, by_leaf in cut.items():
        for leaf in by_leaf:
            first.setdefault(leaf, index)
    for leaf, index in first.items():
        for other, operand in operands.items():
            axis = _axis_of(relation.inputs[other], leaf)
            if other == index or axis is None:
                continue
            if operand.layout is None:
                found.implied.append(operand.name)
                continue
            mine, theirs = cut[index][leaf], cut[other].get(leaf)
            if mine == theirs:
                continue
            here = f"axis {_axis_of(relation.inputs[index], leaf)} of {operands[index].name}"
            there = f"axis {axis} of {operand.name}"
            how = "is whole" if theirs is None else f"in {theirs.shards}"
            if theirs is not None and theirs.shards == mine.shards:
                how = f"in {theirs.shards} over the devices in another order"
            fact = f"{here} is in {mine.shards} shards, and {there}, the same dimension, {how}"
            remedy = f"Annotate both alike at this node, or say nothing of {operand.name}"
            stored = operand.said and _stored(relation, other)
            yield Wrong("TP172", fact, remedy if stored else "Annotate both alike at this node")


def _stored(relation: Relation, index: int) -> bool:
    value = relation.value(index)
    return value is not None and value.weight is not None


def _axis_of(axes: Sequence[Dim] | None, leaf: Dim) -> int | None:
    return next((axis for axis, dim in enumerate(axes or ()) if leaf in set(leaves(dim))), None)


def _needed_whole(
    analysis: Analysis, node: Node, operands: Mapping[int, Operand], cut: Mapping[int, Mapping[Dim, Share]]
) -> Iterator[Wrong]:
    """Cut axes of which the operator needs all."""
    relation, blocked = analysis.relations[node], analysis.blocked[node]
    for index, by_leaf in cut.items():
        for leaf, share in by_leaf.items():
            if leaf in blocked:
                axis = _axis_of(relation.inputs[index], leaf)
                fact = f"axis {axis} of {operands[index].name} is in {share.shards} shards: {blocked[leaf]}"
                yield Wrong("TP171", fact, HERE)


def _apart(relation: Relation, merged: Mapping[Dim, Share], operands: Mapping[int, Operand]) -> Iterator[Wrong]:
    """Dimensions of which no device has shards that belong to one part of the work."""
    sides = [axes for axes in (*relation.inputs, *relation.outputs) if axes is not None]
    pairs = {frozenset(pair) for axes in sides for pair in product_related(axes, merged)}
    kept = {leaf for axes in relation.outputs for dim in axes or () for leaf in leaves(dim) if leaf in merged}
    for reduced in relation.reduced:
        pairs |= {frozenset((a, b)) for a in leaves(reduced.dim) if a in merged for b in kept}
    near = {leaf: [other for other in merged if frozenset((leaf, other)) in pairs] for leaf in merged}
    largest = list(_met_together([], list(merged), [], near))
    wrong = [_missing(relation, operands, merged, pair) for pair in _pairs_of(largest)]
    if not any(wrong):
        wrong = [_missing(relation, operands, merged, some) for some in largest]
    yield from filter(None, wrong)


def _met_together(
    some: list[Dim], more: list[Dim], done: list[Dim], near: Mapping[Dim, list[Dim]]
) -> Iterator[list[Dim]]:
    """The largest sets of dimensions that all meet each other (Bron and Kerbosch, CACM 16, 1973).

    Parts of one axis that lie one after the other do not: no part of the work has both.
    """
    if not more and not done:
        yield some
    while more:
        leaf = more[0]
        kept, left = ([other for other in found if other in near[leaf]] for found in (more, done))
        yield from _met_together([*some, leaf], kept, left, near)
        more, done = more[1:], [*done, leaf]


def _pairs_of(sets: Sequence[Sequence[Dim]]) -> list[Sequence[Dim]]:
    return list(dict.fromkeys(pair for some in sets for pair in itertools.combinations(some, 2)))


def _missing(
    relation: Relation, operands: Mapping[int, Operand], merged: Mapping[Dim, Share], some: Sequence[Dim]
) -> Wrong | None:
    """Shards of some dimensions that belong together and that no device has."""
    together = set(zip(*(merged[leaf].held for leaf in some), strict=True))
    needed = itertools.product(*(range(merged[leaf].shards) for leaf in some))
    missing = next((shards for shards in needed if shards not in together), None) if some else None
    if missing is None:
        return None
    named = sorted((_place(relation, operands, leaf), k) for leaf, k in zip(some, missing, strict=True))
    fact = "no device has " + " and ".join(f"shard {k} of {place}" for place, k in named)
    return Wrong("TP173", fact, "Cut one of them over other devices, with copies of its shards for the other's")


def _place(relation: Relation, operands: Mapping[int, Operand], leaf: Dim) -> str:
    for index, operand in operands.items():
        axis = _axis_of(relation.inputs[index], leaf)
        if axis is not None:
            return f"axis {axis} of {operand.name}"
    return "its result"


def _finish(relation: Relation, merged: Mapping[Dim, Share], where: Sequence[int], found: Outcome) -> None:
    """How results lie, and over how many devices they are sums."""
    summed = {leaf: merged[leaf] for reduced in relation.reduced for leaf in leaves(reduced.dim) if leaf in merged}
    for share in summed.values():
        found.summed *= share.shards
    if relation.ranged:
        for share in merged.values():
            found.summed = max(found.summed, share.shards)
    for place, axes in enumerate(relation.outputs):
        if axes is None:
            continue
        inside = {leaf for dim in axes for leaf in leaves(dim)}
        try:
            found.results[place] = laid(axes, {leaf: merged[leaf] for leaf in merged if leaf in inside}, where)
        except Unsayable:
            found.results[place] = None
