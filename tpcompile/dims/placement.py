"""Along which of the leaves that a plan cuts a node runs cut, and a graph's input or output lies cut."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim, leaves
from tpcompile.graph.program import Node, Value

Leaves = frozenset[Dim]
NONE: Leaves = frozenset()


def active_leaves(analysis: Analysis, cut: Cut, node: Node) -> Leaves:
    """The cut leaves along which a node runs cut: all in its operands but those it needs whole."""
    relation, blocked = analysis.relations[node], analysis.blocked[node]
    found: set[Dim] = set()
    for axes in (*relation.inputs, *relation.outputs):
        for dim in axes or ():
            found.update(leaf for leaf in cut.leaves(dim) if leaf not in blocked)
    changed = True
    while changed:  # a sum of which some parts are cut and others are not would count the others once per rank
        changed = False
        for reduced in relation.reduced:
            local = cut.only(frozenset(found))
            ragged = local.touched(reduced.dim) - local.covered(reduced.dim)
            lost = {leaf for leaf in local.leaves(reduced.dim) if ragged.intersection(local.of(leaf))}
            if lost:
                found -= lost
                changed = True
    return frozenset(found)


def within(axes: Sequence[Dim] | None, among: Leaves) -> Leaves:
    """The leaves of some axes that are among those given."""
    return frozenset(leaf for dim in axes or () for leaf in leaves(dim) if leaf in among)


def door_leaves(analysis: Analysis, cut: Cut, cut_doors: Container[Value], value: Value) -> Leaves:
    """The leaves along which an input or output is cut: those of one axis, the one cut into most parts."""
    if value not in cut_doors:
        return NONE

    def parts(held: Leaves) -> int:
        return cut.mesh.degree(tuple(sorted({axis for leaf in held for axis in cut.of(leaf)})))

    free = frozenset(cut.axes) - analysis.conflicts.get(value, NONE)
    return max((within([dim], free) for dim in analysis.axes[value] or () if dim.static), key=parts, default=NONE)
