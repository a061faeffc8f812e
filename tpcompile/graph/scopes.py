"""Names across nested graphs: which outer values a subgraph reads, and how to rename them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import AttributeProto, GraphProto, NodeProto


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs in a node's attributes (the branches of an If, the body of a Loop or Scan)."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def defined_names(graph: GraphProto) -> set[str]:
    """The values that this graph itself makes: inputs, initializers and outputs of its nodes."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        names.update(node.output)
    names.discard("")
    return names


def all_names(graph: GraphProto) -> set[str]:
    """Every name that stands anywhere in the graph: what is made, stored or read, at any depth."""
    names = {value.name for value in (*graph.input, *graph.output)} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        names.update((*node.input, *node.output))
        for inner in subgraphs(node):
            names |= all_names(inner)
    return names


def read_names(node: NodeProto) -> list[str]:
    """Every value that a node reads: its operands, then what its subgraphs read from outside."""
    return [*filter(None, node.input), *captured_names(node)]


def captured_names(node: NodeProto) -> list[str]:
    """The outer values that a node's subgraphs read, each once, in the order of first reading."""
    found: dict[str, None] = {}
    for graph in subgraphs(node):
        found.update(dict.fromkeys(outer_names(graph)))
    return list(found)


def outer_names(graph: GraphProto) -> list[str]:
    """The values that a graph (with all graphs in it) reads and does not make, each once."""
    own = defined_names(graph)
    found: dict[str, None] = {}
    for node in graph.node:
        for name in (*node.input, *captured_names(node)):
            if name and name not in own:
                found[name] = None
    for value in graph.output:
        if value.name not in own:
            found[value.name] = None
    return list(found)


def renamed(graph: GraphProto, names: Mapping[str, str]) -> GraphProto:
    """A copy of the graph in which each value in `names`, made here or outside, has its new name.

    A name that a nested graph makes itself hides the outer one and stays as it is there.
    """
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    _rename(copy, names)
    return copy


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for field in (node.input, node.output):
            for position, name in enumerate(field):
                if name in names:
                    field[position] = names[name]
        for inner in subgraphs(node):
            hidden = defined_names(inner)
            _rename(inner, {old: new for old, new in names.items() if old not in hidden})
