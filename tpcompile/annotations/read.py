"""The annotations of a model's stored tensors, as wishes for its plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onnx import ModelProto, NodeDeviceConfigurationProto

from tpcompile.annotations.layout import Share
from tpcompile.annotations.match import Misfit, shares
from tpcompile.annotations.source_nodes import source_nodes
from tpcompile.annotations.spec import read_spec
from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut, Mesh, SubAxes
from tpcompile.dims.dim import Dim, leaves
from tpcompile.dims.placement import active_leaves
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.graph.program import Node
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Wish, feasible, sub_axis_sets

IGNORE = "use --annotations ignore"
ALIKE = f"Annotate them alike, or {IGNORE}"
CORRECT = f"Correct or remove the annotation, or {IGNORE}"


@dataclass
class Followed:
    """What annotations ask of a plan: `wishes`; `tensors` counts the annotated operands that they come from."""

    configuration: str = ""
    wishes: list[Wish] = field(default_factory=list)
    tensors: int = 0


@dataclass(frozen=True)
class _Told:
    """What the annotation of an operand says of one leaf: cut over `axes`, () for whole."""

    where: str
    tensor: str
    node: Node
    leaf: Dim
    axes: SubAxes


def follow(model: ModelProto, file: str, analysis: Analysis, problem: Problem) -> Followed:
    """The wishes of a model's annotations for as many devices as there are ranks.

    Only annotations of stored tensors, at the nodes that read them, decide: how computed values lie follows from them.

    Raises:
        Refused: TP161 annotations for another number of devices, or several for this one; TP162 those that cannot be
            followed, TP163 those that contradict each other, all of both kinds at once; TP168 to TP170 as the checker.
    """
    tp = problem.mesh.tp
    if not model.configuration or tp == 1:
        return Followed()
    name = _configuration(model, file, tp)
    told: list[_Told] = []
    faults: list[Fault] = []
    count = 0
    for found in source_nodes(model.graph, analysis.program):
        entries = [entry for entry in found.proto.device_configurations if entry.configuration_id == name]
        if found.node is None or found.node not in analysis.relations or not entries:
            continue
        for index, said, fault in _operands(entries[0], found.proto.input, found.where, found.node, analysis, tp):
            if fault is not None:
                faults.append(fault)
                continue
            tensor, count = found.proto.input[index], count + 1
            faults += _told(told, f"{found.where}: {tensor}", tensor, found.node, index, said, analysis, problem)
    cut, more = _agreed(told, problem)
    more += _whole(told, cut, analysis, problem) if not more else []
    raise_all(dict.fromkeys([*faults, *more]))
    label = f"the annotations of {file}"
    wishes = [Wish(label, (frozenset((group,)),), bool(axes), over=axes) for group, axes in sorted(cut.items())]
    return Followed(name, wishes, count)


def _configuration(model: ModelProto, file: str, tp: int) -> str:
    """The name of the configuration for so many devices."""
    fitting = [str(found.name) for found in model.configuration if found.num_devices == tp]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        fact = f"it has {len(fitting)} configurations of {tp} devices: {', '.join(fitting[:8])}"
        raise refuse("TP161", file, fact, f"Remove all but one, or {IGNORE}")
    degrees = sorted({found.num_devices for found in model.configuration})
    fact = f"its annotations are for {' or '.join(map(str, degrees[:8]))} devices, not for {tp}"
    raise refuse("TP161", file, fact, f"Use --tp {degrees[-1]}, or --annotations ignore")


def _operands(
    entry: NodeDeviceConfigurationProto, names: Sequence[str], where: str, node: Node, analysis: Analysis, tp: int
) -> Iterator[tuple[int, dict[Dim, Share], Fault | None]]:
    """The stored operands of a node that are annotated: which leaves the annotation cuts, or what is wrong with it."""
    for spec in entry.sharding_spec:
        for index, name in enumerate(names):
            value = node.inputs[index] if name == spec.tensor_name and index < len(node.inputs) else None
            axes = analysis.operand_axes(node, index) if value is not None else None
            if value is None or value.weight is None or axes is None:
                continue
            place = f"{where}: {name}"
            found, wrong = read_spec(spec, value.weight.shape, tp)
            if found is None:
                for fault in wrong:
                    yield index, {}, Fault(fault.code, place, fault.fact, fault.remedy)
                continue
            if len(found.devices) < tp:
                fact = f"it lies on {len(found.devices)} of the {tp} devices"
                yield index, {}, Fault("TP162", place, fact, "Name all of them: what is not cut is on each")
                continue
            try:
                yield index, shares(axes, found), None
            except Misfit as reason:
                yield index, {}, Fault("TP162", place, str(reason), CORRECT)


def _told(
    told: list[_Told],
    where: str,
    tensor: str,
    node: Node,
    index: int,
    said: dict[Dim, Share],
    analysis: Analysis,
    problem: Problem,
) -> Iterator[Fault]:
    """Enter what an annotation says of each leaf; the faults of leaves that cannot be cut so."""
    axes, blocked = analysis.operand_axes(node, index) or [], analysis.blocked[node]
    for leaf in dict.fromkeys(leaf for dim in axes for leaf in leaves(dim)):
        share = said.get(leaf)
        if share is None:
            if leaf in problem.group_of and leaf not in blocked:
                told.append(_Told(where, tensor, node, leaf, ()))
            continue
        group = problem.group_of.get(leaf)
        reason = blocked.get(leaf) or (
            "it stands in no dimension that can be cut" if group is None else problem.forbidden.get(group)
        )
        over = _sub_axes(problem.mesh, share, leaf)
        if reason is not None:
            yield Fault("TP162", where, f"it cannot be cut so: {reason}", CORRECT)
        elif not _runs(share, leaf):
            fact = f"its shards are no runs of the dimension of {leaf.size}"
            yield Fault("TP162", where, fact, CORRECT)
        elif share.shards > leaf.most_parts:
            fact = f"{leaf.most_parts} blocks of {leaf.grain} are too few for {share.shards} shards"
            yield Fault("TP162", where, fact, CORRECT)
        elif over is None:
            grid = " × ".join(map(str, problem.mesh.primes))
            fact = f"no cut over axes of the grid of {grid} ranks gives each device the shard it is said to have"
            yield Fault("TP162", where, fact, f"Give shards to devices in ascending order, or {IGNORE}")
        else:
            told.append(_Told(where, tensor, node, leaf, over))


def _runs(share: Share, leaf: Dim) -> bool:
    """Whether shards are runs of a leaf's elements, or of its grains."""
    first, *others = share.factors
    return first.shards > 1 and (not others or [(f.size, f.shards) for f in others] == [(leaf.grain, 1)])


