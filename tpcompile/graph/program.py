"""The neutral graph that rules, planner and passes work on: what ONNX and ATen have in common.

A `Program` is a flat, topologically sorted list of nodes over named values. It is cheap to walk and holds no
weight data: a weight is a name, a type, a shape and the place its bytes lie (`source`, opaque here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Sizes = tuple[int, ...]
"""The size of one axis, once per analysis sample: static where all are equal."""


@dataclass(eq=False)
class Value:
    """A tensor of the graph.

    `dtype` is the standard name ("float32", "int64", "bfloat16", …); `shape` the source's spelling of its axes
    (int, symbol, or None where unknown), None where even the rank is unknown; `sizes` one tuple of ints per axis;
    `known` its content per sample where that is metadata (shape arithmetic), as numpy arrays; `varies` a mask of the
    elements of it that depend on the inputs' sizes, even where samples happen to agree, None where none does.
    `consumers` are (node, operand) pairs; `captors` the nodes whose subgraphs read the value from outside.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int | str | None, ...] | None = None
    sizes: tuple[Sizes, ...] | None = None
    known: tuple[Any, ...] | None = None
    varies: Any = None
    producer: Node | None = None
    index: int = 0
    weight: Weight | None = None
    consumers: list[tuple[Node, int]] = field(default_factory=list)
    captors: list[Node] = field(default_factory=list)

    @property
    def region(self) -> Region | None:
        """The branch whose nodes may read the value, None for all."""
        return self.producer.region if self.producer is not None else None

    @property
    def fixed(self) -> bool:
        """Whether the content is known and the same whatever the inputs."""
        return self.known is not None and (self.varies is None or not self.varies.any())

    def __repr__(self) -> str:
        return f"Value({self.name!r}, {self.dtype}, {self.shape})"


@dataclass(frozen=True, eq=False)
class Weight:
    """A stored tensor: `source` is a `weights.source.Source` (bytes in a file or in memory).

    One that is `trained` has one gradient, one that is `written` takes what the graph makes for the next run: such is
    `single`, stored once whatever its readers, and never as zeros.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Any
    trained: bool = False
    written: bool = False

    @property
    def single(self) -> bool:
        return self.trained or self.written


@dataclass(eq=False)
class Region:
    """A branch of an If ("then_branch" or "else_branch"): its nodes run only where the condition chooses it.

    `parent` is the region that the If itself stands in, None for the main graph.
    """

    branch: str
    parent: Region | None = None


@dataclass(eq=False)
class Node:
    """One operation. `captured` are outer values that its subgraphs read; `origin` is the front's own node.

    `region` is the branch it stands in. An If has its branches in `regions`: their nodes stand before it in the
    program, and its operands are the condition, then the outputs of the first branch, then those of the second.
    `scope` is the module of the original model that it was exported from ("model.layers.0.mlp"), "" where that is lost.
    """

    op: str
    domain: str
    name: str
    inputs: list[Value | None]
    outputs: list[Value | None]
    attributes: Mapping[str, Any]
    version: int = 0
    captured: tuple[Value, ...] = ()
    origin: Any = None
    region: Region | None = None
    regions: tuple[Region, ...] = ()
    scope: str = ""

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def __repr__(self) -> str:
        return f"Node({self.op!r}, {self.name!r})"


@dataclass(eq=False)
class Program:
    """Nodes in topological order, the values at its doors, and what the front must keep to write it again."""

    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    values: dict[str, Value]
    opsets: dict[str, int]
    origin: Any = None
    written: list[tuple[Value, Value]] = field(default_factory=list)
    """Stored tensors, each with the output that takes its place in the next run."""

    @property
    def weights(self) -> list[Value]:
        return [value for value in self.values.values() if value.weight is not None]
