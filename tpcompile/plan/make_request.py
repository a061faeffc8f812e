"""From what a user gives to a request that the passes read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpcompile.plan.recipe import find_recipe
from tpcompile.plan.request import Request
from tpcompile.plan.tp_plan import read_tp_plan


def make_request(
    tp: int,
    objective: str | None,
    pins: Mapping[str, str] | Sequence[tuple[str, str]],
    outputs: str | None,
    sizes: Mapping[str, int] | None,
    plan: str | Path | None,
    state: Mapping[str, str] | None,
    roles: Mapping[str, str] | None,
    strict: bool,
    topology: str,
    memory_per_rank: int | None,
    recipe: str | Path | None,
    tp_plan: str | Path | Mapping[str, str] | None,
    forbids: Mapping[str, str] | Sequence[tuple[str, str]],
    reduce_dtype: str | None = None,
    **more: Any,
) -> Request:
    """What was asked for, in the form that the passes read: what is not given is the recipe's, else the default's."""
    used = None if recipe is None else find_recipe(str(recipe))
    return Request(
        tp, objective or (used and used.objective) or "balanced", _pairs(pins),
        outputs=outputs or (used and used.outputs) or "whole", sizes=dict(sizes or {}),
        plan=None if plan is None else Path(plan), state=dict(state or {}), roles=dict(roles or {}), strict=strict,
        topology=topology,
        reduce_dtype=reduce_dtype or (used and used.reduce_dtype) or "float32", memory_bytes=memory_per_rank,
        recipe=used, forbids=_pairs(forbids), tp_plan=None if tp_plan is None else read_tp_plan(tp_plan), **more,
    )  # fmt: skip


def _pairs(given: Mapping[str, str] | Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(given.items()) if isinstance(given, Mapping) else tuple(given)
