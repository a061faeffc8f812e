"""A plan as Hugging Face's tp_plan: module → style, as far as the styles of transformers can say it.

torch divides a parameter's axis into equal runs. A plan that divides it otherwise (parts of a fused weight each on
their own, key heads that several ranks hold) is told with the styles that gather the result and split the operand:
the numbers and the memory stay, and more is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim, root
from tpcompile.errors import refuse
from tpcompile.graph.program import Node, Value
from tpcompile.plan.module_names import module_of, names_of, path_of
from tpcompile.plan.problem import Problem
from tpcompile.plan.roles import axis_roles, readers_of
from tpcompile.plan.uses import stored_bytes, uncut_leaves, weight_uses

GATHERED = "said with gathered results, which sends more: transformers has no style for"


@dataclass(frozen=True)
class _Use:
    """A weight of two axes or more, as one module reads it; `axis` is the one that is cut, None where none is.

    `bare` is a parameter that is no layer's weight, as those of experts are: styles go by its axes.
    """

    module: str
    bare: bool
    value: Value
    axes: Sequence[Dim]
    role: str
    axis: int | None
    groups: frozenset[int]


def export_tp_plan(analysis: Analysis, problem: Problem, cut: Cut) -> tuple[dict[str, str], list[str]]:
    """Module → style in the order of the graph, and what of the plan cannot be said, with the reasons.

    Raises:
        Refused: TP156 there is nothing to say.
    """
    notes: list[str] = []
    uses = list(_module_uses(analysis, problem, cut, notes))
    gathered = _told_gathered(analysis, problem, cut, uses)
    summed = {group for use in uses if use.role == "row" for group in use.groups}
    styles: dict[str, str] = {}
    for use in uses:
        key = re.sub(r"\.\d+(?=\.|$)", ".*", use.module)
        style = _style(use, cut, gathered, summed)
        if styles.setdefault(key, style) != style:
            notes.append(f"{use.module}: {style} cannot be said, since other layers have {styles[key]}")
            continue
        why = next((gathered[group] for group in use.groups if group in gathered), "")
        if why and use.role != "vocab" and (note := f"{key}: {GATHERED} {why}") not in notes:
            notes.append(note)
        if use.bare and use.role in ("column", "row"):
            styles.setdefault(key.rpartition(".")[0], "moe_tp_experts")
    if not styles:
        fact = "no weight that is cut has the name of a module, and styles are said of modules"
        remedy = "Export the model with names: torch's exporter keeps them in the metadata"
        raise refuse("TP156", "--export-tp-plan", fact, remedy)
    return styles, notes


def _module_uses(analysis: Analysis, problem: Problem, cut: Cut, notes: list[str]) -> Iterator[_Use]:
    order = {node: index for index, node in enumerate(analysis.program.nodes)}
    found = sorted(weight_uses(analysis), key=lambda use: (min(order[node] for node in use[2]), -stored_bytes(use[0])))
    taken: set[str] = set()
    for value, axes, nodes in found:
        if len(axes) < 2 or not _is_matrix(analysis, nodes):
            continue
        stuck = uncut_leaves(analysis, value, nodes)
        here = [index for index, dim in enumerate(axes) if any(leaf not in stuck for leaf in cut.leaves(dim))]
        bare = len(axes) > 2 and "." in value.name and module_of(value.name) == value.name
        modules = {value.name: nodes[0]} if bare else _modules(value, nodes)
        modules = {module: node for module, node in modules.items() if module not in taken}
        taken.update(modules)
        if not modules and here and not any(name in taken for name in names_of(value, nodes)):
            notes.append(f"{value.name}: it has lost the name of its module")
        if here and (len(here) > 1 or any(node.op == "Conv" for node in readers_of(nodes))):
            notes.append(f"{value.name}: styles cut linear layers and embeddings, along one axis")
            continue
        roles = axis_roles(analysis, axes, nodes)
        axis = here[0] if here else None
        groups = frozenset(problem.group_of[leaf] for index in here for leaf in cut.leaves(axes[index]))
        for module, node in modules.items():
            role = roles[axis] if axis is not None else "whole"
            if role == "vocab" and not any(_looks_up(analysis, reader) for reader in readers_of([node])):
                role = "column"  # the head that a table is as well
            yield _Use(module, bare, value, axes, role, axis, groups)


def _modules(value: Value, nodes: Sequence[Node]) -> dict[str, Node]:
    """The modules that read a weight, with the node that does: by its path, else by the weight's own name."""
    own = module_of(value.name)
    paths = {path_of(node): node for node in nodes if path_of(node)}
    return paths or ({own: nodes[0]} if "." in value.name else {})


def _looks_up(analysis: Analysis, node: Node) -> bool:
    return node in analysis.relations and analysis.relations[node].lookup is not None


def _is_matrix(analysis: Analysis, nodes: Sequence[Node]) -> bool:
    """Whether a product or a lookup reads a weight."""
    return any(node in analysis.relations and analysis.relations[node].reduced for node in readers_of(nodes))


def _told_gathered(analysis: Analysis, problem: Problem, cut: Cut, uses: Sequence[_Use]) -> dict[int, str]:
    """The groups that styles of transformers cannot divide as the plan does, with the reason."""
    found: dict[int, str] = {}
    for use in uses:
        if use.axis is not None and use.role != "vocab" and not _as_torch(cut, use.axes[use.axis], use.role):
            for group in use.groups:
                found.setdefault(group, f"how {use.module} is divided")
    modules = {use.module for use in uses}
    for value, axes, nodes in weight_uses(analysis):
        if len(axes) == 1 and cut.leaves(axes[0]) and not modules.intersection(names_of(value, nodes)):
            for leaf in cut.leaves(axes[0]):
                found.setdefault(problem.group_of[leaf], f"cutting {value.name}")
    return found


def _as_torch(cut: Cut, dim: Dim, role: str) -> bool:
    """Whether torch divides an axis alike: into one run for each rank, or into one of each half (`packed_colwise`)."""
    top, ranks = root(dim), cut.mesh.tp
    if top.kind == "leaf":
        return cut.mesh.degree(cut.of(top)) == ranks
    return _runs(cut, dim, 1) or (role == "column" and _is_packed(cut, dim))


def _is_packed(cut: Cut, dim: Dim) -> bool:
    top = root(dim)
    halves = top.kind == "sum" and len(top.parts) == 2 and top.parts[0].size == top.parts[1].size
    return halves and _runs(cut, dim, 2)


def _runs(cut: Cut, dim: Dim, parts: int) -> bool:
    """Whether each rank holds the run of its number of each of so many equal parts of an axis."""
    ranks, size = cut.mesh.tp, dim.size
    if size % (parts * ranks):
        return False
    whole = np.arange(size).reshape(parts, ranks, -1)
    return all(np.array_equal(cut.index(dim, rank), whole[:, rank].ravel()) for rank in range(ranks))


def _style(use: _Use, cut: Cut, gathered: dict[int, str], summed: set[int]) -> str:
    if use.axis is None:
        return "replicate"
    apart = not use.groups.isdisjoint(gathered)
    if use.bare:
        if use.role == "expert":
            return "grouped_gemm"
        kind = "colwise" if use.axis == len(use.axes) - 2 else "rowwise"
        return f"packed_{kind}" if _is_packed(cut, use.axes[use.axis]) else kind
    if use.role == "vocab":
        return "embedding_rowwise"
    if use.role == "row":
        return "rowwise_split_input" if apart else "rowwise"
    if apart or use.groups.isdisjoint(summed):
        return "colwise_gather_output"
    return "packed_colwise" if _is_packed(cut, use.axes[use.axis]) else "colwise"
