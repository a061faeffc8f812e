"""One spelling for what exporters spell in many ways; values stay what they are.

Local functions are inlined, Constant nodes and initializers of subgraphs become weights of the main graph,
Identities and Ifs with a constant condition disappear, the nodes of other Ifs' branches stand before them among those
of the main graph, what no output needs is dropped, nodes are sorted and have unique names. Fused
operators that hide a table are taken apart.
No weight is renamed, folded or copied: a weight's name is what plans and recipes speak of.
The source's messages are read and never changed; a node that must change is a new message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx
import onnx.inliner
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from tpcompile.errors import raise_all, refuse
from tpcompile.graph.check_graph import graph_faults
from tpcompile.graph.contents import ONNX_DOMAINS
from tpcompile.graph.decompose import decomposed
from tpcompile.graph.program import Region
from tpcompile.graph.read import SourceModel
from tpcompile.graph.scopes import captured_names, defined_names, renamed, subgraphs
from tpcompile.graph.steps import Step, in_order, live, name_nodes, steps_of, write_names
from tpcompile.graph.tensors import inline_bytes


@dataclass(frozen=True)
class NormalGraph:
    """The main graph after normalization: steps in topological order, and weights by name."""

    steps: list[Step]
    weights: dict[str, TensorProto]
    inputs: list[ValueInfoProto]
    outputs: list[ValueInfoProto]
    opsets: dict[str, int]


def normalize(source: SourceModel, decisions: Mapping[str, bool] | None = None) -> NormalGraph:
    """Bring a model's graph into the one form that shapes, rules and passes expect.

    `decisions` are conditions of Ifs found to be the same whatever the inputs, by the name of the If's first output.
    """
    model = _inlined(source.proto)
    opsets = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in model.opset_import}
    build = _Build(model.graph, decisions or {}, opsets.get("", 1))
    build.take(in_order(steps_of(model.graph.node)))
    steps = live(build.finished(), [value.name for value in model.graph.output])
    name_nodes(steps)
    write_names(steps)
    read = {name for step in steps for name in (*step.inputs, *step.captured)}
    read.update(value.name for value in model.graph.output)
    return NormalGraph(
        steps=steps,
        weights={name: tensor for name, tensor in build.weights.items() if name in read},
        inputs=[value for value in model.graph.input if value.name not in build.weights],
        outputs=list(model.graph.output),
        opsets=opsets,
    )


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without local functions. Weights do not pass through the inliner: it would serialize them.

    Raises:
        Refused: TP221 where onnx cannot inline a function, else the faults of the graph that inlining gives.
    """
    if not model.functions:
        return model
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    light.graph.node.extend(model.graph.node)
    light.graph.input.extend(model.graph.input)
    light.graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        light.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    light.graph.name = "main"
    try:
        result = onnx.inliner.inline_local_functions(light, convert_version=True)
    except Exception as error:  # onnx raises several kinds
        said = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        remedy = "Export the model again without local functions"
        raise refuse("TP221", "", f"onnx cannot inline the model's functions: {said}", remedy) from error
    raise_all(graph_faults(result))
    result.graph.ClearField("initializer")
    result.graph.initializer.extend(model.graph.initializer)
    return result


