"""Pins: what the user says of weights, by name pattern, turned into wishes; contradictions are all reported at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, leaves
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.graph.program import Node, Value
from tpcompile.plan.cost import Prices
from tpcompile.plan.explain import bytes_text
from tpcompile.plan.problem import Problem
from tpcompile.plan.roles import axis_roles
from tpcompile.plan.solve import Choice, Solver, Wish
from tpcompile.plan.uses import terms, uncut_leaves, weight_uses

NO_WEIGHTS = "the model has no weights"


def pin_wishes(analysis: Analysis, problem: Problem, pins: Sequence[tuple[str, str]]) -> list[Wish]:
    """The wishes of pins ("layers.*.down=row").

    column: the output dim of the product is cut over all ranks; row: the dim that is summed over; vocab: the rows that
    ids look up; expert: the outermost axis of a weight of three or more, which a batched product keeps or a route
    looks up; whole: nothing of the weight; gather: nothing of what is computed, though it is stored cut.

    Raises:
        Refused: TP104 a pattern that matches no weight, or a way to lie that the weight does not have.
    """
    faults: list[Fault] = []
    wishes: list[Wish] = []
    uses = list(weight_uses(analysis))
    for pattern, kind in pins:
        label = f"pin '{pattern}={kind}'"
        matched = [use for use in uses if fnmatchcase(use[0].name, pattern)]
        if not matched:
            names = sorted({value.name for value, _, _ in uses})
            fact = f"no weight has such a name (there are {len(names)}, such as '{names[0]}')" if names else NO_WEIGHTS
            faults.append(Fault("TP104", label, fact, "Correct the pattern, or leave the pin out"))
        for value, axes, nodes in matched:
            found = _wishes_of(analysis, problem, label, kind, value, axes, nodes)
            if isinstance(found, Fault):
                faults.append(found)
            else:
                wishes += found
    raise_all(dict.fromkeys(faults))
    return wishes


def _wishes_of(
    analysis: Analysis, problem: Problem, label: str, kind: str, value: Value, axes: list[Dim], nodes: Sequence[Node]
) -> list[Wish] | Fault:
    """What a pin asks of one weight, or why the weight cannot lie so."""
    stuck = uncut_leaves(analysis, value, nodes)

    def groups(inside: Iterable[Dim]) -> frozenset[int]:
        return frozenset(problem.group_of[leaf] for leaf in inside if leaf in problem.group_of and leaf not in stuck)

    if kind in ("whole", "gather"):
        return [Wish(label, (groups(leaf for dim in axes for leaf in leaves(dim)),), False)]
    roles = axis_roles(analysis, axes, nodes)
    if kind not in roles:
        fact = f"{value.name} {[dim.size for dim in axes]} has no such axis (its axes are {', '.join(roles)})"
        return Fault(
            "TP104", label, fact, f"Use one of {', '.join(dict.fromkeys([*roles, 'whole']))}, or leave the pin out"
        )
    meant = [dim for dim, role in zip(axes, roles, strict=True) if role == kind]
    found = [tuple(groups(inside) for inside, _ in terms(dim)) for dim in meant]
    wishes = [Wish(label, parts, True) for parts in found if all(parts)]
    if not wishes:  # the columns of a convolution's weight are its channels, not its places
        reasons = [blocked[leaf] for blocked in map(analysis.blocked.__getitem__, nodes)
                   for dim in meant for leaf in leaves(dim) if leaf in blocked]  # fmt: skip
        why = reasons[0] if reasons else "it stands in no dimension that can be cut"
        return Fault("TP104", label, f"{value.name} cannot be cut so: {why}", "Leave the pin out")
    return wishes


def solve_with(solver: Solver, wishes: Sequence[Wish]) -> tuple[Choice, float]:
    """The cheapest choice under the wishes.

    Raises:
        Refused: TP104 for each pin that cannot hold on its own, or each pair that cannot hold together; TP132 where no
            plan keeps a rank within its memory.
    """
    found = solver.solve(wishes)
    if found is not None:
        return found
    if solver.limit_bytes is not None:
        _check_memory(solver)
    labels = list(dict.fromkeys(wish.label for wish in wishes))
    of = {label: [wish for wish in wishes if wish.label == label] for label in labels}
    tp = solver.problem.mesh.tp
    alone = [label for label in labels if solver.solve(of[label]) is None]
    faults = [
        Fault("TP104", label, _why_not(solver, of[label], tp), "Leave out the pin, or use another tp")
        for label in alone
    ]
    possible = [label for label in labels if label not in alone]
    for a, b in itertools.combinations(possible, 2):
        if solver.solve([*of[a], *of[b]]) is None:
            fact = f"they contradict each other: {_clash(of[a], of[b])}"
            faults.append(Fault("TP104", f"{a} and {b}", fact, "Leave out one of them"))
    if not faults:
        faults = [Fault("TP104", ", ".join(possible), "they contradict each other together", "Leave out one of them")]
    raise_all(faults)
    raise AssertionError


def _check_memory(solver: Solver) -> None:
    """Refuse (TP132) a limit that no plan keeps to, pins or not, with the least that one needs."""
    tp, limit = solver.problem.mesh.tp, solver.limit_bytes
    if limit is None or solver.solve() is not None:
        return
    roomy = Solver(solver.problem, Prices.of("memory", solver.problem.mean_product_bytes, tp)).solve()
    least = solver.held_bytes(roomy[0]) if roomy is not None else sum(solver.held.values())
    fact = f"weights and caches take {bytes_text(least)} on the fullest of {tp} ranks, however they are cut"
    remedy = "Use more ranks, smaller --sizes (past, batch), or ranks with more memory"
    raise refuse("TP132", f"--memory-per-rank {bytes_text(limit)}", fact, remedy)


def _clash(a: Sequence[Wish], b: Sequence[Wish]) -> str:
    cut, whole = (
        {group for wish in (*a, *b) if wish.cut is wanted for term in wish.terms for group in term}
        for wanted in (True, False)
    )
    if cut & whole:
        return "what one wants cut the other wants whole (the layers of a model that are alike are cut alike)"
    return "both would cut one tensor, or one product, over the same ranks"


def _why_not(solver: Solver, wishes: Sequence[Wish], tp: int) -> str:
    problem = solver.problem
    for wish in wishes:
        for term in wish.terms:
            sizes = sorted({problem.groups[group][0].most_parts for group in term})
            if wish.cut and max(sizes, default=0) < tp:
                return f"the dimension has {' × '.join(map(str, sizes))} parts, too few for {tp} ranks"
            for group in term:
                if group in problem.forbidden:
                    return problem.forbidden[group]
    return "no plan cuts it so"
