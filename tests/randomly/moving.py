"""Steps that rearrange, join, take apart and pick: nothing is computed, only moved."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.randomly.writer import ONE, GraphWriter, Size


class MovingSteps(GraphWriter):
    """Each step acts on the value `name` and returns whether it could."""

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
        rest = shape[:axis] + shape[axis + 1 :]
        same = self.others(lambda s: len(s) == len(shape) and s[axis].static and s[:axis] + s[axis + 1 :] == rest)
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
        if len(set(parts)) == 1 and self.opset >= 18 and self.random.random() < 0.5:
            self.add("Split", [name], *shapes, axis=axis, num_outputs=2)
        else:
            self.on_axes("Split", name, parts, *shapes, since=13, spelled="split", axis=axis)
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

    def expand(self, name: str) -> bool:
        shape = self.shapes[name]
        axis, count = int(self.random.integers(len(shape) + 1)), self.any_of((2, 3, 4))
        new = (*shape[:axis], Size(count), *shape[axis:])
        if not self.fits(new):
            return False
        (apart,) = self.on_axes("Unsqueeze", name, [axis], (*shape[:axis], ONE, *shape[axis:]), since=13)
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

    def squeeze(self, name: str) -> bool:
        shape = self.shapes[name]
        axes = self.axes(name, lambda size: size == ONE)
        if not axes:
            return False
        axis = self.any_of(axes)
        self.on_axes("Squeeze", name, [axis], shape[:axis] + shape[axis + 1 :], since=13)
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

    def sort(self, name: str) -> bool:
        shape = self.shapes[name]
        axes = self.axes(name, lambda size: size.static and size.number > 1)
        if not axes:
            return False
        axis = self.any_of(axes)
        count = int(self.random.integers(1, shape[axis].number))
        new = (*shape[:axis], Size(count), *shape[axis + 1 :])
        self.count += 1
        outputs = [f"v{self.count}", f"i{self.count}"]
        inputs = [name, self.integers(count)]
        self.nodes.append(helper.make_node("TopK", inputs, outputs, name=f"n{self.count}", axis=axis))
        self.shapes[outputs[0]] = new
        return True

    def elements(self, name: str) -> bool:
        """GatherElements, or GatherND on the first axis."""
        shape = self.shapes[name]
        if all(size.static for size in shape) and shape and self.random.random() < 0.7:
            axis = int(self.random.integers(len(shape)))
            number = shape[axis].number
            index = self.random.integers(-number, number, [size.number for size in shape])
            self.add("GatherElements", [name, self.stored(index)], shape, axis=axis)
        elif shape and shape[0].static:
            index = self.random.integers(0, shape[0].number, (int(self.random.integers(1, 3)), 1))
            self.add("GatherND", [name, self.stored(index)], (Size(len(index)), *shape[1:]))
        else:
            return False
        return True

    def scatter(self, name: str) -> bool:
        """Rows written over by those of another value."""
        shape = self.shapes[name]
        if len(shape) < 2 or not shape[0].static:
            return False
        rows = self.random.permutation(shape[0].number)[: int(self.random.integers(1, shape[0].number + 1))]
        part = (Size(len(rows)), *shape[1:])
        (update,) = self.add("Gather", [name, self.integers(*rows[::-1].tolist())], part, axis=0)
        (other,) = self.add("Tanh", [update], part)
        self.add("ScatterND", [name, self.stored(rows.reshape(-1, 1)), other], shape)
        return True

    def flatten(self, name: str) -> bool:
        shape = self.shapes[name]
        axis = int(self.random.integers(len(shape) + 1))
        halves = []
        for part in (shape[:axis], shape[axis:]):
            size = ONE
            for each in part:
                size = size.times(each)
            halves.append(size)
        self.add("Flatten", [name], tuple(halves), axis=axis)
        return True
