"""plan.toml: the plan as a file that a person can read, edit and give back (`--plan plan.toml`)."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpcompile.dims.cut import SubAxes
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.plan.plan import Plan, PlannedGroup, Reason
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Choice, feasible
from tpcompile.plan.summary import CutDimension, PlanSummary
from tpcompile.plan.words import bytes_text, calls_text, parts_text, time_text

FORMAT = 1
TOP_KEYS = ("format", "tp", "grid", "objective", "recipe", "gathered", "dimension")
KEYS = ("name", "size", "count", "sub_axes", "blocks", "saves_bytes_per_rank", "because", "remedy", "weights")
"""What `plan_toml` writes."""
LEFT_WHOLE = Reason("the plan file leaves it whole", "sub_axes for it in the file")
HEADER = """\
# How {source} is cut for {ranks}. To change it, edit this file and give it back:
#
#     tpcompile MODEL --tp {tp} --plan plan.toml
#
# Each [[dimension]] is a kind of dimension of the model's weights; `count` layers that are alike share it. `name` says
# where it stands: axis 1 of up.weight is "up.weight[1]", and ".k" behind it the k-th part of an axis that has several.
# The ranks are a grid of {grid}. `sub_axes` says over which of its sub-axes a dimension is cut:
#     {example}    over all ranks
#     []{pad}    not at all: every rank holds all of it
# Only `tp`, `gathered`, and of each dimension `name` and `sub_axes` decide anything; the rest tells what comes of it. A
# dimension that is left out stays whole. What cannot be cut as it is written is refused, with the reason.
#
# {summary}
# {step}
"""
SAYS = {"column": "by columns", "row": "by rows", "vocab": "along the vocabulary", "expert": "by experts"}


def plan_toml(plan: Plan, told: PlanSummary) -> str:
    """The text of plan.toml: what it is in words, then groups of repeated layers, the cut ones first.

    `told` is the summary of the same plan. Nothing of the time or the machine it is written on stands in it.
    """
    primes = list(plan.mesh.primes)
    cut = {found.name: found for found in told.cut}
    lines = [
        _header(plan, told),
        f"format = {FORMAT}",
        f"tp = {plan.mesh.tp}",
        f"grid = {primes}",
        f"objective = {json.dumps(plan.objective)}",
        *([f"recipe = {json.dumps(plan.recipe)}"] if plan.recipe else []),
    ]
    if plan.gathered:
        lines += ["", "# Stored cut, and gathered whole before use."]
        lines.append("gathered = " + _names(sorted(value.name for value in plan.gathered)))
    for group in plan.groups:
        lines += [
            "",
            f"# {_in_words(group, cut.get(group.name))}",
            "[[dimension]]",
            f"name = {json.dumps(group.name)}",
            f"size = {group.size}",
            f"count = {group.count}",
            f"sub_axes = {list(group.axes)}",
            f"blocks = {list(group.blocks)}",
            f"saves_bytes_per_rank = {group.saved_bytes}",
        ]
        if group.reason:
            lines.append(f"because = {json.dumps(group.reason)}")
        if group.remedy:
            lines.append(f"remedy = {json.dumps(group.remedy)}")
        lines.append("weights = " + _names(group.weights))
    return "\n".join(lines) + "\n"


def _header(plan: Plan, told: PlanSummary) -> str:
    found, every = told.estimate, str(list(plan.mesh.all_axes))
    share = found.rank.weights / found.whole.weights if found.whole.weights else 1.0
    sizes = ", ".join(f"{name} {size}" for name, size in found.sizes.items())
    return HEADER.format(
        source=_one_line(told.source), tp=plan.mesh.tp,
        ranks="1 rank" if plan.mesh.tp == 1 else f"{plan.mesh.tp} ranks",
        grid=" × ".join(map(str, plan.mesh.primes)) or "1", example=every, pad=" " * (len(every) - 2),
        summary=f"A rank holds {bytes_text(found.rank.weights)} of weights, {share:.0%} of the model's; "
        f"a step has {calls_text(found.collectives)}.",
        step=_one_line(
            f"On {found.topology.title}{f', at {sizes}' if sizes else ''}: about {time_text(found.step.total)} a step, "
            f"{found.step.communication_share:.0%} of it sending; one device takes {time_text(found.alone.total)}."
        ),
    ).rstrip()  # fmt: skip


def _in_words(group: PlannedGroup, cut: CutDimension | None) -> str:
    """What a kind of dimension is and what became of it."""
    layers = f"In {group.count} layers alike: " if group.count > 1 else ""
    if cut is None:
        return f"{layers}{'whole' if layers else 'Whole'} on every rank."
    into = f"{'cut' if layers else 'Cut'} {SAYS[cut.how]} into {parts_text(group.blocks)}"
    return f"{layers}{into}; saves {bytes_text(group.saved_bytes)} a rank, causes {calls_text(cut.collectives)}."


def _names(names: Iterable[str]) -> str:
    return "[" + "".join(f"\n    {json.dumps(name)}," for name in names) + "\n]"


def _one_line(text: str) -> str:
    """A text as it may stand in a comment: control characters would end it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


