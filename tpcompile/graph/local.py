"""The program of all ranks at once: the same nodes, names and order; tensors and some numbers differ by rank.

`tpcompile.graph.to_onnx` makes one ONNX graph per rank of it, at the very end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tpcompile.graph.program import Region, Value, Weight
from tpcompile.weights.ranges import Part, Ranges

COLLECTIVE = "DistCollective"
OWN_DOMAIN = "tpcompile"
"""Operator and domain of a collective."""

Array = npt.NDArray[Any]
LocalSize = int | str | None
"""A size, a symbol as the source spells it, or unknown."""


@dataclass(frozen=True)
class PerRank:
    """An attribute that differs by rank."""

    values: tuple[Any, ...]


@dataclass(eq=False)
class LocalNode:
    """A node of every rank.

    `origin` is the source's node, whose attributes hold where `attributes` says nothing; `dropped` ones do not;
    `captured` are values that its subgraphs read from outside, `renamed` those of them under another name; `region`
    and `regions` are as in a source's node: an If's operands are its condition and the outputs of its branches.
    """

    op: str
    domain: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    origin: Any = None
    dropped: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    captured: tuple[str, ...] = ()
    region: Region | None = None
    regions: tuple[Region, ...] = ()


@dataclass(frozen=True)
class LocalWeight:
    """What each rank stores of a source tensor; ranks in `zeroed` store zeros of the same shape."""

    name: str
    weight: Weight
    parts: tuple[Part, ...]
    zeroed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Constant:
    """A small tensor the compiler made, one content per rank (`arrays`), all of one rank."""

    name: str
    arrays: tuple[Array, ...]


@dataclass(frozen=True)
class Placed:
    """Where the parts of a value lie: `ranges[rank]` of `axis`, or a pending sum over `partial` groups."""

    axis: int = -1
    ranges: tuple[Ranges, ...] = ()
    partial: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class CollectiveCall:
    """One collective, with what the manifest tells of it. `shapes[rank]` is that of its output."""

    node: LocalNode
    op: str
    value: Value
    dtype: str
    groups: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[LocalSize, ...], ...]
    nbytes: str
    because: str


@dataclass
class LocalProgram:
    """All that the rank files and the manifest are made of."""

    ranks: int
    nodes: list[LocalNode] = field(default_factory=list)
    weights: list[LocalWeight] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    collectives: list[CollectiveCall] = field(default_factory=list)
    doors: dict[str, Placed] = field(default_factory=dict)
    """Inputs and outputs that are cut."""
    placed: dict[str, Placed] = field(default_factory=dict)
    """Inner values that kept the source's name but are cut or partial."""
    layouts: dict[str, tuple[Value, Any]] = field(default_factory=dict)
    """Every version of a value by its name, with the `dims.cut.Cut` along which it lies."""

    def in_file_order(self) -> Iterator[LocalNode]:
        """The nodes as a rank's file lists them: those of an If's branches at its place, the first branch first."""
        inside: dict[Region | None, list[LocalNode]] = defaultdict(list)
        for node in self.nodes:
            inside[node.region].append(node)
        todo = inside[None][::-1]
        while todo:
            node = todo.pop()
            yield node
            todo += [inner for region in reversed(node.regions) for inner in reversed(inside[region])]