class _Build:
    """The main graph while it is put together: what was kept, what each dropped name now is, which names are taken."""

    def __init__(self, graph: GraphProto, decisions: Mapping[str, bool], opset: int) -> None:
        self.decisions, self.opset = decisions, opset
        self.weights: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        self.steps: list[Step] = []
        self.alias: dict[str, str] = {}
        self.outputs = {value.name for value in graph.output}
        self.inputs = {value.name for value in graph.input}
        self.taken = defined_names(graph)
        self.region: Region | None = None
        self.inner: Counter[str] = Counter()
        _count_nested(graph.node, self.inner)

    def resolve(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name

    def fresh(self, name: str) -> str:
        number = 1
        while f"{name}_{number}" in self.taken or f"{name}_{number}" in self.inner:
            number += 1
        self.taken.add(f"{name}_{number}")
        return f"{name}_{number}"

    def take(self, steps: Iterable[Step]) -> None:
        """Add sorted steps to the graph, dropping Constants, Identities and Ifs that are decided; some in parts."""
        for step in steps:
            step.region = self.region
            op = step.proto.op_type if step.proto.domain in ONNX_DOMAINS else ""
            if op == "Constant" and (tensor := constant_tensor(step.proto)) is not None:
                self.weights[step.outputs[0]] = tensor
            elif op == "Identity":
                self.same(step.outputs[0], step.inputs[0], step)
            elif op == "If" and (taken := self.decided(step)) is not None:
                self.splice(step, taken)
            elif op == "If":
                self.expand(step)
            elif parts := decomposed(step.proto, self.opset, self.fresh):
                self.take(steps_of(parts))
            else:
                if step.captured or any(True for _ in subgraphs(step.proto)):
                    step.proto = self.lifted(step.proto)
                    step.captured = captured_names(step.proto)
                self.steps.append(step)

    def same(self, output: str, value: str, step: Step | None = None) -> None:
        """Make `output` another name of `value`; where both names must stay, keep (or add) an Identity."""
        origin = self.resolve(value)
        old, new = (origin, output) if output in self.outputs else (output, origin)
        fixed = old in self.outputs or old in self.inputs or old in self.weights
        if fixed or self.inner[new] > 0:  # a nested graph that makes a `new` of its own could not read this one
            proto = step.proto if step else onnx.helper.make_node("Identity", [origin], [output])
            self.steps.append(Step(proto, proto.name, [origin], [output]))
        else:
            self.alias[old] = new

    def decided(self, step: Step) -> GraphProto | None:
        """The branch that an If always takes, or None where that depends on the inputs."""
        taken = self.decisions.get(step.outputs[0])
        tensor = self.weights.get(self.resolve(step.inputs[0]))
        if taken is None and tensor is not None and tensor.data_location != TensorProto.EXTERNAL:
            taken = any(inline_bytes(tensor))
        if taken is None:
            return None
        branch = "then_branch" if taken else "else_branch"
        return next((attribute.g for attribute in step.proto.attribute if attribute.name == branch), None)

    def splice(self, step: Step, branch: GraphProto) -> None:
        """Put the nodes of the branch in the place of the If."""
        self.open(step, [branch])
        graph = self.imported(branch)
        self.take(in_order(steps_of(graph.node)))
        for output, value in zip(step.outputs, graph.output, strict=True):
            if output:
                self.same(output, value.name)

    def expand(self, step: Step) -> None:
        """Put the nodes of both branches before the If, which reads what they make."""
        outside = self.region
        branches = {attribute.name: attribute.g for attribute in step.proto.attribute}
        self.open(step, branches.values())
        regions = []
        for name in ("then_branch", "else_branch"):
            self.region = Region(name, outside)
            regions.append(self.region)
            graph = self.imported(branches[name])
            self.take(in_order(steps_of(graph.node)))
            step.inputs += [value.name for value in graph.output]
        self.region = outside
        proto = onnx.NodeProto()
        _copy_fields(step.proto, proto, leave={"attribute", "doc_string"})
        step.proto = proto
        step.captured, step.regions = [], tuple(regions)
        self.steps.append(step)

    def open(self, step: Step, branches: Iterable[GraphProto]) -> None:
        """What the branches make is no longer made by a nested graph: only what graphs within them make is."""
        dropped: Counter[str] = Counter()
        _count_nested([step.proto], dropped)
        self.inner.subtract(dropped)
        for branch in branches:
            _count_nested(branch.node, self.inner)

    def imported(self, branch: GraphProto) -> GraphProto:
        """The branch without weights, its values under names that nothing else has."""
        graph = self.lifted_graph(branch)
        names = {}
        for name in sorted(defined_names(graph)):
            if name in self.taken or self.inner[name] > 0:
                names[name] = self.fresh(name)
            self.taken.add(names.get(name, name))
        return renamed(graph, names) if names else graph

    def lifted(self, node: NodeProto) -> NodeProto:
        """The node with subgraphs that hold no weights: those are weights of the main graph now."""
        copy = onnx.NodeProto()
        _copy_fields(node, copy, leave={"attribute", "doc_string"})
        for attribute in node.attribute:
            new = copy.attribute.add()
            if attribute.type == AttributeProto.GRAPH:
                new.name, new.type = attribute.name, attribute.type
                new.g.CopyFrom(self.lifted_graph(attribute.g))
            elif attribute.type == AttributeProto.GRAPHS:
                new.name, new.type = attribute.name, attribute.type
                new.graphs.extend(self.lifted_graph(graph) for graph in attribute.graphs)
            else:
                new.CopyFrom(attribute)
        return copy

    def lifted_graph(self, graph: GraphProto) -> GraphProto:
        """A copy of the graph whose initializers and Constants have moved to the main graph."""
        names: dict[str, str] = {}
        inputs = {value.name for value in graph.input}
        held = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in inputs}
        kept: list[NodeProto] = []
        for node in graph.node:
            tensor = constant_tensor(node)
            if tensor is not None:
                held[node.output[0]] = tensor
            else:
                kept.append(node)
        ends = [value.name for value in graph.output if value.name in held]
        for name, tensor in held.items():
            names[name] = self.lift(name, tensor, hidden=name in ends)
        copy = onnx.GraphProto()
        _copy_fields(graph, copy, leave={"initializer", "node", "value_info", "doc_string"})
        copy.value_info.extend(value for value in graph.value_info if value.name not in held)
        # A graph must make its outputs itself.
        copy.node.extend(onnx.helper.make_node("Identity", [names[name]], [name]) for name in ends)
        copy.node.extend(kept)
        copy = renamed(copy, {old: new for old, new in names.items() if old != new and old not in ends})
        for node in copy.node:
            if any(True for _ in subgraphs(node)):
                node.CopyFrom(self.lifted(node))
        return copy

    def lift(self, name: str, tensor: TensorProto, hidden: bool) -> str:
        """Add a subgraph's weight to the main graph; its name there, another one where the subgraph keeps its own."""
        old = self.weights.get(name)
        if old is not None and not hidden and _same_tensor(old, tensor):
            return name
        new = self.fresh(name) if hidden or name in self.taken or self.inner[name] > 0 else name
        self.taken.add(new)
        self.weights[new] = tensor
        return new

    def finished(self) -> list[Step]:
        """The steps under their final names."""
        for step in self.steps:
            step.inputs = [self.resolve(name) for name in step.inputs]
            step.outputs = [self.resolve(name) for name in step.outputs]
            moved = {name: new for name in step.captured if (new := self.resolve(name)) != name}
            if moved:
                node = onnx.NodeProto()
                node.CopyFrom(step.proto)
                for graph in subgraphs(node):
                    graph.CopyFrom(renamed(graph, moved))
                step.proto = node
                step.captured = captured_names(node)
        return self.steps


