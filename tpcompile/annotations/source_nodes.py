"""The nodes of a model as its file has them, at any depth, beside what the normalized program has of each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto, GraphProto, NodeProto

from tpcompile.graph.contents import ONNX_DOMAINS
from tpcompile.graph.program import Node, Program, Region, Value

RENAMED = re.compile(r"(.+)_\d+")


@dataclass
class SourceNode:
    """A node of the file.

    Attributes:
        proto: the file's own message.
        node: what the program has of it; None where it was taken apart, decided, or dropped as nothing needs it.
        values: the program's values under the node's own names, as far as it has them.
        opaque: it stands in the body of a Loop or Scan, which runs as it is.
    """

    proto: NodeProto
    node: Node | None
    values: dict[str, Value] = field(default_factory=dict)
    opaque: bool = False

    @property
    def where(self) -> str:
        """How messages name it."""
        first = next((name for name in self.proto.output if name), "")
        return f"{self.proto.op_type} {self.proto.name or first}".strip()

    @property
    def op(self) -> str:
        """The operator, "" where it is of another domain than ONNX's."""
        return self.proto.op_type if self.proto.domain in ONNX_DOMAINS else ""


def source_nodes(graph: GraphProto, program: Program) -> Iterator[SourceNode]:
    """All nodes of a graph and of the graphs in them, each before those within it."""
    regions: dict[Region | None, dict[str, Value]] = defaultdict(dict)
    for name, value in program.values.items():
        regions[value.region][name] = value
    yield from _nodes(graph, regions, None, {})


def _nodes(
    graph: GraphProto, regions: Mapping[Region | None, dict[str, Value]], region: Region | None, outer: dict[str, Value]
) -> Iterator[SourceNode]:
    here, known = dict(regions.get(region, {})), dict(outer)
    own = {name for proto in graph.node for name in proto.output}
    original = defaultdict(list)
    for name in here:
        if name not in own and (renamed := RENAMED.fullmatch(name)):
            original[renamed[1]].append(name)
    for proto in reversed(graph.node):  # what an output is another name of has the output's name in the program
        if proto.op_type == "Identity" and proto.output[0] in here and proto.input[0] in own:
            here.setdefault(proto.input[0], here[proto.output[0]])
    stored = {tensor.name for tensor in graph.initializer}
    for name in (*stored, *(info.name for info in graph.input)):
        if name in here:
            known[name] = here[name]
    for proto in graph.node:
        found = SourceNode(proto, None)
        for name in filter(None, proto.output):
            if name in here:
                known[name] = here[name]
            elif len(original[name]) == 1:
                known[name] = here[original[name][0]]
            elif name in known:
                del known[name]  # one of the same name outside
        if found.op == "Identity" and proto.output[0] not in known and proto.input[0] in known:
            known[proto.output[0]] = known[proto.input[0]]
        found.values = {name: known[name] for name in (*proto.input, *proto.output) if name in known}
        made = (known[name].producer for name in proto.output if name in known)
        found.node = next((node for node in made if node is not None and _same(node, proto)), None)
        yield found
        for attribute in proto.attribute:
            if attribute.type == AttributeProto.GRAPH:
                inner = (
                    next((r for r in found.node.regions if r.branch == attribute.name), None) if found.node else None
                )
                if inner is not None:
                    yield from _nodes(attribute.g, regions, inner, known)
                elif found.op == "If":  # decided: what it takes stands in the graph around it
                    yield from _nodes(attribute.g, regions, region, known)
                else:
                    yield from _opaque(attribute.g)
            elif attribute.type == AttributeProto.GRAPHS:
                for body in attribute.graphs:
                    yield from _opaque(body)


def _same(node: Node, proto: NodeProto) -> bool:
    domain = "" if proto.domain in ONNX_DOMAINS else proto.domain
    return node.op == proto.op_type and node.domain == domain and len(node.outputs) >= len(proto.output)


def _opaque(graph: GraphProto) -> Iterator[SourceNode]:
    """The nodes of a body that runs as it is."""
    for proto in graph.node:
        yield SourceNode(proto, None, opaque=True)
        for attribute in proto.attribute:
            for body in (attribute.g,) if attribute.type == AttributeProto.GRAPH else attribute.graphs:
                yield from _opaque(body)
