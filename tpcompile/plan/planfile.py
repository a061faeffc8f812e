"""plan.toml: the plan as a file that a person can read, edit and give back (`--plan plan.toml`)."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tpcompile.dims.cut import SubAxes
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.plan.plan import Plan
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Choice, feasible

HEADER = """# What tpcompile cut, and over which sub-axes of the {tp} ranks. Edit `sub_axes` and give the file back:
#     tpcompile MODEL --tp {tp} --plan plan.toml
# The ranks are a grid of {grid}; sub_axes = [] leaves a dimension whole, {example} cuts it over all of them.
"""


def plan_toml(plan: Plan) -> str:
    """The text of plan.toml: groups of repeated layers, the cut ones first."""
    primes = list(plan.mesh.primes)
    lines = [
        HEADER.format(tp=plan.mesh.tp, grid=" × ".join(map(str, primes)) or "1", example=list(plan.mesh.all_axes)),
        "format = 1",
        f"tp = {plan.mesh.tp}",
        f"grid = {primes}",
        f"objective = {json.dumps(plan.objective)}",
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
        lines.append("weights = [" + "".join(f"\n    {json.dumps(weight)}," for weight in group.weights) + "\n]")
    return "\n".join(lines) + "\n"


def read_choice(path: Path, problem: Problem) -> Choice:
    """The choice that a plan.toml makes for this problem.

    Raises:
        Refused: TP110 not readable, TP111 made for another tp, TP112 a dimension the model does not have, TP113
            sub-axes that cannot be cut so, TP114 two dimensions that exclude each other; all faults at once.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        dimensions = content["dimension"] if content.get("dimension") is not None else []
        entries = [(str(d["name"]), tuple(int(axis) for axis in d["sub_axes"])) for d in dimensions]
        tp = int(content["tp"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise refuse(
            "TP110", str(path), f"it is no plan ({error})", "Give a plan.toml that `tpcompile` wrote"
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
        size = problem.groups[groups[name]][0].size
        if list(axes) != sorted(set(axes) & set(mesh.all_axes)):
            faults.append(
                Fault(
                    "TP113",
                    f"{path}: '{name}'",
                    f"sub_axes {list(axes)} are not ascending numbers of the grid {list(mesh.primes)}",
                    f"Use some of {list(mesh.all_axes)}",
                )
            )
        elif axes and (mesh.degree(axes) > size or groups[name] in problem.forbidden):
            why = problem.forbidden.get(groups[name], f"its size {size} gives fewer than {mesh.degree(axes)} parts")
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
    return choice
