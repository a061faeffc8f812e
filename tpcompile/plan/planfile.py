"""plan.toml: the plan as a file that a person can read, edit and give back (`--plan plan.toml`)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpcompile.dims.cut import SubAxes
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.plan.plan import Plan, Reason
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Choice, feasible

FORMAT = 1
LEFT_WHOLE = Reason("the plan file leaves it whole", "sub_axes for it in the file")
HEADER = """# What tpcompile cut, and over which sub-axes of the {tp} ranks. Edit `sub_axes` and give the file back:
#     tpcompile MODEL --tp {tp} --plan plan.toml
# The ranks are a grid of {grid}; sub_axes = [] leaves a dimension whole, {example} cuts it over all of them.
"""


def plan_toml(plan: Plan) -> str:
    """The text of plan.toml: groups of repeated layers, the cut ones first."""
    primes = list(plan.mesh.primes)
    gathered = sorted(value.name for value in plan.gathered)
    lines = [
        HEADER.format(tp=plan.mesh.tp, grid=" × ".join(map(str, primes)) or "1", example=list(plan.mesh.all_axes)),
        f"format = {FORMAT}",
        f"tp = {plan.mesh.tp}",
        f"grid = {primes}",
        f"objective = {json.dumps(plan.objective)}",
        *([f"recipe = {json.dumps(plan.recipe)}"] if plan.recipe else []),
        *(["gathered = [" + "".join(f"\n    {json.dumps(name)}," for name in gathered) + "\n]"] if gathered else []),
    ]
    for group in plan.groups:
        lines += [
            "",
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
        lines.append("weights = [" + "".join(f"\n    {json.dumps(weight)}," for weight in group.weights) + "\n]")
    return "\n".join(lines) + "\n"


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
            sub-axes that cannot be cut so, TP114 two dimensions that exclude each other; all faults at once.
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
    faults = []
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


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error) if isinstance(error, ValueError) else "an entry is of another type"
