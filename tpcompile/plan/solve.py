"""The exact optimum of a planning problem: one small integer program (HiGHS, through scipy)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from tpcompile.dims.cut import Mesh, SubAxes, block
from tpcompile.plan.cost import TIE, Prices
from tpcompile.plan.problem import Problem

Choice = dict[int, SubAxes]
ALL_SETS_UP_TO = 4
MOST_COMBINATIONS = 64
LARGEST_COEFFICIENT = 1e6
"""HiGHS stops within 1e-6 of the optimum, whatever the costs: the terms that break ties must stand above that."""


def sub_axis_sets(mesh: Mesh) -> list[SubAxes]:
    """The sets of sub-axes a dimension may be cut over: all of them, or only runs of neighbours where they are many."""
    count = len(mesh.primes)
    if count <= ALL_SETS_UP_TO:
        return [axes for size in range(count + 1) for axes in itertools.combinations(mesh.all_axes, size)]
    return [(), *(mesh.all_axes[k : k + size] for size in range(1, count + 1) for k in range(count - size + 1))]


@dataclass(frozen=True)
class Wish:
    """A demand on the plan: over all sub-axes (`cut`) or none, for each set of groups in `terms`.

    A cut wish asks every term to be cut over all of the mesh by some of its groups; a whole wish that none is cut.
    Where `least` is given, a cut over so many sub-axes is enough.
    `over` asks for all groups of every term to be cut over just these sub-axes instead.
    """

    label: str
    terms: tuple[frozenset[int], ...]
    cut: bool
    least: int | None = None
    over: SubAxes | None = None


@dataclass
class _Rows:
    """Constraint rows under construction."""

    data: list[tuple[int, int, float]] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, coefficients: Iterable[tuple[int, float]], low: float, high: float) -> None:
        row = len(self.low)
        self.data += [(row, column, value) for column, value in coefficients]
        self.low.append(low)
        self.high.append(high)


class Solver:
    """Holds one problem's integer program; `solve` may be called with several sets of wishes.

    `limit_bytes`: what weights and caches may take on the rank with most of them.
    """

    def __init__(self, problem: Problem, prices: Prices, limit_bytes: float | None = None) -> None:
        self.problem, self.prices = problem, prices
        self.limit_bytes = limit_bytes
        mesh = problem.mesh
        self.subsets = sub_axis_sets(mesh)
        self.cost: list[float] = []
        self.integer: list[int] = []
        self.upper: list[float] = []
        self.rows = _Rows()
        self.x: dict[tuple[int, SubAxes], int] = {}
        self.stored: Counter[frozenset[int]] = Counter(problem.weights if prices.reads is None else prices.reads)
        self.stored += problem.caches if prices.caches else problem.short_caches
        self.held = problem.weights + problem.caches
        self._cuts()
        self._weights()
        self._collectives()
        self._exclusions()

    def _variable(self, cost: float, integer: bool, upper: float = 1.0) -> int:
        self.cost.append(cost)
        self.integer.append(int(integer))
        self.upper.append(upper)
        return len(self.cost) - 1

    def _cuts(self) -> None:
        """One binary per group and set of sub-axes."""
        total = sum(self.stored.values()) or 1.0
        for group, classes in enumerate(self.problem.groups):
            leaf = classes[0].leaf
            stuck = group in self.problem.forbidden or (group, group) in self.problem.exclusive
            inner = min(9, classes[0].largest[2])  # outer factors get outer sub-axes: ranks then hold runs of heads
            for axes in self.subsets:
                degree = self.problem.mesh.degree(axes)
                allowed = not axes or (degree <= leaf.most_parts and not stuck)
                order = len(axes) + sum(axes) * (1 - 0.1 * inner) + 0.01 * group * len(axes)
                tie = TIE * total * order / (1 + len(self.problem.groups))
                price = tie + (self.prices.a_cut if axes else 0.0)
                self.x[group, axes] = self._variable(price, True, float(allowed))
            self.rows.add([(self.x[group, axes], 1.0) for axes in self.subsets], 1, 1)

    def cover(self, groups: Iterable[int], axis: int) -> list[tuple[int, float]]:
        """The variables that say that one of `groups` is cut over sub-axis `axis`."""
        return [(self.x[group, axes], 1.0) for group in groups for axes in self.subsets if axis in axes]

    def share(self, group: int, axes: SubAxes) -> float:
        """The part of a group's dimension that the rank with most of it holds."""
        leaf = self.problem.groups[group][0].leaf
        return block(leaf.size, self.problem.mesh.degree(axes), 0, leaf.grain)[1] / leaf.size

    def allowed(self, group: int) -> list[SubAxes]:
        """The sets of sub-axes a group can be cut over, () among them."""
        return [axes for axes in self.subsets if self.upper[self.x[group, axes]]]

    def uneven(self, groups: Iterable[int]) -> list[int]:
        """Those of the groups that some cut divides unevenly, as many as can be told apart in few combinations."""
        degree = self.problem.mesh.degree
        found = [g for g in groups if any(self.share(g, axes) * degree(axes) > 1 for axes in self.allowed(g))]
        found.sort(key=lambda g: (-self.problem.stored_bytes(g), g))
        while math.prod(len(self.allowed(g)) for g in found) > MOST_COMBINATIONS:
            found.pop()
        return found

    def saving(self, groups: Iterable[int]) -> float:
        """What cutting the groups as well as they can be saves, as a share of what even cuts over all ranks would.

        An AllReduce costs what cutting usually saves (`ALLREDUCE_SHARE`). Where sizes do not divide, cutting saves
        less, and the model is to be cut all the same, like one whose sizes do.
        """
        problem, ranks = self.problem, self.problem.mesh.tp
        gathered = frozenset().union(*problem.gathers)
        chosen: Choice = {}
        for group in sorted(set(groups) - gathered or groups, key=lambda g: (-problem.stored_bytes(g), g)):
            near = set(problem.groups_excluded_by(group)) & chosen.keys()
            taken = {axis for other in near for axis in chosen[other]}
            free = [axes for axes in self.allowed(group) if not taken.intersection(axes)]
            chosen[group] = min(free, key=lambda axes: self.share(group, axes))
        saved = all_of_it = 0.0
        for key, nbytes in self.stored.items():
            if not chosen.keys().isdisjoint(key):
                all_of_it += nbytes
                held = math.prod(self.share(group, axes) for group, axes in chosen.items() if group in key)
                saved += nbytes * (1 - max(held, 1 / ranks))
        return saved / all_of_it / (1 - 1 / ranks) if saved else 1.0

    def _weights(self) -> None:
        """Each set of stored bytes is read at what the rank with most of it holds, given how its groups are cut.

        Even cuts need only be known by their sub-axes, whichever group has them; uneven ones by group.
        """
        mesh = self.problem.mesh
        held_by: list[tuple[int, float]] = []
        limited = self.limit_bytes is not None
        for groups in [*self.stored, *(self.held.keys() - self.stored.keys() if limited else ())]:
            nbytes = self.stored[groups]
            if not groups or not (nbytes or (limited and self.held[groups])):
                continue
            odd = self.uneven(groups)
            parts: list[tuple[int, tuple[SubAxes, ...], SubAxes]] = []
            for own in itertools.product(*map(self.allowed, odd)):
                taken = [axis for axes in own for axis in axes]
                if len(set(taken)) < len(taken):
                    continue
                share = math.prod(map(self.share, odd, own))
                for axes in self.subsets:
                    if not set(axes) & set(taken):
                        parts.append((self._variable(nbytes * share / mesh.degree(axes), False), own, axes))
                        held_by.append((parts[-1][0], self.held[groups] * share / mesh.degree(axes)))
            self.rows.add([(column, 1.0) for column, _, _ in parts], 1, 1)
            for place, group in enumerate(odd):
                for axes in self.allowed(group):
                    mine = [(column, 1.0) for column, own, _ in parts if own[place] == axes]
                    self.rows.add([*mine, (self.x[group, axes], -1.0)], -np.inf, 0)
            even = groups.difference(odd)
            for axis in mesh.all_axes:
                mine = [(column, 1.0) for column, _, axes in parts if axis in axes]
                self.rows.add(mine + [(column, -value) for column, value in self.cover(even, axis)], -np.inf, 0)
        if self.limit_bytes is not None:
            most = max((value for _, value in held_by), default=1.0) or 1.0  # rows of like size keep the solver exact
            left = self.limit_bytes - self.held[frozenset()]
            self.rows.add([(column, value / most) for column, value in held_by if value], -np.inf, left / most)

    def held_bytes(self, choice: Choice) -> float:
        """Weights and caches of the rank with most of each under a choice."""
        return sum(
            nbytes * math.prod(self.share(group, choice.get(group, ())) for group in groups)
            for groups, nbytes in self.held.items()
        )

    def _collectives(self) -> None:
        for _, groups, both, price in self.collectives():
            if both:
                cut = [(self.x[group, axes], -1.0) for group in groups for axes in self.subsets if axes]
                self.rows.add([(self._variable(price, False), 1.0), *cut], -1, np.inf)
            else:
                self._switch(groups, price)

    def collectives(self) -> Iterator[tuple[str, frozenset[int], bool, float]]:
        """Operation, the groups any of which (or, with True, all of which) cause it, and what it then costs."""
        tp = self.problem.mesh.tp
        for groups, count in self.problem.reductions.items():
            starts = self.problem.reduction_weights[groups] * self.saving(groups) if self.prices.relative else count
            price = self.prices.all_reduce(starts, self.sent(self.problem.reduced_bytes[groups]), tp)
            if (
                self.prices.relative and groups <= self.problem.lookups
            ):  # the tie towards vocabulary-parallel embeddings
                price = 0.5 * self.prices.all_gather(count, self.sent(self.problem.reduced_bytes[groups]), tp)
            yield "all_reduce", groups, False, price
        for groups, count in self.problem.gathers.items():
            price = self.prices.all_gather(count, self.sent(self.problem.gathered_bytes[groups]), tp)
            yield "all_gather", groups, False, price
        for pair, count in self.problem.door_gathers.items():
            price = self.prices.all_gather(count, self.sent(self.problem.door_bytes[pair]), tp)
            yield "all_gather", frozenset(pair), True, price

    def sent(self, nbytes: int) -> float:
        """The bytes of collectives as they count."""
        return self.problem.byte_share * nbytes if self.prices.relative else nbytes

    def _switch(self, groups: frozenset[int], price: float) -> None:
        """A variable that is 1 if any of the groups is cut."""
        column = self._variable(price, False)
        for group in groups:
            self.rows.add([(column, 1.0), *((self.x[group, axes], -1.0) for axes in self.subsets if axes)], 0, np.inf)

    def _exclusions(self) -> None:
        for a, b in self.problem.exclusive:
            if a != b:
                for axis in self.problem.mesh.all_axes:
                    self.rows.add(self.cover((a, b), axis), -np.inf, 1)
        for a_groups, b_groups in self.problem.together:
            for axis in self.problem.mesh.all_axes:
                self.rows.add(
                    self.cover(a_groups, axis) + [(column, -value) for column, value in self.cover(b_groups, axis)],
                    0,
                    0,
                )

    def solve(self, wishes: Sequence[Wish] = ()) -> tuple[Choice, float] | None:
        """The cheapest choice under the wishes and its cost in bytes; None where there is none."""
        rows = _Rows(list(self.rows.data), list(self.rows.low), list(self.rows.high))
        for wish in wishes:
            if wish.over is not None:
                exact = [self.x.get((group, wish.over)) for term in wish.terms for group in term]
                if None in exact:
                    return None
                for column in exact:
                    rows.add([(column or 0, 1.0)], 1, 1)
                continue
            for term in wish.terms:
                if wish.least is not None:
                    covered = [entry for axis in self.problem.mesh.all_axes for entry in self.cover(term, axis)]
                    rows.add(covered, wish.least, np.inf)  # entries of one variable add up
                    continue
                for axis in self.problem.mesh.all_axes:
                    bound = 1.0 if wish.cut else 0.0
                    covered = self.cover(term, axis)
                    if covered:
                        rows.add(covered, bound, np.inf if wish.cut else 0.0)
                    elif wish.cut:
                        return None
        if not self.cost:
            return {}, 0.0
        scale = max(max(self.cost), 1.0) / LARGEST_COEFFICIENT
        entries = np.array(rows.data, dtype=float).reshape(-1, 3)
        matrix = coo_array(
            (entries[:, 2], (entries[:, 0].astype(int), entries[:, 1].astype(int))),
            shape=(len(rows.low), len(self.cost)),
        )
        found = milp(
            np.array(self.cost) / scale,
            integrality=np.array(self.integer),
            bounds=Bounds(0, np.array(self.upper)),
            constraints=LinearConstraint(matrix.tocsr(), np.array(rows.low), np.array(rows.high)),
            options={"mip_rel_gap": 1e-9},
        )
        if found.x is None:
            return None
        choice = {group: axes for (group, axes), column in self.x.items() if axes and found.x[column] > 0.5}
        return choice, float(found.fun) * scale


def feasible(problem: Problem, mesh: Mesh, choice: Choice) -> list[tuple[int, int]]:
    """Pairs of groups that a choice cuts over one sub-axis though they cannot be."""
    return [
        (a, b)
        for a, b in sorted(problem.exclusive)
        if a in choice and b in choice and (a == b or set(choice[a]) & set(choice[b]))
    ]
