"""Nodes on their way into the program: under their present names, in order, those that are needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from onnx import NodeProto

from tpcompile.graph.program import Region
from tpcompile.graph.scopes import captured_names, subgraphs


@dataclass(slots=True)
class Step:
    """A node under its present names; `proto` is the source's message, or a changed copy where names had to change."""

    proto: NodeProto
    name: str
    inputs: list[str]
    outputs: list[str]
    captured: list[str] = field(default_factory=list)
    region: Region | None = None
    regions: tuple[Region, ...] = ()


def steps_of(nodes: Iterable[NodeProto]) -> list[Step]:
    found = []
    for node in nodes:
        step = Step(node, node.name, list(node.input), list(node.output))
        if not any(step.outputs):
            continue
        if node.attribute and any(True for _ in subgraphs(node)):
            step.captured = captured_names(node)
        found.append(step)
    return found


def in_order(steps: list[Step]) -> list[Step]:
    """Steps so that each stands after those it reads from; already sorted ones keep their order."""
    producer = {name: step for step in steps for name in step.outputs if name}
    done: set[int] = set()
    result: list[Step] = []
    for root in steps:
        stack = [(root, iter((*root.inputs, *root.captured)))] if id(root) not in done else []
        while stack:
            step, needs = stack[-1]
            waits = next((p for n in needs if (p := producer.get(n)) is not None and id(p) not in done), None)
            if waits is not None:
                stack.append((waits, iter((*waits.inputs, *waits.captured))))
                continue
            stack.pop()
            if id(step) not in done:
                done.add(id(step))
                result.append(step)
    return result


def live(steps: list[Step], outputs: Iterable[str]) -> list[Step]:
    """The steps that some output needs."""
    needed = set(outputs)
    kept = []
    for step in reversed(steps):
        if any(name in needed for name in step.outputs):
            needed.update(step.inputs)
            needed.update(step.captured)
            kept.append(step)
    kept.reverse()
    return kept


def name_nodes(steps: list[Step]) -> None:
    """Give every step a name of its own; the first bearer of a name keeps it."""
    taken = {step.name for step in steps}
    seen: set[str] = {""}
    numbers: Counter[str] = Counter()
    for step in steps:
        if step.name in seen:
            base = step.name or step.proto.op_type
            while not numbers[base] or step.name in taken:
                numbers[base] += 1
                step.name = f"{base}_{numbers[base]}"
            taken.add(step.name)
        seen.add(step.name)


def write_names(steps: list[Step]) -> None:
    """Make each step's message say the step's names; the source's own messages stay as they are."""
    for step in steps:
        proto = step.proto
        if step.name == proto.name and step.inputs == list(proto.input) and step.outputs == list(proto.output):
            continue
        step.proto = NodeProto()
        step.proto.CopyFrom(proto)
        step.proto.name = step.name
        step.proto.input[:] = step.inputs
        step.proto.output[:] = step.outputs
