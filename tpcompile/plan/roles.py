"""What each axis of a weight is to those who read it: the words that pins, recipes and reports share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, leaves
from tpcompile.dims.relation import Relation
from tpcompile.graph.program import Node, Value
from tpcompile.plan.uses import PICKING

SEEN_THROUGH = ("Transpose", "Cast", "Identity", "DequantizeLinear", "Reshape", "Unsqueeze", "Squeeze")


def axis_roles(analysis: Analysis, axes: Sequence[Dim], nodes: Sequence[Node]) -> list[str]:
    """What each axis of a weight is to its readers.

    The outermost of three or more is that of experts where indices pick of it, or a product keeps it beside another.
    """
    found = [_role(analysis, dim, nodes) for dim in axes]
    if len(axes) < 3 or found[0] == "row":
        return found
    for node in readers_of(nodes):
        relation = analysis.relations.get(node)
        kept = [_kept(relation, dim) for dim in axes] if relation is not None else []
        table = relation is not None and relation.lookup is not None and len(relation.inputs[0] or ()) < 3
        picked = any(kept) and not kept[0] and not table  # a table may be stored with an axis of blocks
        if picked or (relation is not None and relation.reduced and kept[0] and sum(kept) > 1):
            found[0] = "expert"
    return found


def _kept(relation: Relation, dim: Dim) -> bool:
    """Whether an axis stands in what a node makes."""
    made = {leaf for axes in relation.outputs for axis in axes or () for leaf in leaves(axis)}
    return not made.isdisjoint(leaf for leaf in leaves(dim) if not leaf.unit)


def _role(analysis: Analysis, dim: Dim, nodes: Sequence[Node]) -> str:
    """What an axis of a weight is to its readers: summed over (row), looked up (vocab), or kept (column)."""
    inside = set(leaves(dim))
    for node in readers_of(nodes):
        relation = analysis.relations.get(node)
        for reduced in relation.reduced if relation else ():
            if inside.intersection(leaves(reduced.dim)):
                return "vocab" if relation is not None and relation.lookup is not None else "row"
    return "column"


def readers_of(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes that read a stored tensor, and those that read what is only another form of it."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        yield node
        table = node.inputs[0] if node.op in PICKING else None
        picks = table is not None and len(table.sizes or ()) > 2  # of experts
        if node.op in SEEN_THROUGH or picks:
            outputs: list[Value] = [value for value in node.outputs if value is not None]
            todo += [reader for value in outputs for reader, _ in value.consumers]
