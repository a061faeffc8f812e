"""A step in sections: what comes before the layers, one of the layers that are alike, and what comes after."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpcompile.plan.summary import PlanSummary, StepEntry

FEW = 16
"""Elements of a stored tensor that is an operator's parameter, an exponent or a bound, and no weight."""


@dataclass(frozen=True)
class Section:
    """A part of a step that is shown: `places` of its entries in the step; it stands for `count` alike ones."""

    title: str
    places: tuple[int, ...]
    entries: tuple[StepEntry, ...]
    count: int = 1


def sections(plan: PlanSummary) -> list[Section]:
    """Before, the middle one of the layers, after; the whole step where there are none. None of them is empty."""
    if plan.layers < 2:
        return _sections(plan, [("The step", range(-1, plan.layers + 1), 1)])
    middle, last = plan.layers // 2, plan.layers - 1
    return _sections(
        plan,
        [
            ("Before the layers", range(-1, 0), 1),
            (f"Layer {middle}, of 0 to {last}", range(middle, middle + 1), plan.layers),
            ("After the layers", range(plan.layers, plan.layers + 1), 1),
        ],
    )


def _sections(plan: PlanSummary, wanted: list[tuple[str, range, int]]) -> list[Section]:
    found = []
    for title, layers, count in wanted:
        places = tuple(place for place, entry in enumerate(plan.step) if entry.layer in layers)
        if places:
            found.append(Section(title, places, tuple(plan.step[place] for place in places), count))
    return found


def middle_layer(plan: PlanSummary) -> Section | None:
    """The layer that stands for all; without one the longest section; None where a step computes nothing."""
    found = sections(plan)
    return max(found, key=lambda section: (section.count, len(section.entries)), default=None)


def constants(plan: PlanSummary) -> frozenset[str]:
    """Names of the stored tensors of a few elements that every rank holds: nobody looks for them among weights."""
    return frozenset(row.name for row in plan.weights if row.how == "whole" and math.prod(row.shape) <= FEW)
