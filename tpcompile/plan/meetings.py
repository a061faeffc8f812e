"""Where two kinds of dimension meet that cannot be cut over the same ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tpcompile.dims.analysis import Analysis, product_related
from tpcompile.dims.dim import Dim, leaves
from tpcompile.dims.flow import reduced_leaves
from tpcompile.graph.program import Node
from tpcompile.plan.problem import Problem

Meeting = tuple[tuple[int, int], str]


def meetings(problem: Problem, analysis: Analysis) -> dict[tuple[int, int], str]:
    """A place for each pair of `Problem.exclusive`: a weight of both and its reader, else a product, else a value."""
    found: dict[tuple[int, int], str] = {}
    weights, others, products = (dict[tuple[int, int], str]() for _ in range(3))
    for node in analysis.relations:
        for pair, where, stored in _within_values(problem, analysis, node):
            (weights if stored else others).setdefault(pair, where)
        for pair, where in _across_sums(problem, analysis, node):
            products.setdefault(pair, where)
    for places in (others, products, weights):
        found |= places
    return {pair: where for pair, where in found.items() if pair in problem.exclusive}


def spoken(node: Node) -> str:
    """An operator as texts call it: "MatMul /layers.0/up/MatMul"."""
    return f"{node.op} {node.name}".strip()


def _within_values(problem: Problem, analysis: Analysis, node: Node) -> Iterator[tuple[tuple[int, int], str, bool]]:
    """Pairs that stand in one operand or result, and whether it is a weight."""
    relation, blocked, group_of = analysis.relations[node], analysis.blocked[node], problem.group_of
    for side, operands in ((node.inputs, relation.inputs), (node.outputs, relation.outputs)):
        for value, axes in zip(side, operands, strict=True):
            if value is None or axes is None or (value.known is not None and value.weight is None):
                continue
            free = {leaf for dim in axes for leaf in leaves(dim) if leaf in group_of and leaf not in blocked}
            if not free:
                continue
            stored = value.weight is not None
            where = f"both are dimensions of {value.name}, which {spoken(node)} {'reads' if stored else 'works on'}"
            for a, b in product_related(axes, free):
                yield _pair(group_of, a, b), where, stored


def _across_sums(problem: Problem, analysis: Analysis, node: Node) -> Iterator[Meeting]:
    """Pairs of which a node sums over one and keeps the other."""
    group_of, blocked = problem.group_of, analysis.blocked[node]
    summed = [leaf for leaf in reduced_leaves(analysis, node) if leaf in group_of]
    if not summed:
        return
    kept = {
        leaf
        for axes in analysis.relations[node].outputs
        for dim in axes or ()
        for leaf in leaves(dim)
        if leaf in group_of and leaf not in blocked
    }
    for a, b in itertools.product(summed, kept):
        yield _pair(group_of, a, b), f"{spoken(node)} sums over one and keeps the other"


def _pair(group_of: dict[Dim, int], a: Dim, b: Dim) -> tuple[int, int]:
    return min(group_of[a], group_of[b]), max(group_of[a], group_of[b])
