"""What random graphs are made of: sizes, and a writer of nodes that knows every value's shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.one_graph import Array

SIZES = (2, 3, 4, 6, 8, 9, 10, 12)
MOST_ELEMENTS = 20_000
SAMPLES = ({"B": 2, "S": 5}, {"B": 1, "S": 1}, {"B": 3, "S": 4})
"""What the symbols stand for; the analysis has seen none of these."""


@dataclass(frozen=True)
class Size:
    """A number times symbols."""

    number: int
    symbols: tuple[str, ...] = ()

    @property
    def static(self) -> bool:
        return not self.symbols

    def at(self, sizes: dict[str, int]) -> int:
        found = self.number
        for symbol in self.symbols:
            found *= sizes[symbol]
        return found

    def times(self, other: Size) -> Size:
        return Size(self.number * other.number, tuple(sorted(self.symbols + other.symbols)))


Shape = tuple[Size, ...]
ONE = Size(1)


class GraphWriter:
    """Nodes, stored tensors and the shapes of the values that steps may use."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = (23, 20, 17, 13, 11)[seed % 5]
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shapes: dict[str, Shape] = {}
        self.count = 0

    def add(self, op: str, inputs: Sequence[str], *shapes: Shape, **attributes: Any) -> list[str]:
        """Append a node; its outputs' names."""
        outputs = [f"v{self.count + k}" for k in range(len(shapes))]
        self.count += len(shapes)
        self.nodes.append(helper.make_node(op, list(inputs), outputs, name=f"n{self.count}", **attributes))
        self.shapes.update(zip(outputs, shapes, strict=True))
        return outputs

    def on_axes(
        self,
        op: str,
        name: str,
        numbers: list[int],
        *shapes: Shape,
        since: int,
        spelled: str = "axes",
        **attributes: Any,
    ) -> list[str]:
        """Append a node whose list of numbers is an input from opset `since` on, and an attribute before."""
        if self.opset >= since:
            return self.add(op, [name, self.integers(*numbers)], *shapes, **attributes)
        return self.add(op, [name], *shapes, **{spelled: numbers}, **attributes)

    def inner(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node of shape arithmetic."""
        self.count += 1
        self.nodes.append(helper.make_node(op, list(inputs), [f"i{self.count}"], name=f"n{self.count}", **attributes))
        return f"i{self.count}"

    def stored(self, array: Array) -> str:
        self.count += 1
        self.weights.append(numpy_helper.from_array(array, f"w{self.count}"))
        return f"w{self.count}"

    def weight(self, *shape: int, spread: float = 1.0) -> str:
        return self.stored((self.random.standard_normal(shape) * spread).astype(np.float32))

    def integers(self, *values: int) -> str:
        return self.stored(np.array(values, np.int64))

    def any_of(self, among: Sequence[int]) -> int:
        return int(among[int(self.random.integers(len(among)))])

    def axes(self, name: str, fits: Callable[[Size], bool]) -> list[int]:
        return [axis for axis, size in enumerate(self.shapes[name]) if fits(size)]

    def fits(self, shape: Shape) -> bool:
        count = 1
        for size in shape:
            count *= size.at(SAMPLES[0])
        return count <= MOST_ELEMENTS and len(shape) <= 6

    def target(self, name: str, new: Shape, kept: int) -> str:
        """A target shape for Reshape or Expand: constants with 0 and −1, or computed from Shape, as exporters do."""
        dynamic = [axis for axis, size in enumerate(new) if not size.static and axis >= kept]
        if len(dynamic) <= 1 and self.random.random() < 0.7:
            return self.integers(
                *(0 if k < kept else -1 if k in dynamic else size.number for k, size in enumerate(new))
            )
        if not dynamic and self.random.random() < 0.5:
            unknown = self.any_of(range(len(new)))
            if all(size.static for k, size in enumerate(new) if k != unknown):
                return self.integers(*(-1 if k == unknown else size.number for k, size in enumerate(new)))
        pieces = []
        for size in new:
            if size.static:
                pieces.append(self.integers(size.number))
                continue
            piece = self.integers(size.number)
            for symbol in size.symbols:
                source = self.inner("Shape", ["x"])
                axis = 0 if symbol == "B" else 1
                got = self.inner("Slice", [source, self.integers(axis), self.integers(axis + 1)])
                piece = self.inner("Mul", [piece, got])
            pieces.append(piece)
        return self.inner("Concat", pieces, axis=0)

    def others(self, fits: Callable[[Shape], bool]) -> list[str]:
        """Values whose shapes fit."""
        return [name for name, shape in self.shapes.items() if name != "ids" and fits(shape)]

    def other(self, fits: Callable[[Shape], bool]) -> str:
        """One of them, drawn."""
        found = self.others(fits)
        return found[int(self.random.integers(len(found)))]


def broadcasts(small: Shape, large: Shape) -> bool:
    """Whether a shape broadcasts to a larger one."""
    return all(a in (b, ONE) for a, b in zip(reversed(small), reversed(large), strict=False))
