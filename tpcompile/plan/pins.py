"""Pins and forbids: what the user says of weights and dimensions, by name pattern, turned into wishes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, leaves
from tpcompile.errors import Fault, raise_all
from tpcompile.graph.program import Node, Value
from tpcompile.plan.name_patterns import named_by, near
from tpcompile.plan.problem import Problem, place_name
from tpcompile.plan.roles import axis_roles
from tpcompile.plan.solve import Wish
from tpcompile.plan.uses import segments, terms, uncut_leaves, weight_uses

CODE = "TP104"
NO_WEIGHTS = "the model has no weights"


@dataclass(frozen=True)
class Said:
    """A pin or a forbid: `what` is "pin" or "forbid", `kind` one of `PIN_KINDS`, "" for a forbid of any cut."""

    what: str
    pattern: str
    kind: str

    @property
    def label(self) -> str:
        return f"{self.what} '{self.pattern}{f'={self.kind}' if self.kind else ''}'"


@dataclass(frozen=True)
class Named:
    """A weight that a pattern names, with its dims and readers; or of it only the leaf at one place."""

    value: Value
    axes: Sequence[Dim]
    nodes: Sequence[Node]
    axis: int = -1
    leaf: Dim | None = None


def named(analysis: Analysis, pattern: str) -> list[Named]:
    """The weights a pattern names; where it names none, the dimensions: "up.weight[1]" is axis 1 of up.weight."""
    uses = [Named(value, axes, nodes) for value, axes, nodes in weight_uses(analysis)]
    found = [use for use in uses if named_by(pattern, use.value.name)]
    return found or [
        Named(use.value, use.axes, use.nodes, axis, leaf)
        for use in uses
        for axis, dim in enumerate(use.axes)
        for position, leaf in enumerate(leaves(dim))
        if named_by(pattern, place_name(use.value, axis, position))
    ]


def wishes_of(
    analysis: Analysis, problem: Problem, pins: Sequence[tuple[str, str]], forbids: Sequence[tuple[str, str]] = ()
) -> tuple[list[Wish], list[str]]:
    """The wishes of pins ("layers.*.down=row") and forbids, and what is worth telling of them.

    column: the output dim of the product is cut over all ranks; row: the dim that is summed over; vocab: the rows that
    ids look up; expert: the outermost axis of a weight of three or more, which a batched product keeps or a route
    looks up; cut: of a weight any of them, of a dimension ("up.weight[1]") that one; whole: nothing; gather: nothing of
    what is computed, though the weight is stored cut. A forbid keeps weights from lying so, or ("") from being cut at
    all.

    Raises:
        Refused: TP104 a pattern that matches nothing, or a way to lie that the weight does not have; all at once.
    """
    faults: list[Fault] = []
    wishes: list[Wish] = []
    notes: list[str] = []
    stored: list[tuple[Said, set[str]]] = []
    for said in [*(Said("pin", *pin) for pin in pins), *(Said("forbid", *forbid) for forbid in forbids)]:
        matched = named(analysis, said.pattern)
        if not matched:
            faults.append(_unmatched(analysis, said))
            continue
        found = [_wishes(analysis, problem, said, use) for use in matched]
        wrong = [each for each in found if isinstance(each, Fault)]
        held = [wish for each in found if not isinstance(each, Fault) for wish in each]
        if said.what == "pin" or not held:  # that some weights cannot lie so anyway is no fault of a forbid
            faults += wrong if said.what == "pin" else wrong[:1]
        wishes += held
        notes += _alike(problem, said, matched, held)
        stored.append((said, {use.value.name for use in matched if use.leaf is None}))
    faults += _stored_or_not(stored)
    raise_all(dict.fromkeys(faults))
    return wishes, notes


def _stored_or_not(named_by_each: Sequence[tuple[Said, set[str]]]) -> Iterator[Fault]:
    """Wishes that want one weight stored cut and stored whole: of what is computed both say the same."""
    for (one, these), (other, those) in itertools.combinations(named_by_each, 2):
        kinds = {one.kind, other.kind}
        if "gather" in kinds and not kinds.isdisjoint(("whole", "")) and these & those:
            fact = f"they contradict each other: one wants {min(these & those)} stored cut, the other whole"
            yield Fault(CODE, f"{one.label} and {other.label}", fact, "Leave out one of them")


def _unmatched(analysis: Analysis, said: Said) -> Fault:
    names = {value.name for value, _, _ in weight_uses(analysis)}
    remedy = f"Correct the pattern, or leave the {said.what} out"
    if not names:
        return Fault(CODE, said.label, NO_WEIGHTS, remedy)
    shown = ", ".join(f"'{name}'" for name in near(said.pattern, names))
    fact = f"no weight or dimension has such a name (there are {len(names)} weights, such as {shown})"
    return Fault(CODE, said.label, fact, remedy)


def _alike(problem: Problem, said: Said, matched: Sequence[Named], wishes: Sequence[Wish]) -> Iterator[str]:
    """That a wish also binds layers that its pattern does not name, since alike ones are cut alike."""
    groups = {group for wish in wishes for term in wish.terms for group in term}
    of_group: dict[int, set[Dim]] = defaultdict(set)
    for use in matched:
        for leaf in (leaf for dim in use.axes for leaf in leaves(dim)) if use.leaf is None else (use.leaf,):
            if problem.group_of.get(leaf) in groups:
                of_group[problem.group_of[leaf]].add(leaf)
    short = [group for group, found in of_group.items() if len(found) < len(problem.groups[group])]
    if short:
        group = max(short, key=lambda group: len(problem.groups[group]))
        follows = "the others are whole as well" if said.kind == "gather" else "it holds for all of them"
        yield (
            f"{said.label} names {len(of_group[group])} of {len(problem.groups[group])} alike layers "
            f"({problem.groups[group][0].name}, …): {follows}, for they are cut alike"
        )


def _wishes(analysis: Analysis, problem: Problem, said: Said, use: Named) -> list[Wish] | Fault:
    """What is asked of one weight or dimension, or why it cannot lie so."""
    stuck = uncut_leaves(analysis, use.value, use.nodes)

    def groups(inside: Iterable[Dim]) -> frozenset[int]:
        return frozenset(problem.group_of[leaf] for leaf in inside if leaf in problem.group_of and leaf not in stuck)

    meant = [use.leaf] if use.leaf is not None else [leaf for dim in use.axes for leaf in leaves(dim)]
    if use.leaf is not None and said.what == "pin" and said.kind not in ("cut", "whole"):
        fact = f"{place_name(use.value, use.axis, 0)} names a dimension, and {said.kind} is how a weight lies"
        return Fault(CODE, said.label, fact, "Use cut or whole, or name the weight")
    if said.kind in ("whole", "gather", ""):
        return [Wish(said.label, (groups(meant),), False)]
    if said.kind == "cut":
        parts = [tuple(groups(inside)) for inside, _ in segments(use.axes)] if use.leaf is None else [groups(meant)]
        wanted = tuple(frozenset(part) for part in parts if part)
        return [Wish(said.label, wanted, True)] if wanted else _uncuttable(analysis, said, use, meant)
    roles = axis_roles(analysis, use.axes, use.nodes)
    if use.leaf is not None and said.kind != roles[use.axis]:
        role = roles[use.axis]
        fact = f"a cut of {place_name(use.value, use.axis, 0)} is {role}"
        return Fault(CODE, said.label, fact, f"Use {role}, or no kind, or leave the forbid out")
    if said.kind not in roles:
        fact = f"{use.value.name} {[dim.size for dim in use.axes]} has no such axis (its axes are {', '.join(roles)})"
        others = [*roles, *(("cut", "whole") if said.what == "pin" else ())]
        return Fault(
            CODE, said.label, fact, f"Use one of {', '.join(dict.fromkeys(others))}, or leave the {said.what} out"
        )
    dims = [dim for dim, role in zip(use.axes, roles, strict=True) if role == said.kind]
    if said.what == "forbid":
        return [
            Wish(said.label, (groups(meant if use.leaf else (leaf for dim in dims for leaf in leaves(dim))),), False)
        ]
    found = [tuple(groups(inside) for inside, _ in terms(dim)) for dim in dims]
    wishes = [Wish(said.label, parts, True) for parts in found if all(parts)]
    return wishes or _uncuttable(analysis, said, use, [leaf for dim in dims for leaf in leaves(dim)])


def _uncuttable(analysis: Analysis, said: Said, use: Named, meant: Iterable[Dim]) -> Fault:
    """The columns of a convolution's weight are its channels, not its places."""
    reasons = [
        blocked[leaf] for blocked in map(analysis.blocked.__getitem__, use.nodes) for leaf in meant if leaf in blocked
    ]
    why = reasons[0] if reasons else "it stands in no dimension that can be cut"
    return Fault(CODE, said.label, f"{use.value.name} cannot be cut so: {why}", f"Leave the {said.what} out")