def constant_tensor(node: NodeProto) -> TensorProto | None:
    """The tensor that a Constant node makes; None for other nodes and for text."""
    if node.op_type != "Constant" or node.domain not in ONNX_DOMAINS or not node.attribute:
        return None
    attribute = node.attribute[0]
    match attribute.name:
        case "value":
            return attribute.t if attribute.t.data_type != TensorProto.STRING else None
        case "value_float":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, [], [attribute.f])
        case "value_floats":
            return onnx.helper.make_tensor("", TensorProto.FLOAT, [len(attribute.floats)], attribute.floats)
        case "value_int":
            return onnx.helper.make_tensor("", TensorProto.INT64, [], [attribute.i])
        case "value_ints":
            return onnx.helper.make_tensor("", TensorProto.INT64, [len(attribute.ints)], attribute.ints)
    return None


def _count_nested(nodes: Iterable[NodeProto], counts: Counter[str]) -> None:
    """Count the names that the nodes' graphs make and keep: all but their weights, which move to the main graph."""
    for node in nodes:
        for inner in subgraphs(node):
            weights = {tensor.name for tensor in inner.initializer}
            weights.update(n.output[0] for n in inner.node if constant_tensor(n) is not None)
            weights -= {value.name for value in inner.output}
            counts.update(defined_names(inner) - weights)
            _count_nested(inner.node, counts)


def _copy_fields(message: NodeProto | GraphProto, copy: NodeProto | GraphProto, leave: set[str]) -> None:
    """Copy all fields but those of `leave`, which may hold weights or be no text."""
    for descriptor, value in message.ListFields():
        if descriptor.name in leave:
            continue
        if isinstance(value, str):
            setattr(copy, descriptor.name, value)
        else:
            getattr(copy, descriptor.name).extend(value)


def _same_tensor(one: TensorProto, other: TensorProto) -> bool:
    if one.data_type != other.data_type or list(one.dims) != list(other.dims):
        return False
    if TensorProto.EXTERNAL in (one.data_location, other.data_location):
        return one.data_location == other.data_location and list(one.external_data) == list(other.external_data)
    return inline_bytes(one) == inline_bytes(other)
