"""Shapes and shape values: a walk over the graph with two sets of input sizes.

Each symbol of the inputs takes a number, different per sample; then every node is asked once per sample for its output
shapes (onnx's own inference, with the values of shape operands), and small integer arithmetic is evaluated. Nothing of
a weight is read but small constants, no kernel is run. Operators onnx does not know have functions of our own
(`shape_functions`); what is unknown then is asked of onnx-shape-inference.

Leaves in every `Value`: `dtype`, `sizes` (None where even the rank is unknown) and `known` where it is metadata.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpcompile.graph.constants import SMALL_FLOATS, SMALL_INTEGERS, constant_of
from tpcompile.graph.evaluate import BROADCAST, NotEvaluable, evaluate, varying
from tpcompile.graph.node_shapes import NodeInference
from tpcompile.graph.program import Node, Program, Sizes, Value
from tpcompile.graph.samples import IMAGE, SAMPLES, SOUND, Samples

Shape = tuple[Sizes, ...]
NEAR = 64
"""How many values from an input a convolution may be that is the input's own."""

COMPARISONS = frozenset(["And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])


class SizesDiffer(Exception):
    """Two dims must be equal by the operator's definition but cannot be."""


class WalkAgain(Exception):
    """Symbols turned out to be one: what was inferred so far does not hold."""


@dataclass
class ShapeReport:
    """What the walk found: the samples, and warnings worth telling."""

    samples: Samples
    warnings: list[str] = field(default_factory=list)


def infer_shapes(
    program: Program, symbolic: Callable[[Samples], dict[str, tuple[str, Shape]]] | None = None
) -> ShapeReport:
    """Fill in `dtype`, `sizes` and `known` of every value of the program.

    `symbolic` gives shapes that another inference found, by value name; it is only called where the walk needs one.

    Operands whose sizes contradict each other first merge the symbols that stand for them; where that is not possible
    the shape is left unknown, and what depends on it runs whole.
    """
    samples = Samples(_static_sizes(program))
    for value in program.inputs:
        shape = value.shape or ()
        image = len(shape) >= 4 and all(isinstance(size, str) for size in shape[-2:])
        if image or (len(shape) in (2, 3) and (value.dtype or "").startswith("float") and _convolved(value)):
            for size in shape[2:] if image else shape[1:]:
                if isinstance(size, str):
                    samples.spatial(size, SOUND if len(shape) == 2 else IMAGE)
    spelled = Counter(size for value in program.inputs for size in value.shape or ())
    for value in program.inputs:
        batch, length = value.shape if value.shape is not None and len(value.shape) == 2 else (None, None)
        if isinstance(batch, str) and isinstance(length, str) and spelled[length] == 1:
            samples.masks.append((length, batch))
    walk = _Walk(program, samples)
    while not walk.run():
        pass
    if walk.lacking and symbolic is not None:
        walk.told = symbolic(samples)
        while not walk.run():
            pass
    return ShapeReport(samples, walk.warnings)


def _convolved(value: Value) -> bool:
    """Whether a value comes to a convolution with its axes as they are, more or less: then it is a signal."""
    todo, seen = [value], {value}
    while todo and len(seen) <= NEAR:
        for node, index in todo.pop(0).consumers:
            if node.op in ("Conv", "AveragePool", "MaxPool") and index == 0:
                return True
            if node.op not in ("MatMul", "Gemm", "Gather", "Shape"):
                todo += [output for output in node.outputs if output is not None and output not in seen]
                seen.update(todo)
    return False


def _static_sizes(program: Program) -> set[int]:
    found = {1}
    for value in program.values.values():
        for size in value.shape or ():
            if isinstance(size, int):
                found.add(size)
    return found


class _Walk:
    def __init__(self, program: Program, samples: Samples) -> None:
        self.program, self.samples = program, samples
        self.constants = {value.name: constant_of(value) for value in program.weights}
        self.warnings: list[str] = []
        self.inference = NodeInference(self.warnings)
        self.told: dict[str, tuple[str, Shape]] = {}
        """What another inference says of values, by name."""
        self.lacking = False

    def run(self) -> bool:
        """Walk over all nodes; False where symbols had to be merged on the way, so that the walk must start again."""
        self.warnings.clear()
        self.lacking = False
        for value in self.program.values.values():
            value.known = value.varies = None
            if value.weight is not None:
                value.dtype = value.weight.dtype
                value.sizes = tuple((size,) * SAMPLES for size in value.weight.shape)
                constant = self.constants[value.name]
                value.known = None if constant is None else (constant,) * SAMPLES
        for value in self.program.inputs:
            if value.shape is not None:
                value.sizes = tuple(self.named(value.name, axis, size) for axis, size in enumerate(value.shape))
        for node in self.program.nodes:
            try:
                self.visit(node)
            except WalkAgain:
                return False
            except SizesDiffer:
                for output in filter(None, node.outputs):
                    self.ask(output, "")
            if self.samples.forced:
                for output in filter(None, node.outputs):
                    if output.sizes is not None:
                        output.sizes = tuple(self.samples.forced.get(sizes, sizes) for sizes in output.sizes)
        return not self.samples.settle()

    def one(self, a: Sizes, b: Sizes) -> Sizes:
        """Two sizes that the operator needs equal, as one; a guess while the samples are in doubt."""
        if a == b:
            return a
        if self.samples.bind(a, b):
            raise WalkAgain
        if not self.samples.doubts:
            raise SizesDiffer(f"{a} and {b}")
        return tuple(map(max, a, b))

    def named(self, name: str, axis: int, size: int | str | None) -> Sizes:
        if isinstance(size, int):
            return (size,) * SAMPLES
        return self.samples.symbol(size) if size else self.samples.unnamed(name, axis)

    def visit(self, node: Node) -> None:
        if self.evaluate(node):
            return
        if node.regions:
            self.join(node)
            return
        standard = node.domain in ("", "ai.onnx")
        if standard and node.op in BROADCAST and self.broadcast(node):
            return
        if standard and node.op == "MatMul" and self.matmul(node):
            return
        if standard and node.op == "Concat" and self.concat(node):
            return
        if standard and node.op == "Split" and self.split(node):
            return
        found = [self.inference.infer(node, sample) for sample in range(SAMPLES)]
        for k, output in enumerate(node.outputs):
            if output is None:
                continue
            dtype, per_sample = found[0][k][0], [f[k][1] for f in found]
            self.set_output(node, output, dtype, per_sample)
        if standard and node.op == "Reshape":
            self.reshape(node)

    def join(self, node: Node) -> None:
        """What an If makes is like what its branches make; where they differ in size, it depends on data."""
        count = len(node.outputs)
        for k, output in enumerate(node.outputs):
            ends = [node.inputs[1 + k + branch * count] for branch in range(len(node.regions))]
            shapes = [None if end is None else end.sizes for end in ends]
            if output is None:
                continue
            output.dtype = next((end.dtype for end in ends if end is not None), None)
            if any(shape is None or shapes[0] is None or len(shape) != len(shapes[0]) for shape in shapes):
                self.ask(output, output.dtype or "")
                continue
            columns = zip(*(shape for shape in shapes if shape is not None), strict=True)
            output.sizes = tuple(
                column[0] if len(set(column)) == 1 else self.named(output.name, axis, None)
                for axis, column in enumerate(columns)
            )

    def set_output(
        self, node: Node, output: Value, dtype: str, per_sample: Sequence[tuple[int | None, ...] | None]
    ) -> None:
        first = per_sample[0]
        if first is None or any(p is None or len(p) != len(first) for p in per_sample):
            self.ask(output, dtype)
            return
        output.dtype = dtype or output.dtype
        sizes: list[Sizes] = []
        for axis in range(len(first)):
            column = tuple(p[axis] for p in per_sample if p is not None)
            if any(size is None for size in column):  # depends on data
                sizes.append(self.named(output.name, axis, None))
            else:
                sizes.append(tuple(size for size in column if size is not None))
        if any(min(size) <= 0 < max(size) for size in sizes):  # it would line up with anything
            self.samples.doubt()
            self.ask(output, dtype)
            return
        output.sizes = tuple(sizes)

    def ask(self, output: Value, dtype: str) -> None:
        """Take the shape of another inference, or leave it unknown: then the value runs whole."""
        found = self.told.get(output.name)
        output.dtype = dtype or (found[0] if found else output.dtype)
        output.sizes = found[1] if found else None
        if found is None:
            self.lacking = True
            self.warnings.append(f"the shape of {output.name} is unknown: it is computed whole")

    def evaluate(self, node: Node) -> bool:
        """Evaluate the node on both samples where all it reads is known."""
        if node.op in ("Shape", "Size") and node.domain in ("", "ai.onnx"):
            source = node.inputs[0]
            if source is None or source.sizes is None or node.outputs[0] is None:
                return False
            start, end = node.attribute("start", 0), node.attribute("end")
            kept = source.sizes[start:end]
            found = [np.array([size[k] for size in kept], np.int64) for k in range(SAMPLES)]
            if node.op == "Size":
                found = [np.asarray(np.prod(f), np.int64) for f in found]
            self.set_known(node.outputs[0], found)
            differs = np.array([len(set(size)) > 1 for size in kept], bool)
            node.outputs[0].varies = differs if node.op == "Shape" else np.asarray(differs.any())
            return True
        if node.captured or (not node.inputs and node.op != "Constant"):
            return False
        inputs = [value for value in node.inputs if value is not None]
        if not all(value.known is not None for value in inputs):
            return False
        results = []
        for sample in range(SAMPLES):
            arrays = [None if value is None or value.known is None else value.known[sample] for value in node.inputs]
            try:
                results.append(evaluate(node, arrays))
            except NotEvaluable:
                return False
        for k, output in enumerate(node.outputs):
            if output is None:
                continue
            found = [result[k] for result in results]
            if any(f.ndim != found[0].ndim for f in found):
                return False
            self.set_known(output, found)
            if output.known is not None:
                output.varies = varying(node, k, found)
        return True

    def set_known(self, value: Value, found: Sequence[np.ndarray[Any, Any]]) -> None:
        value.dtype = found[0].dtype.name
        value.sizes = tuple(zip(*(f.shape for f in found), strict=True)) if found[0].ndim else ()
        small = all(f.size <= (SMALL_INTEGERS if f.dtype.kind in "iub" else SMALL_FLOATS) for f in found)
        value.known = tuple(found) if small else None

    def broadcast(self, node: Node) -> bool:
        shapes = [value.sizes for value in node.inputs if value is not None]
        output = node.outputs[0]
        if output is None or any(shape is None for shape in shapes):
            return False
        output.sizes = self.broadcast_shapes([shape for shape in shapes if shape is not None])
        last = node.inputs[-1]
        output.dtype = "bool" if node.op in COMPARISONS else last.dtype if last is not None else None
        if node.op == "Pow" and node.inputs[0] is not None:
            output.dtype = node.inputs[0].dtype
        return True

    def matmul(self, node: Node) -> bool:
        a, b, output = node.inputs[0], node.inputs[1], node.outputs[0]
        if (
            a is None
            or b is None
            or output is None
            or a.sizes is None
            or b.sizes is None
            or len(a.sizes) < 2
            or len(b.sizes) < 2
        ):
            return False
        self.one(a.sizes[-1], b.sizes[-2])
        output.dtype = a.dtype
        output.sizes = (*self.broadcast_shapes([a.sizes[:-2], b.sizes[:-2]]), a.sizes[-2], b.sizes[-1])
        return True

    def concat(self, node: Node) -> bool:
        shapes = [value.sizes for value in node.inputs if value is not None]
        output = node.outputs[0]
        first = shapes[0]
        if output is None or first is None or any(s is None or len(s) != len(first) for s in shapes):
            return False
        axis = node.attribute("axis") % len(first)
        columns = [list(column) for column in zip(*(s for s in shapes if s is not None), strict=True)]
        for k, column in enumerate(columns):
            for other in column:
                if k != axis:
                    column[0] = self.one(column[0], other)
        total = tuple(sum(size[sample] for size in columns[axis]) for sample in range(SAMPLES))
        output.sizes = tuple(total if k == axis else column[0] for k, column in enumerate(columns))
        output.dtype = next(value.dtype for value in node.inputs if value is not None)
        return True

    def split(self, node: Node) -> bool:
        """Lengths that are told are those of the parts, whatever is known of the axis: how many experts were hit."""
        source, lengths = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
        if source is None or source.sizes is None or lengths is None or lengths.known is None:
            return False
        axis = node.attribute("axis", 0) % len(source.sizes)
        for output, part in zip(node.outputs, zip(*(k.tolist() for k in lengths.known), strict=True), strict=True):
            if output is not None:
                output.dtype = source.dtype
                output.sizes = (*source.sizes[:axis], part, *source.sizes[axis + 1 :])
        return True

    def broadcast_shapes(self, shapes: Sequence[Shape]) -> Shape:
        """The shape that several broadcast to."""
        rank = max(map(len, shapes), default=0)
        found: list[Sizes] = []
        for axis in range(rank):
            size: Sizes = (1,) * SAMPLES
            for shape in shapes:
                position = axis - rank + len(shape)
                if position < 0 or shape[position] == size or set(shape[position]) == {1}:
                    continue
                size = shape[position] if set(size) == {1} else self.one(size, shape[position])
            found.append(size)
        return tuple(found)

    def reshape(self, node: Node) -> None:
        """A Reshape whose sides differ in elements tells what an axis must be: an exporter baked its size in."""
        x, y, target = node.inputs[0], node.outputs[0], node.inputs[1]
        if x is None or y is None or target is None or not x.sizes or target.known is None:
            return
        given = list(zip(*(array.tolist() for array in target.known), strict=True))
        open_size = (-1,) * SAMPLES in given
        sides = (x.sizes, [size for size in given if size[0] != -1] if open_size else y.sizes or ())
        left, right = ([math.prod(size[k] for size in shape) for k in range(SAMPLES)] for shape in sides)
        if left == right or not all(left) or not all(right):
            return
        if self.samples.unround:  # windows of an image that the graph takes to be whole
            self.samples.doubt()
        free = [
            [size for size in a if len(set(size)) > 1 and size not in b]
            for a, b in ((x.sizes, given), (given, x.sizes))
        ]
        if open_size:
            if any(p % q for p, q in zip(left, right, strict=True)) and len(free[0]) == len(free[1]) == 1:
                self.one(free[0][0], free[1][0])
            return
        for size in dict.fromkeys(free[0]):
            exact = all(size[k] * right[k] % left[k] == 0 for k in range(SAMPLES))
            must = tuple(size[k] * right[k] // left[k] for k in range(SAMPLES))
            if exact and (len(set(must)) == 1 or must in self.samples.symbols.values()):
                self.one(size, must)
