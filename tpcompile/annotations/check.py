"""Whether a model's annotations are sound, fit its operators, and what a runtime must send to follow them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto

from tpcompile.annotations.layout import Layout
from tpcompile.annotations.operators import Operand, Outcome, run_on
from tpcompile.annotations.source_nodes import SourceNode, source_nodes
from tpcompile.annotations.structure import Entry, Specs, configuration_faults, unknown_configurations
from tpcompile.dims.analysis import is_metadata
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.graph.program import Node, Program, Value
from tpcompile.graph.scopes import subgraphs

FREE = "slice"
"""What costs nothing: a device keeps its part of what it has whole."""


@dataclass(frozen=True)
class Needed:
    """What a runtime must do to a tensor: `op` for `tensor` at a node, over so many devices, and from what to what."""

    op: str
    node: str
    tensor: str
    devices: int
    because: str


@dataclass
class Checked:
    """What became of one configuration.

    Attributes:
        faults: what is wrong, by node, in the order of the graph.
        needed: what the runtime must send, or slice.
        valid: how many nodes are.
        unchecked: nodes of which nothing is known, by operator and reason.
        unannotated: how many nodes say nothing: what holds for them follows from the others.
        implied: stored tensors of which nothing is said where they are read, cut as their readers need them.
        uneven: tensors whose shards are not all of one size.
    """

    name: str
    devices: int
    nodes: int = 0
    annotated: int = 0
    valid: int = 0
    unannotated: int = 0
    faulty: int = 0
    faults: list[Fault] = field(default_factory=list)
    needed: list[Needed] = field(default_factory=list)
    unchecked: Counter[tuple[str, str]] = field(default_factory=Counter)
    implied: dict[str, None] = field(default_factory=dict)
    uneven: dict[str, None] = field(default_factory=dict)

    @property
    def collectives(self) -> Counter[str]:
        """How many of each kind a run needs, slices among them."""
        return Counter(found.op for found in self.needed)


def check(model: ModelProto, program: Program, file: str) -> list[Checked]:
    """Check each configuration of an annotated model.

    Args:
        model: the model.
        program: its graph, normalized, with sizes (see `tpcompile.graph.shapes`).
        file: how messages name it.

    Raises:
        Refused: TP174 where the model has no annotations; TP165 where its configurations are not sound.
    """
    every = [node for graph in (model.graph, *model.functions) for node in _all_nodes(graph.node)]
    if not model.configuration and not any(node.device_configurations for node in every):
        fact = "it has no annotations"
        raise refuse("TP174", file, fact, "Annotate it, as `tpcompile plan MODEL --tp N --annotate FILE` does")
    raise_all(
        Fault(fault.code, f"{file}: {fault.where}" if fault.where else file, fault.fact, fault.remedy)
        for fault in configuration_faults(model)
    )
    known = [found.name for found in model.configuration]
    sources = list(source_nodes(model.graph, program))
    strangers = [
        fault
        for node in every
        for fault in unknown_configurations(node, f"{node.op_type} {node.name or ''.join(node.output[:1])}", known)
    ]
    found = [_Walk(configuration.name, configuration.num_devices, sources).run(program)
             for configuration in model.configuration]  # fmt: skip
    if found:
        found[0].faults[:0] = strangers
    else:
        raise_all(strangers)
    for checked in found:
        _functions(model, checked)
    return found


def _all_nodes(nodes: object) -> Iterator[NodeProto]:
    for node in nodes:  # type: ignore[attr-defined]
        yield node
        for graph in subgraphs(node):
            yield from _all_nodes(graph.node)


def _functions(model: ModelProto, checked: Checked) -> None:
    """Annotations within functions: what they say in themselves; one function may be called in many places."""
    specs = Specs(checked.name, checked.devices)
    for function in model.functions:
        for node in _all_nodes(function.node):
            entry, faults = specs.entry(node, f"{node.op_type} {node.name} of function {function.name}", {})
            checked.faults += faults
            if entry is not None:
                checked.nodes += 1
                checked.annotated += 1
                checked.unchecked[node.op_type, "it stands in a function"] += 1


class _Walk:
    """One configuration, followed from node to node."""

    def __init__(self, name: str, devices: int, sources: list[SourceNode]) -> None:
        self.sources, self.done = sources, Checked(name, devices)
        self.specs = Specs(name, devices)
        self.devices = tuple(range(devices))
        self.whole = Layout(self.devices)
        self.lies: dict[Value, Layout | None] = {}
        self.stages: dict[Value, tuple[int, str]] = {}
        self.resharded: set[tuple[Value, Layout]] = set()

    def run(self, program: Program) -> Checked:
        done = self.done
        for value in program.inputs:
            self.lies[value] = self.whole
        entries: dict[int, Entry | None] = {}
        of_node: dict[Node, SourceNode] = {}
        sound: dict[int, list[Fault]] = {}
        for found in self.sources:
            sizes = {name: _sizes(value) for name, value in found.values.items() if value.sizes is not None}
            entries[id(found)], sound[id(found)] = self.specs.entry(found.proto, found.where, sizes)
            done.nodes += 1
            done.annotated += entries[id(found)] is not None
            done.unannotated += entries[id(found)] is None
            self._uneven(entries[id(found)])
            if found.node is not None:
                of_node[found.node] = found
            elif sound[id(found)]:
                self._wrong(sound[id(found)])
            elif found.op in ("Constant", "Identity") and not found.opaque:
                done.valid += 1
            else:
                done.unchecked[found.proto.op_type, _why_apart(found)] += 1
        for node in program.nodes:
            source = of_node.get(node)
            if source is None:
                self._node(node, None, None, [])
            else:
                self._node(node, source, entries[id(source)], sound[id(source)])
        return done

    def _node(self, node: Node, source: SourceNode | None, entry: Entry | None, faults: list[Fault]) -> None:
        where = source.where if source is not None else f"{node.op} {node.name}"
        operands = self._operands(node, source, entry)
        if entry is not None:
            faults = [*faults, *self._stages(node, entry, where)]
        if is_metadata(node):
            outcome = Outcome(results=[self.whole] * len(node.outputs))
        else:
            unknown = self._unknown(node, operands)
            outcome = run_on(node, operands, self.devices) if not unknown else Outcome(unchecked=unknown)
            outcome.results = outcome.results or [None] * len(node.outputs)
        faults += [Fault(w.code, where, w.fact, w.remedy) for w in outcome.wrong]
        if source is not None:
            if faults:
                self._wrong(faults)
            elif outcome.unchecked:
                self.done.unchecked[node.op, outcome.unchecked] += 1
            else:
                self.done.valid += 1
        self.done.implied.update(dict.fromkeys(outcome.implied))
        self._reshard_operands(node, operands, where)
        self._results(node, source, entry, outcome, where)

    def _wrong(self, faults: list[Fault]) -> None:
        self.done.faults += faults
        self.done.faulty += 1

    def _operands(self, node: Node, source: SourceNode | None, entry: Entry | None) -> dict[int, Operand]:
        """How each operand lies: as the node says, else as its producer left it; a stored one as the node needs it."""
        found: dict[int, Operand] = {}
        names = source.proto.input if source is not None else ()
        for index, value in enumerate(node.inputs):
            if value is None:
                continue
            name = names[index] if index < len(names) else value.name
            said = entry.layouts.get(name) if entry is not None else None
            if said is not None:
                found[index] = Operand(name, said, True)
            elif value.weight is not None:
                found[index] = Operand(name, None, False)
            else:
                found[index] = Operand(name, self.lies.get(value), False)
        return found

    def _unknown(self, node: Node, operands: dict[int, Operand]) -> str:
        """Why nothing can be said of a node, where that is so before its operator is asked."""
        for index, operand in operands.items():
            value = node.inputs[index]
            if operand.layout is None and value is not None and value.weight is None:
                made = value.producer.op if value.producer is not None else "an input"
                return f"nothing is known of how what {made} makes lies"
        return ""

    def _stages(self, node: Node, entry: Entry, where: str) -> Iterator[Fault]:
        """Values come from the same stage or an earlier one."""
        if entry.stage is None:
            return
        for value in node.inputs:
            if value is not None and value in self.stages and self.stages[value][0] > entry.stage:
                stage, maker = self.stages[value]
                fact = f"it is of pipeline stage {entry.stage}, and reads {value.name} of stage {stage} ({maker})"
                yield Fault("TP166", where, fact, f"Use {stage} or more")
        for value in node.outputs:
            if value is not None:
                self.stages[value] = entry.stage, where

    def _reshard_operands(self, node: Node, operands: dict[int, Operand], where: str) -> None:
        for index, operand in operands.items():
            value = node.inputs[index]
            if value is None or not operand.said or operand.layout is None or is_metadata(node):
                continue
            before = self.lies.get(value)
            if before is None or before == operand.layout or (value, operand.layout) in self.resharded:
                continue
            self.resharded.add((value, operand.layout))
            self._send(resharding(before, operand.layout), where, operand.name, before, operand.layout)

    def _results(
        self, node: Node, source: SourceNode | None, entry: Entry | None, outcome: Outcome, where: str
    ) -> None:
        names = source.proto.output if source is not None else ()
        for index, value in enumerate(node.outputs):
            if value is None:
                continue
            name = names[index] if index < len(names) else value.name
            said = entry.layouts.get(name) if entry is not None else None
            natural = outcome.results[index]
            self.lies[value] = natural if said is None else said
            scattered = said is not None and natural is not None and resharding(natural, said) == FREE
            if outcome.summed > 1:
                op = "reduce_scatter" if scattered and natural != said else "all_reduce"
                over = "summed over a cut dimension"
                self.done.needed.append(Needed(op, where, name, outcome.summed, over))
                if scattered:
                    continue
            if said is not None and natural is not None and natural != said:
                self._send(resharding(natural, said), where, name, natural, said)

    def _send(self, op: str, where: str, tensor: str, before: Layout, after: Layout) -> None:
        over = len(set(before.devices) | set(after.devices))
        self.done.needed.append(Needed(op, where, tensor, over, f"{before} → {after}"))

    def _uneven(self, entry: Entry | None) -> None:
        for name, layout in (entry.layouts if entry is not None else {}).items():
            if layout is not None and any(f.size and not f.even for _, factors in layout.axes for f in factors):
                self.done.uneven[name] = None


def resharding(before: Layout, after: Layout) -> str:
    """What brings a tensor from one layout to another: "slice" sends nothing."""
    if before.devices != after.devices:
        return FREE if before.whole and set(after.devices) <= set(before.devices) else "send"
    old, new = dict(before.axes), dict(after.axes)
    if all(old.get(axis) == factors for axis, factors in new.items()):
        return "all_gather"
    if all(new.get(axis) == factors for axis, factors in old.items()):
        return FREE
    return "all_to_all"


def _sizes(value: Value) -> tuple[int | None, ...]:
    """The sizes of a value's axes, None for those that depend on inputs."""
    return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in value.sizes or ())


def _why_apart(found: SourceNode) -> str:
    if found.opaque:
        return "it stands in the body of a loop, which is not followed"
    return "reading takes it apart or drops it"
