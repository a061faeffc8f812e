"""A plan written onto the graph that it was made for, as ONNX's own annotations of every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx

from tpcompile.annotations.layout import Layout, Unsayable, planned
from tpcompile.annotations.source_nodes import SourceNode, source_nodes
from tpcompile.annotations.spec import write_spec
from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim
from tpcompile.dims.placement import NONE, Leaves, active_leaves, door_leaves, within
from tpcompile.graph.program import Node, Value

IR_VERSION = 11
"""The first that has annotations."""
Axes = list[Dim] | None


@dataclass(frozen=True)
class Unsaid:
    """A tensor of a node of which nothing is said, and why."""

    node: str
    tensor: str
    reason: str


@dataclass
class Annotated:
    """An annotated model and what its annotations do not say.

    `nodes` and `tensors` count what is annotated; `left_out` counts nodes that are not, by operator; `uneven` names
    tensors that are divided unevenly: who has the larger parts is for the one who runs it to decide.
    """

    model: onnx.ModelProto
    configuration: str
    nodes: int = 0
    tensors: int = 0
    unsaid: list[Unsaid] = field(default_factory=list)
    uneven: dict[str, None] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def notes(self) -> list[str]:
        """What is worth telling of it."""
        found = [f"{self.nodes} nodes and {self.tensors} tensors annotated, as configuration '{self.configuration}'"]
        if self.unsaid:
            first, names = self.unsaid[0], {entry.tensor for entry in self.unsaid}
            found.append(
                f"annotations have no words for how {len(names)} tensors are cut, and say nothing of them: "
                f"{first.tensor} of {first.node} ({first.reason})" + (" and others" if len(names) > 1 else "")
            )
        if self.uneven:
            found.append(
                f"{len(self.uneven)} tensors are divided unevenly: who has the larger parts is for their runtime to say"
            )
        if self.left_out:
            ops = ", ".join(f"{count} {op}" for op, count in self.left_out.most_common(6))
            found.append(f"{self.left_out.total()} nodes are not annotated, as reading took them apart: {ops}")
        return found


def annotate(source: onnx.ModelProto, analysis: Analysis, cut: Cut, cut_doors: Iterable[Value]) -> Annotated:
    """A copy of a model with a plan as annotations; annotations for as many devices that it had are replaced.

    Args:
        source: the model; it is not changed.
        analysis: the dims of its normalized graph.
        cut: the plan.
        cut_doors: inputs and outputs that may stay cut.
    """
    model = onnx.ModelProto()
    model.CopyFrom(source)
    model.ir_version = max(model.ir_version, IR_VERSION)
    tp = cut.mesh.tp
    replaced = {found.name for found in model.configuration if found.num_devices == tp}
    kept = [found for found in model.configuration if found.name not in replaced]
    name, taken = f"tp{tp}", {found.name for found in kept}
    while name in taken:
        name += "_tpcompile"
    del model.configuration[:]
    model.configuration.extend([*kept, onnx.DeviceConfigurationProto(name=name, num_devices=tp)])
    done = Annotated(model, name)
    writer = _Writer(analysis, cut, frozenset(cut_doors), done)
    for found in source_nodes(model.graph, analysis.program):
        remaining = [entry for entry in found.proto.device_configurations if entry.configuration_id not in replaced]
        del found.proto.device_configurations[:]
        found.proto.device_configurations.extend(remaining)
        writer.node(found)
    return done


class _Writer:
    def __init__(self, analysis: Analysis, cut: Cut, cut_doors: frozenset[Value], done: Annotated) -> None:
        self.analysis, self.cut, self.cut_doors, self.done = analysis, cut, cut_doors, done
        self.whole = Layout(tuple(range(cut.mesh.tp)))
        self.active: dict[Node, Leaves] = {}
        self.outputs = frozenset(analysis.program.outputs)

    def node(self, found: SourceNode) -> None:
        """Annotate a node, or count it among those left out."""
        proto = found.proto
        trivial = found.opaque or found.op in ("Constant", "Identity")
        if found.node is None and not trivial:
            self.done.left_out[proto.op_type] += 1
            return
        said: dict[str, Layout | Unsayable] = {}
        held: dict[str, Leaves] = {}
        for names, ask in ((proto.input, self._operand), (proto.output, self._result)):
            for index, name in enumerate(names):
                if name:
                    axes, held[name] = ask(found, index)
                    lies = self._planned(axes, held[name])
                    twice = Unsayable("the node reads it twice, cut in two ways")
                    said[name] = lies if said.get(name, lies) == lies else twice
        wordless = NONE.union(*(held[name] for name, lies in said.items() if isinstance(lies, Unsayable)))
        specs = []
        for name, lies in said.items():
            if not isinstance(lies, Unsayable) and not wordless.isdisjoint(held[name]):
                lies = Unsayable("another tensor of the node, which is cut with it, has no words")
            if isinstance(lies, Unsayable):
                self.done.unsaid.append(Unsaid(found.where, name, str(lies)))
                continue
            specs.append(write_spec(name, lies))
            if not all(factor.even for _, factors in lies.axes for factor in factors):
                self.done.uneven[name] = None
        proto.device_configurations.add(configuration_id=self.done.configuration, sharding_spec=specs)
        self.done.nodes += 1
        self.done.tensors += len(specs)

    def _operand(self, found: SourceNode, index: int) -> tuple[Axes, Leaves]:
        """The dims of an operand and those along which the node reads it cut."""
        node, value = found.node, found.values.get(found.proto.input[index])
        if node is None or node not in self.analysis.relations:  # shape arithmetic takes a value as it comes
            return (None, NONE) if value is None or value.weight is not None else self._made(value)
        axes = self.analysis.relations[node].inputs[index]
        return axes, within(axes, self._active(node))

    def _result(self, found: SourceNode, index: int) -> tuple[Axes, Leaves]:
        """The dims of a result and those along which the node leaves it cut; a pending sum is said as the sum."""
        value = found.values.get(found.proto.output[index])
        return (None, NONE) if value is None else self._made(value)

    def _made(self, value: Value) -> tuple[Axes, Leaves]:
        axes, node = self.analysis.axes.get(value), value.producer
        if node is None or value in self.outputs:
            return axes, door_leaves(self.analysis, self.cut, self.cut_doors, value)
        return axes, within(axes, self._active(node)) if node in self.analysis.relations else NONE

    def _planned(self, axes: Axes, held: Leaves) -> Layout | Unsayable:
        if not axes or not held:
            return self.whole
        try:
            return planned(axes, self.cut.only(held))
        except Unsayable as reason:
            return reason

    def _active(self, node: Node) -> Leaves:
        if node not in self.active:
            self.active[node] = active_leaves(self.analysis, self.cut, node)
        return self.active[node]
