"""What the checks need to know of graphs within graphs: walks, names of one's own, Ifs that ranks take together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx

from tpcompile.graph.scopes import defined_names, renamed, subgraphs

SIDES = ("then_branch", "else_branch")


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


def make_names_unique(graph: onnx.GraphProto) -> None:
    """Rename, in place, what two branches or bodies call alike, so that a name says which value is meant.

    The second to use a name gets its path behind it, the same in the source as in every rank's file.
    """
    counts = Counter(name for held in graphs(graph) for name in defined_names(held))
    if any(count > 1 for count in counts.values()):
        _rename_within(graph, "", defined_names(graph))


def _rename_within(graph: onnx.GraphProto, path: str, taken: set[str]) -> None:
    for node in graph.node:
        for entry in sorted(node.attribute, key=lambda entry: entry.name, reverse=True):  # the then_branch first
            for number, held in enumerate([entry.g] if entry.type == onnx.AttributeProto.GRAPH else entry.graphs):
                inside = f"{path}/{node.name or node.output[0]}.{entry.name}{number or ''}"
                names = {name: f"{name}@{inside}" for name in defined_names(held) if name in taken}
                if names:
                    held.CopyFrom(renamed(held, names))
                taken |= defined_names(held)
                _rename_within(held, inside, taken)
