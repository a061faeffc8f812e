"""Hold the whole plan against the graph before anything is changed: no tensor may be cut twice over one sub-axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim, leaves, root
from tpcompile.errors import Fault, raise_all
from tpcompile.graph.program import Node
from tpcompile.passes.compilation import Compilation


@dataclass(frozen=True)
class CheckPlan:
    """Needs a plan. The solver's own plans hold; one that was edited by hand may not.

    Raises:
        Refused: TP115, for every node whose operands would be cut along two dims over one sub-axis.
    """

    name: ClassVar[str] = "check plan"

    def run(self, work: Compilation) -> str:
        names = {cls.leaf: cls.name for cls in work.problem.classes}
        faults: dict[tuple[str, str], Fault] = {}
        for node, relation in work.analysis.relations.items():
            blocked = work.analysis.blocked[node]
            active = frozenset(
                leaf
                for axes in (*relation.inputs, *relation.outputs)
                for dim in axes or ()
                for leaf in work.plan.cut.leaves(dim)
                if leaf not in blocked
            )
            if len(active) < 2:
                continue
            local = work.plan.cut.only(active)
            sides = [axes for axes in (*relation.inputs, *relation.outputs) if axes is not None]
            kept = [dim for axes in relation.outputs for dim in axes or ()]
            clashes = [pair for axes in sides for pair in clashing(local, axes)]
            clashes += [
                pair for reduced in relation.reduced for dim in kept for pair in clashing(local, [reduced.dim, dim])
            ]
            for a, b in clashes:
                key = (names.get(a, repr(a)), names.get(b, repr(b)))
                faults.setdefault(key, _fault(node, *key))
        raise_all(faults.values())
        return ""


def _fault(node: Node, a: str, b: str) -> Fault:
    fact = f"'{a}' and '{b}' are both cut over one sub-axis and meet in it"
    return Fault("TP115", f"{node.op} {node.name}", fact, "Leave one of them whole")


def clashing(cut: Cut, axes: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """Pairs of leaves that stand in different factors of a tensor and are cut over one sub-axis."""
    found: list[tuple[Dim, Dim]] = []
    seen: dict[int, Dim] = {}
    for dim in axes:
        mine: dict[int, Dim] = {}
        for leaf in leaves(dim):
            for axis in cut.of(leaf):
                if axis in seen and seen[axis] is not leaf:
                    found.append((seen[axis], leaf))
                mine[axis] = leaf
        seen.update(mine)
        top = root(dim)
        if top.kind == "product":
            found += clashing(cut, top.parts)
        elif top.kind == "sum":
            for part in top.parts:
                found += clashing(cut, [part]) if root(part).kind != "leaf" else []
    return found
