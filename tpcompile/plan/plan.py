"""A plan: which classes are cut, over which sub-axes, what that saves and costs, and why the rest stays whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tpcompile.dims.cut import Cut, Mesh, SubAxes, block
from tpcompile.graph.program import Value
from tpcompile.plan.problem import DimClass, Problem


@dataclass(frozen=True)
class Reason:
    """Why something stays whole, and what would change that ("" where nothing would)."""

    text: str
    remedy: str = ""


@dataclass(frozen=True)
class PlannedGroup:
    """Classes of repeated layers that share a decision.

    `saved_bytes` are those a rank does not hold because of this cut, over all classes of the group; `reason` says why
    a group that is left whole is, `remedy` what would change that.
    """

    name: str
    count: int
    size: int
    axes: SubAxes
    degree: int
    blocks: tuple[int, ...]
    weights: tuple[str, ...]
    stored_bytes: int
    saved_bytes: int
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Plan:
    """The decision over a whole graph. `cut` is what everything else is computed from.

    `gathered` are weights that are stored cut all the same, and gathered whole before use; `recipe` names the recipe it
    was made by, "" where it was none.
    """

    mesh: Mesh
    objective: str
    cut: Cut
    groups: tuple[PlannedGroup, ...]
    gathered: frozenset[Value] = frozenset()
    recipe: str = ""

    @property
    def cuts_something(self) -> bool:
        return bool(self.cut.axes or self.gathered)


def make_plan(problem: Problem, choice: Mapping[int, SubAxes], objective: str, reasons: Mapping[int, Reason]) -> Plan:
    """Turn a choice per group into a plan."""
    mesh = problem.mesh
    axes = {cls.leaf: choice[cls.group] for cls in problem.classes if choice.get(cls.group)}
    groups = [_planned(problem, index, classes, choice, reasons) for index, classes in enumerate(problem.groups)]
    ordered = sorted(groups, key=lambda group: (not group.axes, -group.stored_bytes, group.name))
    return Plan(mesh, objective, Cut(mesh, axes), tuple(ordered))


def _planned(
    problem: Problem, index: int, classes: list[DimClass], choice: Mapping[int, SubAxes], reasons: Mapping[int, Reason]
) -> PlannedGroup:
    mesh, axes, why = problem.mesh, choice.get(index, ()), reasons.get(index, Reason(""))
    degree = mesh.degree(axes)
    size, grain = classes[0].size, classes[0].leaf.grain
    blocks = tuple(stop - start for start, stop in (block(size, degree, k, grain) for k in range(degree)))
    stored = sum(nbytes for key, nbytes in problem.weights.items() if index in key)
    saved = sum(
        nbytes
        / mesh.degree(tuple(sorted({a for g in key - {index} for a in choice.get(g, ())})))
        * (1 - max(blocks) / size)
        for key, nbytes in problem.weights.items()
        if index in key
    )
    return PlannedGroup(
        name=classes[0].name,
        count=len(classes),
        size=size,
        axes=axes,
        degree=degree,
        blocks=blocks,
        weights=tuple(sorted({f"{value.name}[{axis}]" for cls in classes for value, axis, _ in cls.places})),
        stored_bytes=stored,
        saved_bytes=round(saved),
        reason=why.text,
        remedy=why.remedy,
    )
