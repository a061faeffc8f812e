"""What the checks need to know of graphs within graphs: walks, names of one's own, Ifs that ranks take together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import onnx

from tpcompile.targets.collectives import is_collective

SIDES = ("then_branch", "else_branch")


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies of an If, Loop or Scan."""
    for entry in node.attribute:
        if entry.type == onnx.AttributeProto.GRAPH:
            yield entry.g
        yield from entry.graphs


def branches(node: onnx.NodeProto) -> list[tuple[str, onnx.GraphProto]]:
    """The two sides of an If, the then_branch first."""
    held = {entry.name: entry.g for entry in node.attribute}
    return [(side, held[side]) for side in SIDES if side in held]


def walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of branches and bodies right before the node that holds them, then_branch first."""
    for node in graph.node:
        inner = [held for _, held in branches(node)] if node.op_type == "If" else subgraphs(node)
        for held in inner:
            yield from walk(held)
        yield node


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all within it."""
    yield graph
    for node in graph.node:
        for held in subgraphs(node):
            yield from graphs(held)


def is_joint(node: onnx.NodeProto) -> bool:
    """Whether ranks come to this node together: a collective, or an If whose branches hold some."""
    return is_collective(node) or (node.op_type == "If" and holds_collective(node))


def holds_collective(node: onnx.NodeProto) -> bool:
    """Whether a collective stands in a branch or body of the node."""
    return any(is_collective(inner) for held in subgraphs(node) for inner in walk(held))


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Every name a node reads, those its subgraphs take from outside included."""
    yield from (name for name in node.input if name)
    for held in subgraphs(node):
        yield from captures(held)


def captures(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name a branch or body takes from outside."""
    local = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        yield from (name for name in reads(node) if name not in local)
        local |= set(node.output)
    yield from (value.name for value in graph.output if value.name not in local)


def make_names_unique(graph: onnx.GraphProto) -> None:
    """Rename, in place, what two branches or bodies call alike, so that a name says which value is meant.

    The second to use a name gets its path behind it, the same in the source as in every rank's file.
    """
    counts = Counter(name for held in graphs(graph) for name in _made(held))
    if any(count > 1 for count in counts.values()):
        _rename_within(graph, "", set(_made(graph)))


def _made(graph: onnx.GraphProto) -> Iterator[str]:
    yield from dict.fromkeys(value.name for value in [*graph.input, *graph.initializer])
    yield from (name for node in graph.node for name in node.output if name)


def _rename_within(graph: onnx.GraphProto, path: str, taken: set[str]) -> None:
    for node in graph.node:
        for entry in sorted(node.attribute, key=lambda entry: entry.name, reverse=True):  # the then_branch first
            for number, held in enumerate([entry.g] if entry.type == onnx.AttributeProto.GRAPH else entry.graphs):
                inside = f"{path}/{node.name or node.output[0]}.{entry.name}{number or ''}"
                mine = list(_made(held))
                _rename(held, {name: f"{name}@{inside}" for name in mine if name in taken})
                taken.update(_made(held))
                _rename_within(held, inside, taken)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give values their new names where they are made, read, and captured further in."""
    if not names:
        return
    for value in [*graph.input, *graph.output, *graph.initializer, *graph.value_info]:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for held in subgraphs(node):
            own = set(_made(held))
            _rename(held, {name: new for name, new in names.items() if name not in own})