@dataclass(frozen=True)
class PlanFile:
    """What a plan.toml says: the choice, what it was best at, and by group why the rest is whole."""

    choice: Choice
    objective: str
    reasons: Mapping[int, Reason]
    recipe: str
    gathered: tuple[str, ...]


def read_plan(path: Path, problem: Problem) -> PlanFile:
    """What a plan.toml says of this problem.

    Raises:
        Refused: TP110 not readable, TP111 made for another tp, TP112 a dimension the model does not have, TP113
            sub-axes that cannot be cut so, TP114 two dimensions that exclude each other, TP143 two entries that say
            different things of one kind of dimension, TP144 a key that no plan has; all faults at once.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, and this tpcompile reads format {FORMAT}")
        entries = [(str(d["name"]), tuple(map(int, d["sub_axes"]))) for d in content.get("dimension", [])]
        because = {
            str(d["name"]): Reason(str(d["because"]), str(d.get("remedy", "")))
            for d in content.get("dimension", [])
            if "because" in d
        }
        gathered = tuple(map(str, content.get("gathered", [])))
        tp, objective, recipe = int(content["tp"]), str(content["objective"]), str(content.get("recipe", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise refuse(
            "TP110", str(path), f"it is no plan ({_why(error)})", "Give a plan.toml that `tpcompile` wrote"
        ) from None
    mesh = problem.mesh
    if tp != mesh.tp:
        raise refuse(
            "TP111",
            str(path),
            f"it was made for tp {tp}, not {mesh.tp}",
            f"Use --tp {tp}, or make a plan for {mesh.tp}",
        )
    groups = {cls.name: index for index, classes in enumerate(problem.groups) for cls in classes}
    choice: dict[int, SubAxes] = {}
    said: dict[int, tuple[str, SubAxes]] = {}
    faults = list(_unknown_keys(path, content))
    for name, axes in entries:
        if name not in groups:
            faults.append(
                Fault(
                    "TP112",
                    f"{path}: '{name}'",
                    "the model has no such dimension",
                    "Make the plan again for this model",
                )
            )
            continue
        first, before = said.setdefault(groups[name], (name, axes))
        if before != axes:
            fact = f"sub_axes {list(before)} and {list(axes)} for one kind of dimension: alike layers are cut alike"
            faults.append(Fault("TP143", f"{path}: '{first}' and '{name}'", fact, "Leave one of them out"))
            continue
        parts = problem.groups[groups[name]][0].most_parts
        if list(axes) != sorted(set(axes) & set(mesh.all_axes)):
            faults.append(
                Fault(
                    "TP113",
                    f"{path}: '{name}'",
                    f"sub_axes {list(axes)} are not ascending numbers of the grid {list(mesh.primes)}",
                    f"Use some of {list(mesh.all_axes)}",
                )
            )
        elif axes and (mesh.degree(axes) > parts or groups[name] in problem.forbidden):
            why = problem.forbidden.get(groups[name], f"it has {parts} parts, fewer than {mesh.degree(axes)}")
            faults.append(
                Fault(
                    "TP113",
                    f"{path}: '{name}'",
                    f"it cannot be cut over {list(axes)}: {why}",
                    "Use fewer sub_axes, or []",
                )
            )
        elif axes:
            choice[groups[name]] = axes
    names = [classes[0].name for classes in problem.groups]
    for a, b in feasible(problem, mesh, choice):
        faults.append(
            Fault(
                "TP114",
                f"{path}: '{names[a]}' and '{names[b]}'",
                "both are dimensions of one tensor or product and cannot be cut over one sub-axis",
                "Set sub_axes = [] for one of them",
            )
        )
    raise_all(faults)
    whole = [group for group in range(len(problem.groups)) if group not in choice]
    reasons = {group: because.get(names[group], LEFT_WHOLE) for group in whole}
    return PlanFile(choice, objective, reasons, recipe, gathered)


def _unknown_keys(path: Path, content: Mapping[str, Any]) -> Iterator[Fault]:
    """A misspelt key would go unnoticed, and the file would say something else than its writer thinks."""
    places: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [("", content, TOP_KEYS)]
    places += [(f"dimension '{entry['name']}': ", entry, KEYS) for entry in content.get("dimension", [])]
    for place, table, known in places:
        for key in table:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                remedy = f"Did you mean {near[0]}?" if near else "Leave it out"
                yield Fault("TP144", f"{path}: {place}{key}", "a plan has no such key", remedy)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error) if isinstance(error, ValueError) else "an entry is of another type"
