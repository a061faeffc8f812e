"""Random graphs of operators that rearrange, join, take apart and sum: what exporters have not thought of.

Axes are products of a number and of the symbols B and S, so that merged axes such as B·heads occur. Values keep mixed
signs and the size of one. Everything that nothing reads is an output, so that no node is dead.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.one_graph import Array
from tests.randomly.bodies import BodySteps
from tests.randomly.computing import ROWS, ComputingSteps
from tests.randomly.moving import MovingSteps
from tests.randomly.writer import SAMPLES, SIZES, Size

__all__ = ["SAMPLES", "RandomGraph"]


class RandomGraph(MovingSteps, ComputingSteps, BodySteps):
    """Draws a graph of about `length` steps; `model` and `feeds` are what came of it."""

    def __init__(self, seed: int, length: int = 14) -> None:
        super().__init__(seed)
        b, s, width = Size(1, ("B",)), Size(1, ("S",)), Size(int(self.random.choice(SIZES)))
        self.shapes["x"] = (b, s, width)
        self.shapes["ids"] = (b, s)
        steps: list[Callable[[str], bool]] = [
            self.product, self.product, self.product, self.two_values, self.bias, self.unary, self.split_axis,
            self.split_axis, self.merge_axes, self.merge_axes, self.transpose, self.concat, self.split, self.slice,
            self.pick, self.lookup, self.expand, self.tile, self.normalize, self.reduce, self.scores, self.shape_value,
            self.pad, self.squeeze, self.einsum, self.where, self.wider, self.running, self.sort, self.elements,
            self.scatter, self.convolve, self.flatten, self.three_values, self.no_rule, self.positions,
            self.branch, self.loop, self.dequantized, self.experts,
        ]  # fmt: skip
        done = 0
        while done < length:
            recent = [name for name in self.shapes if name != "ids"]
            weights = np.arange(1, len(recent) + 1) ** 1.5
            name = recent[int(self.random.choice(len(recent), p=weights / weights.sum()))]
            done += steps[int(self.random.integers(len(steps)))](name)
        self.model = self._model()

    def feeds(self, sizes: dict[str, int]) -> dict[str, Array]:
        """Inputs at some sizes."""
        random, found = np.random.default_rng(5), {}
        for value in self.model.graph.input:
            shape = [size.at(sizes) for size in self.shapes[value.name]]
            if value.name == "ids":
                found["ids"] = random.integers(-ROWS, ROWS, shape)
            else:
                found[value.name] = random.standard_normal(shape).astype(np.float32)
        return found

    def _model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        ends = [name for name in self.shapes if name not in read and name not in ("x", "ids")]

        def info(name: str) -> onnx.ValueInfoProto:
            dtype = TensorProto.INT64 if name == "ids" else TensorProto.FLOAT
            shape = [
                size.number if size.static else "_".join([*size.symbols, str(size.number)])
                for size in self.shapes[name]
            ]
            if name in ("x", "ids"):
                shape = ["B", "S", *shape[2:]]
            return helper.make_tensor_value_info(name, dtype, shape)

        inputs = [info(name) for name in ("x", "ids") if name in read]
        graph = helper.make_graph(self.nodes, "random", inputs, [info(name) for name in ends], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