def _sub_axes(mesh: Mesh, share: Share, leaf: Dim) -> SubAxes | None:
    """The sub-axes over which ranks have these shards; where blocks differ in size, ranks may take turns with them."""
    turns = range(share.shards if leaf.size % (share.shards * leaf.grain) else 1)
    for axes in sub_axis_sets(mesh):
        if mesh.degree(axes) == share.shards:
            own = [mesh.coordinate(rank, axes) for rank in range(mesh.tp)]
            for turn in turns:
                if all((mine + turn) % share.shards == held for mine, held in zip(own, share.held, strict=True)):
                    return axes
    return None


def _agreed(told: list[_Told], problem: Problem) -> tuple[dict[int, SubAxes], list[Fault]]:
    """How each group is said to be cut, and where annotations contradict each other."""
    first: dict[int, _Told] = {}
    faults: list[Fault] = []
    for found in told:
        group = problem.group_of[found.leaf]
        other = first.setdefault(group, found) if found.axes else first.get(group, found)
        if found.axes and other.axes != found.axes:
            degree = problem.mesh.degree
            fact = f"they are cut into {degree(found.axes)} and {degree(other.axes)} parts, or over other devices"
            faults.append(Fault("TP163", f"{found.where} and {other.where}", f"{fact}, and are cut as one", ALIKE))
    cut = {group: found.axes for group, found in first.items()}
    for a, b in feasible(problem, problem.mesh, cut):
        fact = "they would be cut over the same devices, and meet in one tensor or product"
        faults.append(Fault("TP163", f"{first[a].where} and {first[b].where}", fact, ALIKE))
    return cut, faults


def _whole(told: list[_Told], cut: dict[int, SubAxes], analysis: Analysis, problem: Problem) -> list[Fault]:
    """Enter the groups that are said to be whole into `cut`; what is said to be whole and would be cut all the same."""
    by_leaf = {leaf: cut[group] for leaf, group in problem.group_of.items() if cut.get(group)}
    followed, faults = Cut(problem.mesh, by_leaf), []
    cutting = {problem.group_of[found.leaf]: found for found in reversed(told) if found.axes}
    for found in told:
        group = problem.group_of[found.leaf]
        if found.axes:
            continue
        if group not in cutting:
            cut[group] = ()
        elif found.leaf in active_leaves(analysis, followed, found.node):
            other = cutting[group]
            fact = f"it is whole there, and cut in {other.where}: one dimension, or one of layers that are alike"
            faults.append(Fault("TP163", found.where, fact, ALIKE))
    return faults
