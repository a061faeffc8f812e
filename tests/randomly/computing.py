"""Steps that compute: products, sums, norms, lookups, and values that depend on sizes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.randomly.writer import ONE, SIZES, GraphWriter, Size, broadcasts

ROWS = 7
"""Of the tables that ids look up."""


class ComputingSteps(GraphWriter):
    """Each step acts on the value `name` and returns whether it could."""

    def product(self, name: str) -> bool:
        """A product with a stored matrix, sometimes with a bias."""
        shape = self.shapes[name]
        if not shape or not shape[-1].static:
            return False
        width = self.any_of(SIZES)
        new = (*shape[:-1], Size(width))
        w = self.weight(shape[-1].number, width, spread=shape[-1].number ** -0.5)
        if len(shape) == 2 and self.random.random() < 0.5:
            self.add("Gemm", [name, w, self.weight(width)], new, alpha=0.5)
        else:
            self.add("MatMul", [name, w], new)
        return self.fits(new)

    def einsum(self, name: str) -> bool:
        shape = self.shapes[name]
        if len(shape) != 3 or not shape[2].static:
            return False
        width = self.any_of(SIZES)
        w = self.weight(width, shape[2].number, spread=shape[2].number ** -0.5)
        if self.opset < 12:
            return False
        order = ["abn", "nab", "anb"][int(self.random.integers(3))]
        new = tuple({"a": shape[0], "b": shape[1], "n": Size(width)}[letter] for letter in order)
        self.add("Einsum", [name, w], new, equation=f"abk,nk->{order}")
        return True

    def scores(self, name: str) -> bool:
        """A product of a value with another, or itself, transposed."""
        shape = self.shapes[name]
        if len(shape) < 2:
            return False
        other = self.other(shape.__eq__)
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        new = (*shape[:-1], shape[-2])
        if not self.fits(new):
            return False
        (turned,) = self.add("Transpose", [other], (*shape[:-2], shape[-1], shape[-2]), perm=perm)
        (m,) = self.add("MatMul", [name, turned], new)
        if self.random.random() < 0.5:
            self.add("Softmax", [m], new, axis=len(new) - 1)
        else:
            self.add("Tanh", [m], new)
        return True

    def two_values(self, name: str) -> bool:
        shape = self.shapes[name]
        other = self.other(lambda s: len(s) <= len(shape) and broadcasts(s, shape))
        op = ["Add", "Sub", "Mul", "Add", "Max"][int(self.random.integers(5))]
        pair = [name, other] if self.random.random() < 0.5 else [other, name]
        self.add(op, pair, shape)
        return True

    def bias(self, name: str) -> bool:
        """A stored tensor along some of the last axes, or a number."""
        shape, kept = self.shapes[name], int(self.random.integers(0, 3))
        sizes = [
            size.number if size.static and self.random.random() < 0.8 else 1
            for size in shape[len(shape) - min(kept, len(shape)) :]
        ]
        op = ["Add", "Mul", "Sub", "Div"][int(self.random.integers(4))]
        w = self.weight(*sizes) if op != "Div" else self.stored(np.full(sizes, 1.5, np.float32))
        self.add(op, [name, w], shape)
        return True

    def unary(self, name: str) -> bool:
        op = ["Tanh", "Relu", "Neg", "Identity", "Sigmoid", "Abs"][int(self.random.integers(6))]
        self.add(op, [name], self.shapes[name])
        return True

    def lookup(self, name: str) -> bool:
        """A table looked up by the ids."""
        width = self.any_of(SIZES)
        self.add("Gather", [self.weight(ROWS, width * 4), "ids"], (*self.shapes["ids"], Size(width * 4)))
        return True

    def normalize(self, name: str) -> bool:
        shape = self.shapes[name]
        if not shape:
            return False
        axis = int(self.random.integers(len(shape)))
        if self.random.random() < 0.5 or not shape[-1].static or self.opset < 17:
            self.add("Softmax", [name], shape, axis=axis)
        else:
            self.add("LayerNormalization", [name, self.weight(shape[-1].number)], shape, axis=-1, epsilon=0.1)
        return True

    def reduce(self, name: str) -> bool:
        shape = self.shapes[name]
        if not shape:
            return False
        axis, keep = int(self.random.integers(len(shape))), int(self.random.random() < 0.5)
        op = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMean"][int(self.random.integers(4))]
        new = (*shape[:axis], *([ONE] if keep else []), *shape[axis + 1 :])
        self.on_axes(op, name, [axis], new, since=13 if op == "ReduceSum" else 18, keepdims=keep)
        return True

    def shape_value(self, name: str) -> bool:
        """Divided by the root of one of its own sizes, taken at run time: the global one is meant."""
        shape = self.shapes[name]
        if not shape:
            return False
        axis = int(self.random.integers(len(shape)))
        size = self.inner("Gather", [self.inner("Shape", [name]), self.stored(np.array(axis, np.int64))])
        root = self.inner("Sqrt", [self.inner("Cast", [size], to=TensorProto.FLOAT)])
        self.add("Div", [name, root], shape)
        return True

    def where(self, name: str) -> bool:
        shape = self.shapes[name]
        positive = self.inner("Greater", [name, self.stored(np.array(0.1, np.float32))])
        self.add("Where", [positive, self.other(shape.__eq__), name], shape)
        return True

    def wider(self, name: str) -> bool:
        """To float64 and back, with something on the way."""
        shape = self.shapes[name]
        wide = self.inner("Cast", [name], to=TensorProto.DOUBLE)
        if self.random.random() < 0.5:
            wide = self.inner("Mul", [wide, self.stored(np.array(0.5))])
        self.add("Cast", [wide], shape, to=TensorProto.FLOAT)
        return True

    def running(self, name: str) -> bool:
        """A running mean of a sort, or a triangle."""
        shape = self.shapes[name]
        if self.random.random() < 0.5 and len(shape) >= 2 and self.opset >= 14:
            self.add("Trilu", [name], shape, upper=int(self.random.random() < 0.5))
        elif shape:
            axis = self.stored(np.array(int(self.random.integers(len(shape))), np.int64))
            (total,) = self.add("CumSum", [name, axis], shape)
            self.add("Tanh", [total], shape)
        return bool(shape)

    def convolve(self, name: str) -> bool:
        """Along the last of three axes; in groups where the channels allow it."""
        shape = self.shapes[name]
        if len(shape) != 3 or not shape[1].static or not shape[2].static or shape[2].number < 3:
            return False
        channels = shape[1].number
        groups = self.any_of([k for k in range(1, channels + 1) if channels % k == 0])
        out = groups * int(self.random.integers(1, 4))
        w = self.weight(out, channels // groups, 3, spread=(3 * channels / groups) ** -0.5)
        inputs = [name, w, self.weight(out)] if self.random.random() < 0.5 else [name, w]
        self.add("Conv", inputs, (shape[0], Size(out), shape[2]), group=groups, pads=[1, 1], kernel_shape=[3])
        return True

    def three_values(self, name: str) -> bool:
        shape = self.shapes[name]
        picked = [self.other(shape.__eq__) for _ in range(3)]
        (total,) = self.add(["Sum", "Mean"][int(self.random.integers(2))], picked, shape)
        self.add(
            "Clip", [total, self.stored(np.array(-1.5, np.float32)), self.stored(np.array(2.5, np.float32))], shape
        )
        return True

    def no_rule(self, name: str) -> bool:
        shape = self.shapes[name]
        if not shape:
            return False
        self.add("LpNormalization", [name], shape, axis=int(self.random.integers(len(shape))), p=1)
        return True

    def positions(self, name: str) -> bool:
        """Plus a table looked up by position: Range up to a size that is only known at run time."""
        shape = self.shapes[name]
        axes = [axis for axis, size in enumerate(shape) if size.symbols in (("B",), ("S",)) and size.number == 1]
        if not axes or axes[0] != len(shape) - 2 or not shape[-1].static:
            return False
        zero, one = self.stored(np.array(0, np.int64)), self.stored(np.array(1, np.int64))
        size = self.inner("Gather", [self.inner("Shape", [name]), self.stored(np.array(axes[0], np.int64))])
        table = self.weight(16, shape[-1].number)
        found = self.inner("Gather", [table, self.inner("Range", [zero, size, one])])
        self.add("Add", [name, found], shape)
        return True
