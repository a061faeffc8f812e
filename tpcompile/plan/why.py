"""Why a dimension is cut, or is not: what decided, in terms that add up, and the price of having it otherwise."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, leaves
from tpcompile.errors import refuse
from tpcompile.graph.program import Node, Value
from tpcompile.plan.explain import cannot_be_cut, why_blocked, why_weight_whole
from tpcompile.plan.machine_prices import machine_prices
from tpcompile.plan.meetings import meetings, spoken
from tpcompile.plan.name_patterns import named_by, near
from tpcompile.plan.pins import named
from tpcompile.plan.plan import Plan, Reason, make_plan
from tpcompile.plan.problem import Part, Problem, place_name
from tpcompile.plan.solve import Choice, Solver, Wish
from tpcompile.plan.step_time import Call, calls_of, step_time
from tpcompile.plan.topology import Topology
from tpcompile.plan.uses import uncut_leaves, weight_uses

VALUES_SHOWN = 3
Key = tuple[str, frozenset[int]]
"""What is paid for, and the groups that decide it."""


@dataclass(frozen=True)
class Term:
    """A part of a difference between two plans.

    Attributes:
        what: "read" (weights and caches), "all_reduce", "all_gather", or "cuts" (what each cut costs by itself).
        names: some of the dimensions that decide it.
        count: how many collectives more; negative where there are fewer.
        values: some of the weights and caches that are read, or of the values that are sent, the largest first.
        of: how many there are of these in all.
        nbytes: of the weights and caches a rank holds, or of results sent, more.
        price: in the objective's unit, bytes read, more.
        us: what it takes on the machine, more: of a table that ids look up, only the rows that are read.
    """

    what: str
    names: tuple[str, ...]
    count: float
    values: tuple[str, ...]
    of: int
    nbytes: float
    price: float
    us: float


@dataclass(frozen=True)
class Excluded:
    """A dimension that cannot be cut over the same ranks: `where` both meet, a weight or an operator."""

    name: str
    where: str


@dataclass(frozen=True)
class Why:
    """What is told of one kind of dimension, or of a weight that stands in none.

    Attributes:
        axes: the sub-axes it is cut over in the plan.
        reason, remedy: why it cannot be otherwise and what would change that, "" where it can.
        blocked: of a weight that stands in none, what keeps each of its dimensions whole, and where.
        terms: what another plan, the cheapest with this one otherwise, costs more; they add up to `price`.
        step_us: how much longer a step then takes.
        changes: which other kinds lie otherwise there: "up[1] whole".
        excludes: what it cannot be cut together with and is cut now.
        option: what forces it.
    """

    name: str
    count: int
    size: int
    weights: tuple[str, ...]
    axes: tuple[int, ...]
    reason: str = ""
    remedy: str = ""
    blocked: tuple[str, ...] = ()
    terms: tuple[Term, ...] = ()
    price: float = 0.0
    step_us: float = 0.0
    changes: tuple[str, ...] = ()
    excludes: tuple[Excluded, ...] = ()
    option: str = ""


def cost_terms(solver: Solver, choice: Choice) -> dict[Key, float]:
    """What a choice costs, by what it is paid for: the solver's cost, taken apart."""
    problem, found = solver.problem, dict[Key, float]()
    for group in range(len(problem.groups)):
        found["cuts", frozenset((group,))] = solver.cost[solver.x[group, choice.get(group, ())]]
    for groups, nbytes in solver.stored.items():
        if groups and nbytes:
            found["read", groups] = nbytes * math.prod(solver.share(group, choice.get(group, ())) for group in groups)
    for op, groups, both, price in solver.collectives():
        caused = groups <= choice.keys() if both else not groups.isdisjoint(choice)
        key = op, groups
        found[key] = found.get(key, 0.0) + (price if caused else 0.0)
    return found


