"""Solve under wishes, and where they cannot hold, say which, why, and what to leave out: all of it at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from tpcompile.errors import Fault, raise_all
from tpcompile.plan.cost import Prices
from tpcompile.plan.explain import cannot_be_cut
from tpcompile.plan.solve import Choice, Solver, Wish
from tpcompile.plan.words import bytes_text

CODE = "TP104"

Wishes = dict[str, list[Wish]]
"""Wishes by the pin or forbid they come from."""


def solve_with(solver: Solver, wishes: Sequence[Wish]) -> tuple[Choice, float]:
    """The cheapest choice under the wishes.

    Raises:
        Refused: TP104 for each pin that cannot hold on its own, each pair that cannot hold together, and a smallest set
            of each further contradiction; TP132 where no plan keeps a rank within its memory, with the wishes or
            without them. A contradiction is one whatever the memory.
    """
    found = solver.solve(wishes)
    if found is not None:
        return found
    of: Wishes = {}
    for wish in wishes:
        of.setdefault(wish.label, []).append(wish)
    roomy = solver
    if solver.limit_bytes is not None:
        roomy = Solver(solver.problem, Prices.of("memory", solver.problem.mean_product_bytes, solver.problem.mesh.tp))
    faults = list(_beyond_memory(solver, roomy, wishes))
    if roomy.solve(wishes) is None:
        faults += _contradictions(roomy, of)
    raise_all(faults)
    raise AssertionError


def _contradictions(solver: Solver, of: Wishes) -> Iterator[Fault]:
    """Every wish that cannot hold alone, every pair that cannot, and of what is left a smallest set each."""
    tp = solver.problem.mesh.tp
    possible = []
    for label in of:
        if _holds(solver, of, (label,)):
            possible.append(label)
        else:
            remedy = f"Leave out the {kind_of(label)}, or use another tp"
            yield Fault(CODE, label, _why_not(solver, of[label], tp), remedy)
    left = list(possible)
    for a, b in itertools.combinations(possible, 2):
        if not _holds(solver, of, (a, b)):
            fact = f"they contradict each other: {_clash(of[a], of[b])}"
            yield Fault(CODE, f"{a} and {b}", fact, "Leave out one of them")
            if a in left and b in left:
                left.remove(b)
    while not _holds(solver, of, left):
        together = _smallest(solver, of, left)
        fact = "any two of them can hold, and all together cannot: what they would cut meets in one tensor or product"
        yield Fault(CODE, " and ".join(together), fact, "Leave out one of them")
        left.remove(together[-1])


def _smallest(solver: Solver, of: Wishes, labels: Sequence[str]) -> list[str]:
    """A set of wishes that cannot hold together, from which none can be left out."""
    kept = list(labels)
    for label in labels:
        without = [other for other in kept if other != label]
        if not _holds(solver, of, without):
            kept = without
    return kept


def _holds(solver: Solver, of: Mapping[str, list[Wish]], labels: Sequence[str]) -> bool:
    return solver.solve([wish for label in labels for wish in of[label]]) is not None


def kind_of(label: str) -> str:
    """What a wish is: "pin" or "forbid"."""
    return label.partition(" ")[0]


def _beyond_memory(solver: Solver, roomy: Solver, wishes: Sequence[Wish]) -> Iterator[Fault]:
    """TP132 for a limit that no plan keeps to, with the wishes or without them, and what one needs.

    `roomy` is a solver that knows no limit.
    """
    tp, limit = solver.problem.mesh.tp, solver.limit_bytes
    if limit is None:
        return
    unheld = solver.solve() is None
    found = roomy.solve(() if unheld else wishes)
    if found is None:
        return
    fact = f"weights and caches take {bytes_text(solver.held_bytes(found[0]))} on the fullest of {tp} ranks"
    remedy = "Use more ranks, smaller --sizes (past, batch), or ranks with more memory"
    if unheld:
        yield Fault("TP132", f"--memory-per-rank {bytes_text(limit)}", f"{fact}, however they are cut", remedy)
        return
    labels = " and ".join(dict.fromkeys(wish.label for wish in wishes))
    fact = f"{fact} under them, and without them they fit"
    yield Fault(
        "TP132", f"--memory-per-rank {bytes_text(limit)} and {labels}", fact, f"Leave out one of them. {remedy}"
    )


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
            reasons = [cannot_be_cut(problem, group) for group in sorted(term)]
            if wish.cut and reasons and reasons[0] is not None:
                return reasons[0].text
    return "no plan cuts it so"
