"""Random graphs of operators that rearrange, join, take apart and sum: what exporters have not thought of.

Axes are products of a number and of the symbols B and S, so that merged axes such as B·heads occur. Values keep mixed
signs and the size of one. Everything that nothing reads is an output, so that no node is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

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


class RandomGraph:
    """Draws a graph of about `length` steps; `model` and `feeds` are what came of it."""

    def __init__(self, seed: int, length: int = 14) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.shapes: dict[str, Shape] = {}
        self.count = 0
        b, s, width = Size(1, ("B",)), Size(1, ("S",)), Size(int(self.random.choice(SIZES)))
        self.shapes["x"] = (b, s, width)
        self.shapes["ids"] = (b, s)
        steps: list[Callable[[str], bool]] = [
            self.product, self.product, self.product, self.two_values, self.bias, self.unary, self.split_axis,
            self.split_axis, self.merge_axes, self.merge_axes, self.transpose, self.concat, self.split, self.slice,
            self.pick, self.lookup, self.expand, self.tile, self.normalize, self.reduce, self.scores, self.shape_value,
            self.pad, self.squeeze, self.einsum, self.where,
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
                found["ids"] = random.integers(-self.rows, self.rows, shape)
            else:
                found[value.name] = random.standard_normal(shape).astype(np.float32)
        return found

    rows = 7

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
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    # -- emitting ------------------------------------------------------------------------------------------------------

    def add(self, op: str, inputs: Sequence[str], *shapes: Shape, **attributes: object) -> list[str]:
        """Append a node; its outputs' names."""
        outputs = [f"v{self.count + k}" for k in range(len(shapes))]
        self.count += len(shapes)
        self.nodes.append(helper.make_node(op, list(inputs), outputs, name=f"n{self.count}", **attributes))
        self.shapes.update(zip(outputs, shapes, strict=True))
        return outputs

    def inner(self, op: str, inputs: Sequence[str], **attributes: object) -> str:
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

    # -- steps: each returns whether it could be done ------------------------------------------------------------------

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
        order = ["abn", "nab", "anb"][int(self.random.integers(3))]
        new = tuple({"a": shape[0], "b": shape[1], "n": Size(width)}[letter] for letter in order)
        self.add("Einsum", [name, w], new, equation=f"abk,nk->{order}")
        return True

    def scores(self, name: str) -> bool:
        """A product of a value with another, or itself, transposed."""
        shape = self.shapes[name]
        if len(shape) < 2:
            return False
        others = [other for other, s in self.shapes.items() if other != "ids" and s == shape]
        other = others[int(self.random.integers(len(others)))]
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        new = (*shape[:-1], shape[-2])
        if not self.fits(new):
            return False
        (turned,) = self.add("Transpose", [other], (*shape[:-2], shape[-1], shape[-2]), perm=perm)
        (m,) = self.add("MatMul", [name, turned], new)
        self.add("Softmax" if self.random.random() < 0.5 else "Tanh", [m], new)
        return True

    def two_values(self, name: str) -> bool:
        shape = self.shapes[name]
        others = [o for o, s in self.shapes.items() if o != "ids" and len(s) <= len(shape) and _broadcasts(s, shape)]
        other = others[int(self.random.integers(len(others)))]
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

    def split_axis(self, name: str) -> bool:
        shape = self.shapes[name]
        axes = self.axes(
            name, lambda size: size.number > 3 and any(size.number % k == 0 for k in range(2, size.number))
        )
        if not axes or len(shape) > 5:
            return False
        axis = self.any_of(axes)
        number = shape[axis].number
        outer = self.any_of([k for k in range(2, number) if number % k == 0])
        first, second = Size(outer), Size(number // outer)
        if not shape[axis].static:
            whole = Size(number // outer, shape[axis].symbols)
            pair = (whole, first) if self.random.random() < 0.5 else (first, whole)
        else:
            pair = (first, second)
        new = (*shape[:axis], *pair, *shape[axis + 1 :])
        self.add("Reshape", [name, self.target(name, new, axis)], new)
        return True

    def merge_axes(self, name: str) -> bool:
        shape = self.shapes[name]
        if len(shape) < 2:
            return False
        axis = int(self.random.integers(len(shape) - 1))
        new = (*shape[:axis], shape[axis].times(shape[axis + 1]), *shape[axis + 2 :])
        self.add("Reshape", [name, self.target(name, new, axis)], new)
        return True

    def transpose(self, name: str) -> bool:
        shape = self.shapes[name]
        if len(shape) < 2:
            return False
        perm = self.random.permutation(len(shape)).tolist()
        self.add("Transpose", [name], tuple(shape[k] for k in perm), perm=perm)
        return True

    def concat(self, name: str) -> bool:
        shape = self.shapes[name]
        if not shape:
            return False
        axis = int(self.random.integers(len(shape)))
        if not shape[axis].static:
            return False
        same = [o for o, s in self.shapes.items() if o != "ids" and len(s) == len(shape) and s[axis].static
                and s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]]  # fmt: skip
        picked = [name, *(same[int(self.random.integers(len(same)))] for _ in range(int(self.random.integers(1, 3))))]
        total = Size(sum(self.shapes[each][axis].number for each in picked))
        new = (*shape[:axis], total, *shape[axis + 1 :])
        if not self.fits(new):
            return False
        self.add("Concat", picked, new, axis=axis - (len(shape) if self.random.random() < 0.3 else 0))
        return True

    def split(self, name: str) -> bool:
        shape = self.shapes[name]
        axes = self.axes(name, lambda size: size.static and size.number > 1)
        if not axes:
            return False
        axis = self.any_of(axes)
        number = shape[axis].number
        if number % 2 == 0 and self.random.random() < 0.6:
            parts = [number // 2] * 2
        else:
            first = int(self.random.integers(1, number))
            parts = [first, number - first]
        shapes = [(*shape[:axis], Size(part), *shape[axis + 1 :]) for part in parts]
        if len(set(parts)) == 1 and self.random.random() < 0.5:
            self.add("Split", [name], *shapes, axis=axis, num_outputs=2)
        else:
            self.add("Split", [name, self.integers(*parts)], *shapes, axis=axis)
        return True

    def slice(self, name: str) -> bool:
        shape = self.shapes[name]
        axes = self.axes(name, lambda size: size.static and size.number > 1)
        if not axes:
            return False
        axis = self.any_of(axes)
        number = shape[axis].number
        start = int(self.random.integers(0, number))
        stop = int(self.random.integers(start + 1, number + 1))
        step = 2 if self.random.random() < 0.15 else 1
        new = (*shape[:axis], Size(len(range(start, stop, step))), *shape[axis + 1 :])
        spelled = 2**63 - 1 if stop == number and self.random.random() < 0.5 else stop
        begin = start - number if self.random.random() < 0.3 else start
        end = stop - number if stop < number and self.random.random() < 0.3 else spelled
        self.add(
            "Slice", [name, self.integers(begin), self.integers(end), self.integers(axis), self.integers(step)], new
        )
        return True

    def pick(self, name: str) -> bool:
        """Elements by constant index: one, or several."""
        shape = self.shapes[name]
        axes = self.axes(name, lambda size: size.static)
        if not axes:
            return False
        axis = self.any_of(axes)
        number = shape[axis].number
        if self.random.random() < 0.5:
            index = self.stored(np.array(int(self.random.integers(-number, number)), np.int64))
            new = shape[:axis] + shape[axis + 1 :]
        else:
            found = self.random.integers(-number, number, int(self.random.integers(1, 4)))
            if self.random.random() < 0.4:
                found = np.arange(number)[: len(found)]
            index, new = self.integers(*found.tolist()), (*shape[:axis], Size(len(found)), *shape[axis + 1 :])
        self.add("Gather", [name, index], new, axis=axis)
        return True

    def lookup(self, name: str) -> bool:
        """A table looked up by the ids."""
        width = self.any_of(SIZES)
        self.add("Gather", [self.weight(self.rows, width * 4), "ids"], (*self.shapes["ids"], Size(width * 4)))
        return True

    def expand(self, name: str) -> bool:
        shape = self.shapes[name]
        axis, count = int(self.random.integers(len(shape) + 1)), self.any_of((2, 3, 4))
        new = (*shape[:axis], Size(count), *shape[axis:])
        if not self.fits(new):
            return False
        (apart,) = self.add("Unsqueeze", [name, self.integers(axis)], (*shape[:axis], ONE, *shape[axis:]))
        wanted = [1] * len(new)
        wanted[axis] = count
        self.add("Expand", [apart, self.integers(*wanted[int(self.random.integers(axis + 1)) :])], new)
        return True

    def tile(self, name: str) -> bool:
        shape = self.shapes[name]
        if not shape:
            return False
        axis = int(self.random.integers(len(shape)))
        new = (*shape[:axis], shape[axis].times(Size(2)), *shape[axis + 1 :])
        if not self.fits(new):
            return False
        self.add("Tile", [name, self.integers(*(2 if k == axis else 1 for k in range(len(shape))))], new)
        return True

    def normalize(self, name: str) -> bool:
        shape = self.shapes[name]
        if not shape:
            return False
        axis = int(self.random.integers(len(shape)))
        if self.random.random() < 0.5 or not shape[-1].static:
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
        self.add(op, [name, self.integers(axis)], new, keepdims=keep)
        return True

    def squeeze(self, name: str) -> bool:
        shape = self.shapes[name]
        axes = self.axes(name, lambda size: size == ONE)
        if not axes:
            return False
        axis = self.any_of(axes)
        self.add("Squeeze", [name, self.integers(axis)], shape[:axis] + shape[axis + 1 :])
        return True

    def pad(self, name: str) -> bool:
        shape = self.shapes[name]
        axes = self.axes(name, lambda size: size.static)
        if not axes or self.random.random() < 0.5:
            return False
        axis = self.any_of(axes)
        pads = [0] * (2 * len(shape))
        pads[axis], pads[axis + len(shape)] = 1, 2
        self.add("Pad", [name, self.integers(*pads)], (*shape[:axis], Size(shape[axis].number + 3), *shape[axis + 1 :]))
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
        others = [o for o, s in self.shapes.items() if o != "ids" and s == shape]
        self.add("Where", [positive, others[int(self.random.integers(len(others)))], name], shape)
        return True


def _broadcasts(small: Shape, large: Shape) -> bool:
    return all(a in (b, ONE) for a, b in zip(reversed(small), reversed(large), strict=False))