class Asked:
    """Answers about one plan: `choice` under `wishes`, as `solver` prices it."""

    def __init__(
        self, analysis: Analysis, solver: Solver, plan: Plan, wishes: Sequence[Wish], topology: Topology,
        nominal: Callable[[tuple[int, ...]], int],
    ) -> None:  # fmt: skip
        self.analysis, self.solver, self.wishes = analysis, solver, wishes
        self.problem: Problem = solver.problem
        self.plan, self.topology, self.nominal = plan, topology, nominal
        self.choice = {self.problem.group_of[leaf]: axes for leaf, axes in plan.cut.axes.items()}
        self.parts: dict[frozenset[int], list[Part]] = defaultdict(list)  # by the groups that price them
        for part in self.problem.parts:
            self.parts[part.groups if part.heads is None or solver.prices.caches else part.heads].append(part)

    @cached_property
    def _reads(self) -> Mapping[frozenset[int], float]:
        """What reading weights costs on the machine, in bytes read, by the groups that cut them."""
        return machine_prices(self.analysis, self.problem, self.topology, self.nominal).reads or {}

    @cached_property
    def _meetings(self) -> Mapping[tuple[int, int], str]:
        return meetings(self.problem, self.analysis)

    def about(self, pattern: str) -> list[Why]:
        """All that a pattern names.

        Raises:
            Refused: TP142 where that is nothing.
        """
        found = [self._group(group) for group in self._groups(pattern)]
        found += self._weights(pattern)
        if not found:
            names = {value.name for value, _, _ in weight_uses(self.analysis)}
            shown = f", such as {', '.join(near(pattern, names))}" if names else ""
            fact = f"no weight or dimension has such a name (there are {len(names)} weights{shown})"
            raise refuse("TP142", f"--why {pattern}", fact, "Correct the pattern")
        return found

    def _groups(self, pattern: str) -> list[int]:
        """Kinds of dimension by name, or by a weight, the largest first."""
        found = {
            self.problem.group_of[leaf]
            for use in named(self.analysis, pattern)
            for leaf in ((use.leaf,) if use.leaf is not None else (leaf for dim in use.axes for leaf in leaves(dim)))
            if leaf in self.problem.group_of and leaf not in uncut_leaves(self.analysis, use.value, use.nodes)
        }
        for group, classes in enumerate(self.problem.groups):  # of one place, by number
            if any(cls.namesake and named_by(pattern, cls.name) for cls in classes):
                found.add(group)
        return sorted(found, key=lambda group: (-self.problem.stored_bytes(group), group))

    def _weights(self, pattern: str) -> list[Why]:
        """Weights that stand in no kind of dimension, and the operator that needs them whole."""
        found: dict[str, Why] = {}
        for value, axes, nodes in weight_uses(self.analysis):
            free = set(self.problem.group_of) - uncut_leaves(self.analysis, value, nodes)
            if named_by(pattern, value.name) and free.isdisjoint(leaf for dim in axes for leaf in leaves(dim)):
                reason = why_weight_whole(self.analysis, self.problem, value, axes, nodes)
                readers = ", ".join(map(spoken, nodes[:VALUES_SHOWN]))
                text = f"{reason.text} (read by {readers})"
                size = math.prod(dim.size for dim in axes)
                about = Why(value.name, 1, size, (value.name,), (), text, reason.remedy)
                found.setdefault(value.name, replace(about, blocked=self._blocked(value, axes, nodes)))
        return list(found.values())

    def _blocked(self, value: Value, axes: Sequence[Dim], nodes: Sequence[Node]) -> tuple[str, ...]:
        """What keeps each dimension of a weight whole, where an operator does; only of those with several."""
        places = [
            (place_name(value, axis, position), leaf)
            for axis, dim in enumerate(axes)
            for position, leaf in enumerate(leaves(dim))
            if not leaf.unit
        ]
        stuck = [
            next(((name, why_blocked(self.analysis, node, leaf).text, node) for node in nodes
                  if leaf in self.analysis.blocked[node]), None)
            for name, leaf in places
        ]  # fmt: skip
        found = [f"{name}: {text}, at {spoken(node)}" for name, text, node in filter(None, stuck)]
        return tuple(found) if len(places) > 1 else ()

    def _group(self, group: int) -> Why:
        classes = self.problem.groups[group]
        axes = self.choice.get(group, ())
        weights = tuple(sorted({place_name(*place) for cls in classes for place in cls.places}))
        about = Why(classes[0].name, len(classes), classes[0].size, weights, axes)
        rest = [wish for wish in self.wishes if not self._concerns(wish, group)]
        said = [wish.label for wish in self.wishes if self._concerns(wish, group)]
        reason = None if axes else cannot_be_cut(self.problem, group)
        if reason is not None:
            where = self._meetings.get((group, group), "") if group not in self.problem.forbidden else ""
            return replace(about, reason=f"{reason.text}{where and f': {where}'}", remedy=reason.remedy)
        partly = classes[0].most_parts < self.problem.mesh.tp
        alone = frozenset((group,))
        wish = Wish("", (alone,), False) if axes else Wish("", (alone,), True, 1 if partly else None)
        found = self.solver.solve([*rest, wish])
        if found is None:
            missing = self._no_other(rest, wish)
            return replace(about, reason=missing.text, remedy=missing.remedy)
        if (partly and not axes) or classes[0].namesake:  # an option would name both namesakes
            option = f"sub_axes = {list(found[0].get(group, ()))} in plan.toml"
        elif axes:
            option = f"--forbid '{about.name}'"
        else:
            option = f"--pin '{about.name}=cut'"
        terms = self._difference(found[0])
        return replace(
            about, reason=said[0] if said else "", remedy=f"Leave out the {said[0].partition(' ')[0]}" if said else "",
            terms=terms, price=sum(term.price for term in terms), step_us=self._us(found[0]) - self._us(self.choice),
            changes=self._changes(group, found[0]), excludes=self._excludes(group), option=option,
        )  # fmt: skip

    def _no_other(self, rest: Sequence[Wish], wish: Wish) -> Reason:
        """Why no plan fulfils a wish beside those it was chosen under."""
        if rest and self.solver.solve([wish]) is not None:
            labels = list(dict.fromkeys(each.label for each in rest))
            more = f" and {len(labels) - VALUES_SHOWN} more" if len(labels) > VALUES_SHOWN else ""
            text = f"no plan has it otherwise under {', '.join(labels[:VALUES_SHOWN])}{more}"
            return Reason(text, "Leave out what it contradicts")
        if self.solver.limit_bytes is not None:
            return Reason("no plan that has it otherwise keeps within the memory of a rank",
                          "More memory per rank, or more ranks")  # fmt: skip
        return Reason("no plan has it otherwise: it stands in one sum or tensor with what cannot be")

    def _concerns(self, wish: Wish, group: int) -> bool:
        return any(group in term for term in wish.terms)

    def _plan(self, choice: Choice) -> Plan:
        return make_plan(self.problem, choice, self.plan.objective, {})

    def _us(self, choice: Choice) -> float:
        plan = self._plan(choice)
        calls = calls_of(self.problem, plan, self.topology).values()
        return step_time(self.analysis, plan.cut, calls, self.topology, self.nominal).total

    def _calls(self, choice: Choice) -> dict[Key, list[tuple[Value, Call]]]:
        found: dict[Key, list[tuple[Value, Call]]] = {}
        for site, call in calls_of(self.problem, self._plan(choice), self.topology).items():
            found.setdefault((site.op, site.groups), []).append((site.value, call))
        return found

    def _difference(self, other: Choice) -> tuple[Term, ...]:
        """The terms in which another choice differs from the plan; the largest first."""
        mine, theirs = cost_terms(self.solver, self.choice), cost_terms(self.solver, other)
        now, then = self._calls(self.choice), self._calls(other)
        found, cuts = [], 0.0
        unpriced: list[Key] = [("read", groups) for groups in self.parts if ("read", groups) not in theirs]
        for key in [*theirs, *unpriced]:
            more = theirs.get(key, 0.0) - mine.get(key, 0.0)
            if key[0] == "cuts":
                cuts += more
            else:
                term = self._term(key, more, other, now.get(key, []), then.get(key, []))
                if term.price or term.nbytes:
                    found.append(term)
        if cuts:
            found.append(Term("cuts", (), 0, (), 0, 0, cuts, 0))
        return tuple(sorted(found, key=lambda term: (-abs(term.price), term.what, term.names)))

    def _term(
        self, key: Key, more: float, other: Choice, now: list[tuple[Value, Call]], then: list[tuple[Value, Call]]
    ) -> Term:
        what, groups = key
        names = tuple(self.problem.groups[group][0].name for group in sorted(groups))[:VALUES_SHOWN]
        if what == "read":
            parts = sorted(self.parts[groups], key=lambda part: (-part.nbytes, part.value.name))
            stored = list(dict.fromkeys(part.value.name for part in parts))
            nbytes = sum(part.nbytes * self._share(part.groups, other) for part in parts)
            read = sum(part.nbytes * self._share(part.groups, other) for part in parts if part.heads is not None)
            if any(part.heads is None for part in parts):
                read += self._reads[groups] * self._share(groups, other)
            us = read / self.topology.reads(self.problem.mesh.tp)
            return Term(what, names, 0, tuple(stored[:VALUES_SHOWN]), len(stored), nbytes, more, us)
        sent = list(dict.fromkeys(value.name for value, _ in then or now))
        before, after = _sent(now), _sent(then)
        count, nbytes, us = (b - a for a, b in zip(before, after, strict=True))
        return Term(what, names, count, tuple(sent[:VALUES_SHOWN]), len(sent), nbytes, more, us)

    def _share(self, groups: frozenset[int], other: Choice) -> float:
        """The part more that the rank with most of it holds under another choice of what groups cut."""
        now, then = (
            math.prod(self.solver.share(group, choice.get(group, ())) for group in groups)
            for choice in (self.choice, other)
        )
        return then - now

    def _changes(self, group: int, other: Choice) -> tuple[str, ...]:
        names = {g: self.problem.groups[g][0].name for g in range(len(self.problem.groups))}
        degree = self.problem.mesh.degree
        return tuple(
            f"{names[g]} " + (f"cut into {degree(other[g])}" if g in other else "whole")
            for g in sorted(other.keys() | self.choice.keys())
            if g != group and other.get(g, ()) != self.choice.get(g, ())
        )

    def _excludes(self, group: int) -> tuple[Excluded, ...]:
        found = []
        for other in self.problem.groups_excluded_by(group):
            if other in self.choice:
                where = self._meetings[min(group, other), max(group, other)]
                found.append(Excluded(self.problem.groups[other][0].name, where))
        return tuple(found)


def _sent(calls: Sequence[tuple[Value, Call]]) -> tuple[float, float, float]:
    """How many collectives a step has, their bytes, and how long they take."""
    each = [(call.count, call.count * call.bytes, call.count * call.us) for _, call in calls]
    return sum(n for n, _, _ in each), sum(nbytes for _, nbytes, _ in each), sum(us for _, _, us in each)
