"""Steps with graphs within, and products of unusual weights: branches, loops, experts, whole numbers."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.randomly.writer import SIZES, GraphWriter, Size


class BodySteps(GraphWriter):
    """Each step acts on the value `name` and returns whether it could."""

    def branch(self, name: str) -> bool:
        """An If on an input or on what was made of it, whose branches compute, and read values from outside."""
        shape = self.shapes[name]
        other = self.other(shape.__eq__)
        decided = "x" if self.random.random() < 0.5 else self.other(lambda shape: True)
        mean = self.inner("ReduceMean", [decided], keepdims=0)
        condition = self.inner("Greater", [mean, self.stored(np.array(0.02, np.float32))])
        results = self.any_of((1, 1, 2))
        bodies = [self._body(side, read, results) for side, read in (("t", name), ("e", other))]
        self.add("If", [condition], *[shape] * results, then_branch=bodies[0], else_branch=bodies[1])
        return True

    def _body(self, side: str, name: str, results: int) -> onnx.GraphProto:
        """A branch that gives values of the shape of `name`: a product and back, or one operator."""
        shape = self.shapes[name]
        nodes, made = [], []
        for _ in range(results):
            self.count += 1
            result = f"b{self.count}{side}"
            if shape and shape[-1].static and self.random.random() < 0.6:
                width, inside = shape[-1].number, self.any_of(SIZES)
                up = self.weight(width, inside, spread=width**-0.5)
                down = self.weight(inside, width, spread=inside**-0.5)
                op = ["Tanh", "Identity", "Relu"][int(self.random.integers(3))]
                nodes += [
                    helper.make_node("MatMul", [name, up], [f"{result}u"]),
                    helper.make_node(op, [f"{result}u"], [f"{result}r"]),
                    helper.make_node("MatMul", [f"{result}r", down], [result]),
                ]
            else:
                op = ["Neg", "Tanh", "Identity"][int(self.random.integers(3))]
                nodes.append(helper.make_node(op, [name], [result]))
            made.append(helper.make_tensor_value_info(result, TensorProto.FLOAT, None))
        return helper.make_graph(nodes, side, [], made)

    def loop(self, name: str) -> bool:
        """Twice the mean of a value and of one from outside."""
        other = self.inner("Neg", [self.other(self.shapes[name].__eq__)])
        start = self.inner("Neg", [name])  # onnxruntime loses a value that a loop begins with and that others read too
        self.count += 1
        at = f"l{self.count}"
        nodes = [
            helper.make_node("Identity", [f"{at}c"], [f"{at}d"]),
            helper.make_node("Add", [f"{at}v", other], [f"{at}s"]),
            helper.make_node("Mul", [f"{at}s", self.stored(np.array(0.5, np.float32))], [f"{at}w"]),
        ]
        given = [
            helper.make_tensor_value_info(f"{at}i", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{at}c", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"{at}v", TensorProto.FLOAT, None),
        ]
        made = [
            helper.make_tensor_value_info(f"{at}d", TensorProto.BOOL, []),
            helper.make_tensor_value_info(f"{at}w", TensorProto.FLOAT, None),
        ]
        twice, go = self.stored(np.array(2, np.int64)), self.stored(np.array(True))
        self.add("Loop", [twice, go, start], self.shapes[name], body=helper.make_graph(nodes, "body", given, made))
        return True

    def dequantized(self, name: str) -> bool:
        """A product with a matrix of whole numbers, of one scale or one for each row or column."""
        shape = self.shapes[name]
        if not shape or not shape[-1].static:
            return False
        rows, width = shape[-1].number, self.any_of(SIZES)
        new, axis = (*shape[:-1], Size(width)), int(self.random.integers(2))
        each = [(rows, width)[axis]] if self.opset >= 13 and self.random.random() < 0.7 else []
        w = self.stored(self.random.integers(-128, 128, (rows, width)).astype(np.int8))
        scale = self.stored((self.random.uniform(0.5, 1, each) / (128 * rows**0.5)).astype(np.float32))
        zero = self.stored(self.random.integers(-9, 9, each).astype(np.int8))
        stored = self.inner("DequantizeLinear", [w, scale, zero], **({"axis": axis} if each else {}))
        self.add("MatMul", [name, stored], new)
        return self.fits(new)

    def experts(self, name: str) -> bool:
        """Each token through all experts, whose results are added up by weights of the token's own."""
        shape = self.shapes[name]
        if len(shape) != 3 or not shape[2].static or self.opset < 12:
            return False
        width, count, inside = shape[2].number, self.any_of((2, 3, 4)), self.any_of(SIZES)
        wide = (shape[0], shape[1], Size(count), Size(inside))
        if not self.fits(wide):
            return False
        up, down = self.weight(count, width, inside, spread=width**-0.5), self.weight(count, inside, width, spread=0.2)
        gate = self.weight(width, count, spread=width**-0.5)
        (chosen,) = self.add("MatMul", [name, gate], (*shape[:2], Size(count)))
        (gates,) = self.add("Softmax", [chosen], (*shape[:2], Size(count)), axis=2)
        (hidden,) = self.add("Einsum", [name, up], wide, equation="abk,ekn->aben")
        (active,) = self.add("Tanh", [hidden], wide)
        (results,) = self.add("Einsum", [active, down], (*wide[:3], shape[2]), equation="aben,enk->abek")
        self.add("Einsum", [results, gates], shape, equation="abek,abe->abk")
        return True
