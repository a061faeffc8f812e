"""What every stored tensor becomes under a cut: a row each, from which everything about what ranks hold is added up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim
from tpcompile.graph.program import Node, Value, Weight
from tpcompile.plan.explain import why_weight_whole
from tpcompile.plan.gathered import local_shape
from tpcompile.plan.plan import Plan, Reason
from tpcompile.plan.problem import Problem
from tpcompile.plan.roles import axis_roles
from tpcompile.plan.summary import WeightRow
from tpcompile.plan.uses import stored_bytes, uncut_leaves, weight_uses


def weight_rows(analysis: Analysis, problem: Problem, plan: Plan) -> list[WeightRow]:
    """A row for every stored tensor, in the order of the program."""
    return list(_rows(analysis, problem, plan))


def _rows(analysis: Analysis, problem: Problem, plan: Plan) -> Iterator[WeightRow]:
    seen, cut = set(), plan.cut
    ranks = range(problem.mesh.tp)
    names: dict[int, str] = {group: classes[0].name for group, classes in enumerate(problem.groups)}
    for value, axes, nodes in weight_uses(analysis):
        if value.weight is None or value in seen:
            continue
        seen.add(value)
        if value in plan.gathered:
            yield _gathered(value, value.weight, problem.mesh.tp)
            continue
        stuck = uncut_leaves(analysis, value, nodes)
        held = [leaf for dim in axes for leaf in cut.leaves(dim) if leaf not in stuck]
        local, nbytes = cut.only(frozenset(held)), stored_bytes(value)
        share = [1.0] * len(ranks)
        for dim in axes:
            if local.leaves(dim):
                share = [part * local.local_size(dim, rank) / dim.size for rank, part in enumerate(share)]
        fullest = max(ranks, key=lambda rank: (share[rank], -rank))
        whole = all(part == 1 for part in share)
        why = why_weight_whole(analysis, problem, value, axes, nodes) if whole and len(ranks) > 1 else Reason("")
        yield WeightRow(
            value.name,
            value.dtype or "float32",
            tuple(value.weight.shape),
            tuple(local.local_size(dim, fullest) for dim in axes),
            round(nbytes),
            tuple(round(nbytes * part) for part in share),
            "whole" if whole else _how(analysis, axes, nodes, local),
            tuple(dict.fromkeys(names[problem.group_of[leaf]] for leaf in held)),
            why.text,
            why.remedy,
        )


def _gathered(value: Value, weight: Weight, tp: int) -> WeightRow:
    """The row of a weight that is stored cut and gathered before use."""
    held = [local_shape(weight, tp, rank) for rank in range(tp)]
    each, name = stored_bytes(value) / math.prod(weight.shape), value.name
    nbytes = tuple(round(each * math.prod(shape)) for shape in held)
    shape, dtype = tuple(weight.shape), value.dtype or "float32"
    return WeightRow(name, dtype, shape, held[0], round(stored_bytes(value)), nbytes, "gathered", (), "", "")


def _how(analysis: Analysis, axes: Sequence[Dim], nodes: Sequence[Node], local: Cut) -> str:
    """What the axis that is cut into most parts is to the readers."""
    roles = axis_roles(analysis, axes, nodes)
    held = [k for k, dim in enumerate(axes) if local.leaves(dim)]
    return roles[min(held, key=lambda k: local.local_size(axes[k], 0) / axes[k].size)]
