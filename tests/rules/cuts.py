"""What to cut to prove a rule: each leaf of its operands, and several at once. Knows no kind of graph."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from tpcompile.dims.analysis import Analysis, product_related
from tpcompile.dims.cut import Mesh, SubAxes
from tpcompile.dims.dim import Dim, leaves
from tpcompile.graph.program import Node, Value

Plan = dict[Dim, SubAxes]


def named_leaves(
    analysis: Analysis, nodes: Sequence[Node], called: Mapping[Value, str] | None = None
) -> dict[str, Dim]:
    """The static leaves of the nodes' operands by the first place they stand: "x[2]", or "x[2].1" within an axis.

    Values have the names they are `called` by, or their own.
    """
    found: dict[Dim, str] = {}
    for node in nodes:
        relation = analysis.relations.get(node)
        if relation is None:
            continue
        operands = [*zip(node.inputs, relation.inputs, strict=True), *zip(node.outputs, relation.outputs, strict=True)]
        for value, axes in operands:
            if value is None or axes is None or (value.known is not None and value.dtype in ("int32", "int64")):
                continue
            for axis, dim in enumerate(axes):
                inside = list(leaves(dim))
                for place, leaf in enumerate(inside):
                    if leaf.static and leaf.size > 1:
                        name = (called or {}).get(value, value.name)
                        found.setdefault(leaf, f"{name}[{axis}]" + (f".{place}" if len(inside) > 1 else ""))
    return {name: leaf for leaf, name in found.items()}


def single_cuts(named: Mapping[str, Dim], mesh: Mesh, least: int = 1) -> Iterator[Plan]:
    """Every leaf over every set of sub-axes, of `least` ones, that leaves each rank a part."""
    for leaf in named.values():
        for count in range(least, len(mesh.primes) + 1):
            for axes in itertools.combinations(mesh.all_axes, count):
                if leaf.most_parts >= mesh.degree(axes):
                    yield {leaf: axes}


def random_cuts(analysis: Analysis, named: Mapping[str, Dim], mesh: Mesh, seed: int) -> Plan:
    """Several leaves at once, as far as a planner may: what stands in one product shares no sub-axis."""
    draw = random.Random(seed)
    apart = exclusive(analysis)
    plan: Plan = {}
    order = list(named.values())
    draw.shuffle(order)
    for leaf in order:
        taken = {axis for other, axes in plan.items() if frozenset((leaf, other)) in apart for axis in axes}
        axes = tuple(axis for axis in mesh.all_axes if axis not in taken and draw.random() < 0.6)
        if axes and leaf.most_parts >= mesh.degree(axes):
            plan[leaf] = axes
    return plan


def exclusive(analysis: Analysis) -> set[frozenset[Dim]]:
    """Pairs of leaves that cannot be cut over one sub-axis: factors of a value, what is summed with what is kept."""
    found: set[frozenset[Dim]] = set()
    for relation in analysis.relations.values():
        operands = [axes for axes in (*relation.inputs, *relation.outputs) if axes is not None]
        for axes in operands:
            found.update(frozenset(pair) for pair in product_related(axes))
        kept = [leaf for axes in relation.outputs if axes is not None for dim in axes for leaf in leaves(dim)]
        for reduced in relation.reduced:
            found.update(frozenset(pair) for pair in itertools.product(leaves(reduced.dim), kept))
    return found
