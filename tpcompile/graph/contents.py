"""All graphs and stored tensors of a model, at any depth, with the words to say where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from tpcompile.errors import refuse

ONNX_DOMAINS = ("", "ai.onnx")
"""Two spellings of the domain of ONNX's own operators."""

MAX_DEPTH = 30
"""Graphs within graphs that are followed; real models have three."""


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor of the model: `role` is "weight" (an initializer), "constant" (what a Constant makes) or "attribute"."""

    where: str
    tensor: TensorProto
    role: str


def node_label(node: NodeProto, index: int) -> str:
    """How messages speak of a node: by its name, or else by its operator and place."""
    return f"node {node.name}" if node.name else f"node {index} ({node.op_type})"


def function_label(function: FunctionProto) -> str:
    return f"function {function.domain}.{function.name}"


def held_tensors(model: ModelProto) -> list[Held]:
    """Every dense tensor that the model stores: initializers and tensor attributes of all graphs and functions.

    Raises:
        Refused: TP220 where graphs are nested deeper than `MAX_DEPTH`.
    """
    found: list[Held] = []
    pending: list[tuple[str, Iterable[NodeProto], int]] = [("", model.graph.node, 0)]
    pending += [(f"{function_label(function)}, ", function.node, 0) for function in model.functions]
    found += _weights(model.graph, "")
    while pending:
        place, nodes, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise refuse(
                "TP220",
                place.removesuffix(", "),
                f"graphs are nested more than {MAX_DEPTH} deep",
                "Export the model again without such nesting",
            )
        for index, node in enumerate(nodes):
            for attribute in node.attribute:
                label = f"{place}{node_label(node, index)}"
                for graph in _graphs(attribute):
                    found += _weights(graph, f"{label}, ")
                    pending.append((f"{label}, ", graph.node, depth + 1))
                role = "constant" if node.op_type == "Constant" and node.domain in ONNX_DOMAINS else "attribute"
                found += [Held(label, tensor, role) for tensor in _tensors(attribute)]
    return found


def _weights(graph: GraphProto, place: str) -> Iterator[Held]:
    for tensor in graph.initializer:
        yield Held(f"{place}weight {tensor.name}", tensor, "weight")


def _graphs(attribute: AttributeProto) -> Iterable[GraphProto]:
    if attribute.type == AttributeProto.GRAPH:
        return (attribute.g,)
    return attribute.graphs if attribute.type == AttributeProto.GRAPHS else ()


def _tensors(attribute: AttributeProto) -> Iterable[TensorProto]:
    if attribute.type == AttributeProto.TENSOR:
        return (attribute.t,)
    return attribute.tensors if attribute.type == AttributeProto.TENSORS else ()
