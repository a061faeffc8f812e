"""What recipes and tp_plans ask of weights, turned into wishes on one model.

An ask differs from a pin of the command line in two ways. It goes as far as whole heads go: where there are fewer key
heads than ranks, these are copied instead of being cut up. And it gives way to what the user says explicitly.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Mesh
from tpcompile.dims.dim import Dim, leaves
from tpcompile.graph.program import Node, Value
from tpcompile.plan.problem import Problem
from tpcompile.plan.roles import SEEN_THROUGH, axis_roles
from tpcompile.plan.solve import Solver, Wish
from tpcompile.plan.uses import PICKING, stored_bytes, terms, uncut_leaves

COPIES = ", so ranks hold copies"
Use = tuple[Value, list[Dim], list[Node]]


@dataclass(frozen=True)
class Ask:
    """How some weights should lie.

    Attributes:
        label: who asks for what, for messages: "recipe llama: 'q_proj=column'".
        kind: column, row, vocab, expert, whole or gather.
        uses: the weights, with their dims and readers.
        dims: dimensions that should stay whole, wherever they stand.
        optional: whether it is passed over where it cannot be.
        forbid: whether the weights should not lie so, and may lie otherwise.
    """

    label: str
    kind: str
    uses: tuple[Use, ...] = ()
    dims: Collection[Dim] = ()
    optional: bool = True
    forbid: bool = False


@dataclass(frozen=True)
class Answer:
    """The wishes of an ask on a model; `note` says where it is followed in part, or why not at all."""

    ask: Ask
    wishes: tuple[Wish, ...]
    note: str = ""


class Asker:
    """Turns asks into wishes on one model."""

    def __init__(self, analysis: Analysis, problem: Problem) -> None:
        self.analysis, self.problem = analysis, problem
        self.inner = _within_heads(analysis)

    def answer(self, ask: Ask, spared: frozenset[Value] = frozenset()) -> Answer:
        """The wishes of an ask, leaving alone the weights that are `spared`."""
        ask = replace(ask, uses=tuple(use for use in ask.uses if use[0] not in spared))
        wishes: list[Wish] = []
        notes: list[tuple[float, str]] = []
        if ask.dims:
            wishes.append(Wish(ask.label, (self._groups(ask.dims),), False))
        for use in ask.uses:
            found, note = self._wishes(ask, use)
            wishes += found
            notes += [(stored_bytes(use[0]), note)] if note and len(use[1]) > 1 else []
        note = max(notes, key=lambda found: found[0])[1] if notes else ""
        if note.endswith(COPIES):
            note = f": {note}"
        else:
            note = f" is passed over: {note}" if note and not any(wish.cut for wish in wishes) else ""
        return Answer(ask, tuple(dict.fromkeys(wishes)), f"{ask.label}{note}" if note else "")

    def cut_by(self, wishes: Iterable[Wish], uses: Iterable[Use]) -> frozenset[Value]:
        """The weights among `uses` that wishes want cut: they cannot be stored in other parts."""
        cut = {group for wish in wishes if wish.cut for term in wish.terms for group in term}
        return frozenset(
            value for value, axes, _ in uses if self._groups([leaf for dim in axes for leaf in leaves(dim)]) & cut
        )

    def _groups(self, inside: Iterable[Dim], stuck: set[Dim] | None = None) -> frozenset[int]:
        group_of, barred = self.problem.group_of, stuck or set()
        return frozenset(group_of[leaf] for leaf in inside if leaf in group_of and leaf not in barred)

    def _wishes(self, ask: Ask, use: Use) -> tuple[list[Wish], str]:
        """What an ask wishes of one weight, and what is to be said of it."""
        value, axes, nodes = use
        stuck = uncut_leaves(self.analysis, value, nodes)
        if ask.kind in ("whole", "gather"):
            return [Wish(ask.label, (self._groups([leaf for dim in axes for leaf in leaves(dim)], stuck),), False)], ""
        roles = axis_roles(self.analysis, axes, nodes)
        meant = [dim for dim, role in zip(axes, roles, strict=True) if role == ask.kind]
        if not meant:
            return [], f"{value.name} has no such axis (its axes are {', '.join(dict.fromkeys(roles))})"
        wishes: list[Wish] = []
        wanted = self._groups([leaf for dim in meant for leaf in leaves(dim)], stuck)
        if ask.forbid:
            return [Wish(ask.label, (wanted,), False)], ""
        other = self._groups([leaf for dim in axes if dim not in meant for leaf in leaves(dim)], stuck) - wanted
        if other:
            wishes.append(Wish(ask.label, (other,), False))
        if not wanted:
            blocked = [self.analysis.blocked[node].get(leaf) for node in nodes for dim in meant for leaf in leaves(dim)]
            why = next((reason for reason in blocked if reason), "it stands in no dimension that can be cut")
            return [], f"{value.name} cannot be cut so ({why})"
        note = ""
        ranks = self.problem.mesh.tp
        for dim in meant:
            for inside, _ in terms(dim):
                if not self._groups(inside, stuck):
                    continue
                group = self._groups([leaf for leaf in inside if leaf not in self.inner], stuck)
                parts = [self.problem.groups[g][0].most_parts for g in sorted(group) if self._may_be_cut(g)]
                least = reach(self.problem.mesh, parts)
                if least:
                    wishes.append(Wish(ask.label, (group,), True, least))
                if least < len(self.problem.mesh.primes):
                    count = " × ".join(map(str, parts)) or "1"
                    note = f"{value.name} has {count} parts for {ranks} ranks{COPIES}"
        return wishes, note

    def _may_be_cut(self, group: int) -> bool:
        return group not in self.problem.forbidden and (group, group) not in self.problem.exclusive


def reach(mesh: Mesh, parts: Sequence[int]) -> int:
    """Over how many sub-axes dimensions of so many parts can be cut together."""
    states = {tuple(1 for _ in parts): 0}
    for prime in mesh.primes:
        for degrees, count in list(states.items()):
            for place, most in enumerate(parts):
                if degrees[place] * prime <= most:
                    more = (*degrees[:place], degrees[place] * prime, *degrees[place + 1 :])
                    states[more] = max(states.get(more, 0), count + 1)
    return max(states.values())


def settle(
    solver: Solver, explicit: Sequence[Wish], rounds: Sequence[Sequence[Answer]]
) -> tuple[list[Wish], list[str]]:
    """What is explicit with the wishes of asks that can hold beside it, and what is to be told of the others.

    Each round gives way to those before it.
    """
    wishes, notes = list(explicit), list[str]()
    for answers in rounds:
        kept, told = _settled(solver, wishes, answers)
        wishes, notes = wishes + kept, notes + told
    return wishes, notes


def _settled(solver: Solver, explicit: Sequence[Wish], answers: Sequence[Answer]) -> tuple[list[Wish], list[str]]:
    """The wishes of one round that can hold.

    Those that are not optional must hold, unless what is explicit is against it: where they cannot, their wishes are
    kept, and solving refuses them by name. Of optional ones those hold that stand first.
    """
    notes = [answer.note for answer in answers if answer.note]
    every = [wish for answer in answers for wish in answer.wishes]
    if not every or solver.solve([*explicit, *every]) is not None:
        return every, notes
    if solver.solve(explicit) is None:
        return [], notes
    kept: list[Wish] = []
    for answer in sorted(answers, key=lambda answer: answer.ask.optional):
        beside = [*explicit, *kept] if answer.ask.optional else explicit
        if solver.solve([*beside, *answer.wishes]) is not None:
            kept += answer.wishes
            continue
        alone = solver.solve(answer.wishes) is not None
        if not alone and not answer.ask.optional:
            kept += answer.wishes
            continue
        against = "what was asked for explicitly" if solver.solve([*explicit, *answer.wishes]) is None else "others"
        why = f"it cannot hold beside {against}" if alone else "no plan cuts it so"
        notes.append(f"{answer.ask.label} is passed over: {why}")
    return kept, notes


def _within_heads(analysis: Analysis) -> set[Dim]:
    """Leaves that stand inside of what attention works on as a whole: head sizes.

    They are summed, or kept from one side, by a product of two computed values; or an attention operator needs them
    whole.
    """
    found: set[Dim] = set()
    for node, relation in analysis.relations.items():
        if "Attention" in node.op:
            found.update(analysis.blocked[node])
        computed = [
            {leaf for dim in axes for leaf in leaves(dim)}
            for value, axes in zip(node.inputs, relation.inputs, strict=True)
            if value is not None and axes is not None and _is_computed(value)
        ]
        if relation.reduced and relation.lookup is None and len(computed) > 1:
            summed = {leaf for reduced in relation.reduced for leaf in leaves(reduced.dim)}
            for one, other in itertools.combinations(computed, 2):
                found |= (one ^ other) | (summed & one & other)
    return found


def _is_computed(value: Value) -> bool:
    """Whether a value is more than a stored tensor in another form, or a part that was picked of one."""
    while value.weight is None:
        node = value.producer
        if node is None or node.op not in (*SEEN_THROUGH, *PICKING) or node.inputs[0] is None:
            return True
        value = node.inputs[0]
    return False
