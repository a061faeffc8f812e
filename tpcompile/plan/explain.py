"""Why a plan is what it is: what stays whole, why, what would change that, and what ranks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, leaves
from tpcompile.graph.program import Node, Value
from tpcompile.plan.plan import Reason
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Choice, Solver, Wish
from tpcompile.plan.uses import uncut_leaves
from tpcompile.plan.words import bytes_text

ASKED_AT_MOST = 64
"""Kinds of dimension for which the price of cutting them is computed: one small solve each."""
RULES_PAGE = "docs/adding-a-rule.md"


def reasons_left_whole(
    solver: Solver, choice: Choice, cost_bytes: float, wishes: Sequence[Wish]
) -> Mapping[int, Reason]:
    """For each group that is not cut, why: it cannot be, or what cutting it would add to the plan's cost."""
    found: dict[int, Reason] = {}
    for group in range(len(solver.problem.groups)):
        if group not in choice:
            reason = cannot_be_cut(solver.problem, group, wishes)
            if reason is None and len(found) < ASKED_AT_MOST:
                reason = _price(solver, group, cost_bytes, wishes)
            name = solver.problem.groups[group][0].name
            found[group] = reason or Reason(f"its price is not computed here, as for the first {ASKED_AT_MOST}",
                                            f"tpcompile plan --why '{name}' computes it")  # fmt: skip
    return found


def cannot_be_cut(problem: Problem, group: int, wishes: Sequence[Wish] = ()) -> Reason | None:
    """Why a group is no choice of the planner's at all; None where it is one."""
    against = next((wish for wish in wishes if not wish.cut and any(group in term for term in wish.terms)), None)
    if against is not None:
        return Reason(against.label, f"Leave out the {against.label.partition(' ')[0]}")
    if group in problem.forbidden:
        return Reason(problem.forbidden[group], "An export with fixed sizes, or one that keeps it apart from them")
    if (group, group) in problem.exclusive:
        return Reason("two such dimensions meet in one product")
    parts, smallest = problem.groups[group][0].most_parts, min(problem.mesh.primes, default=1)
    if parts < smallest:
        return Reason(f"{parts} parts are too few for {smallest} ranks", _fewer_ranks(parts, problem.mesh.tp))
    return None


def _fewer_ranks(parts: int, tp: int) -> str:
    return f"--tp {parts} or less" + (", or an even number of ranks" if tp % 2 else "")


def _price(solver: Solver, group: int, cost_bytes: float, wishes: Sequence[Wish]) -> Reason:
    problem = solver.problem
    name, parts, tp = problem.groups[group][0].name, problem.groups[group][0].most_parts, problem.mesh.tp
    partly = parts < tp
    forced = solver.solve([*wishes, Wish("cut it", (frozenset((group,)),), True, 1 if partly else None)])
    if forced is None and wishes:
        return Reason("the pins leave no room for it", f"Leave one out: tpcompile plan --why '{name}' says which")
    if forced is None and solver.limit_bytes is not None:
        return Reason("no plan that cuts it keeps within the memory of a rank", "More memory per rank, or more ranks")
    if forced is None:
        return Reason("no plan cuts it: it stands in one sum or tensor with what cannot be")
    other, cost = forced
    instead = [g for g in problem.groups_excluded_by(group) if g not in other]
    into = f" into {problem.mesh.degree(other[group])} parts" if partly else ""
    text = f"cutting it{into} would cost {bytes_text(max(cost - cost_bytes, 0))} of reading more a step"
    if instead:
        largest = max(instead, key=lambda g: problem.stored_bytes(g))
        if problem.stored_bytes(largest) and cost > cost_bytes:
            text += f", with {problem.groups[largest][0].name} whole in its place"
    if partly:
        return Reason(text, f"sub_axes = {list(other[group])} in plan.toml forces it; --tp {parts} or less fits it")
    if problem.groups[group][0].namesake:  # a pin would name both
        return Reason(text, f"sub_axes = {list(other[group])} in plan.toml forces it")
    return Reason(text, f"--pin '{name}=cut' forces it")


def why_weight_whole(
    analysis: Analysis, problem: Problem, value: Value, axes: Sequence[Dim], nodes: Sequence[Node]
) -> Reason:
    """The reason that matters most why a weight is whole under a plan that does not cut it: of its largest dimension.

    `axes` are its dims and `nodes` its readers, as `weight_uses` gives them.
    """
    stuck = uncut_leaves(analysis, value, nodes)
    sized = sorted((leaf for dim in axes for leaf in leaves(dim) if not leaf.unit), key=lambda leaf: -leaf.sizes[0])
    if not sized:
        return Reason("scalars")
    if any(leaf not in stuck and leaf in problem.group_of for leaf in sized):
        return Reason("not cut in this plan", "--why NAME weighs it, --pin NAME=cut forces it")
    for leaf in sized:
        for node in nodes:
            if leaf in analysis.blocked[node]:
                return why_blocked(analysis, node, leaf)
    if value.captors:
        return Reason(f"the body of a {value.captors[0].op} reads it")
    if value in analysis.program.outputs:
        return Reason("it is an output of the model")
    if value.known is not None and value.dtype in ("bool", "int32", "int64"):
        return Reason("constant indices, sizes or masks: cutting them saves nothing")
    return Reason("it stands in no dimension that can be cut")


def why_blocked(analysis: Analysis, node: Node, leaf: Dim) -> Reason:
    """Why an operator needs a dimension whole, and whether a rule would change that."""
    text = analysis.blocked[node][leaf]
    if node in analysis.uncovered:
        what = f"A rule for {node.op}" if text.endswith("has no rule") else f"A rule of {node.op} that covers this form"
        return Reason(text if node.op in text else f"{node.op}: {text}", f"{what} ({RULES_PAGE})")
    if text == "no rule speaks of this axis":
        return Reason(f"{node.op}: {text}", f"A rule of {node.op} that does ({RULES_PAGE})")
    return Reason(text)
