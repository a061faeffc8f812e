"""The versions of a value: as its node makes it, summed, gathered, sliced. Each is made once, when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut, Indices, SubAxes
from tpcompile.dims.dim import Dim, factors, leaves, root
from tpcompile.dims.placement import NONE, Leaves
from tpcompile.errors import refuse
from tpcompile.graph.local import LocalSize, LocalWeight
from tpcompile.graph.program import Sizes, Value
from tpcompile.passes.emit import Emitter
from tpcompile.passes.gathered_weights import assembled
from tpcompile.plan.uses import HALVES, item_bytes
from tpcompile.weights.ranges import Part, Ranges, ranges_of

if TYPE_CHECKING:
    from tpcompile.passes.gradients import Gradients

PADDED = frozenset(("float16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64"))
"""Types for which Pad has kernels; other values repeat their first element."""


@dataclass
class Versions:
    """Makes versions on demand.

    `native[value]` are the leaves along which a value is cut as made, `partial[value]` the sub-axes over which it is a
    pending sum; both hold before anything is asked for.
    """

    analysis: Analysis
    cut: Cut
    emitter: Emitter
    describe: Callable[[Sizes], str | None]
    reduce_dtype: str = "float32"
    gathered: frozenset[Value] = frozenset()
    native: dict[Value, Leaves] = field(default_factory=dict)
    partial: dict[Value, frozenset[int]] = field(default_factory=dict)
    final: dict[Value, Leaves] = field(default_factory=dict)
    """What graph outputs must be: the version that carries the output's own name."""
    because: dict[Value, str] = field(default_factory=dict)
    gradients: Gradients | None = None
    _names: dict[tuple[Value, Leaves, bool], str] = field(default_factory=dict)
    _weights: dict[object, str] = field(default_factory=dict)
    _quick: dict[tuple[Value, Leaves, frozenset[int]], str] = field(default_factory=dict)
    _stored: set[Value] = field(default_factory=set)
    _ranges: dict[tuple[Dim, Leaves, int], Ranges] = field(default_factory=dict)

    def native_name(self, value: Value) -> str:
        """The name of the value as its node makes it."""
        key = (value, self.native.get(value, NONE), not self.partial.get(value))
        if key not in self._names and value.weight is not None:
            self._names[key] = self.stored(value, self._axes(value), key[1])
        if key not in self._names:
            own = value not in self.final or (self.final[value] == key[1] and key[2])
            self._names[key] = value.name if own else self.emitter.name(f"{value.name}.local")
        return self._names[key]

    def get(self, value: Value, want: Leaves, *, summed: bool = True) -> str:
        """The name of the version cut along exactly `want`; with `summed` False a pending sum stays pending."""
        summed = summed or not self.partial.get(value)
        key = (value, want, summed)
        if key in self._names:
            return self._names[key]
        current, done = self.native.get(value, NONE), not self.partial.get(value)
        name = self.native_name(value)
        if summed and not done:
            name = self._step(value, current, True, lambda output: self._reduce(value, name, current, output), "sum")
        gathered = current & want
        if gathered != current:
            source, held = name, current
            name = self._step(
                value, gathered, summed, lambda output: self._gather(value, source, held, gathered, output), "whole"
            )
        if gathered != want:
            source, held = name, gathered
            name = self._step(
                value, want, summed, lambda output: self._slice(value, source, held, want, output), "part"
            )
        return name

    def _step(self, value: Value, leaves_: Leaves, summed: bool, make: Callable[[str], str], suffix: str) -> str:
        key = (value, leaves_, summed)
        if key not in self._names:
            own = summed and self.final.get(value) == leaves_
            inside, self.emitter.region = self.emitter.region, value.region  # where all its readers see it
            self._names[key] = make(value.name if own else self.emitter.name(f"{value.name}.{suffix}"))
            self.emitter.region = inside
        return self._names[key]

    # -- stored tensors ----------------------------------------------

    def stored(self, value: Value, axes: Sequence[Dim], want: Leaves, mask: frozenset[int] = frozenset()) -> str:
        """The part of a stored tensor cut along `want`; zeros except where the coordinate on all of `mask` is 0."""
        if value.weight is None:
            raise ValueError(value.name)
        quick = (value, want, mask)
        shared = axes is self.analysis.axes[value]
        if shared and quick in self._quick:
            return self._quick[quick]
        if value in self.gathered and not mask and not self._cut_along(axes, want):
            return self._assembled(value)
        parts = tuple(Part(tuple(self.ranges(dim, want, rank) for dim in axes)) for rank in range(self.cut.mesh.tp))
        zeroed = frozenset(rank for rank in range(self.cut.mesh.tp) if not self.starts(rank, mask))
        key = (value.weight.name, parts, zeroed)
        if key not in self._weights:
            taken = value in self._stored or value in self.final  # a graph output keeps its name for itself
            self._weights[key] = self.emitter.name(value.name) if taken else value.name
            self._stored.add(value)
            self.emitter.program.weights.append(LocalWeight(self._weights[key], value.weight, parts, zeroed))
        if shared:
            self._quick[quick] = self._weights[key]
        return self._weights[key]

    def _cut_along(self, axes: Sequence[Dim], want: Leaves) -> bool:
        return any(self.cut.only(want).leaves(dim) for dim in axes)

    def _assembled(self, value: Value) -> str:
        """The whole of a weight that is stored cut."""
        key = (value, "gathered")
        if key not in self._weights:
            name = self.emitter.name(value.name) if value in self._stored else value.name
            self._stored.add(value)
            self._weights[key] = assembled(self.emitter, value, name, self.cut.mesh)
        return self._weights[key]

    def ranges(self, dim: Dim, held: Leaves, rank: int) -> Ranges | None:
        """What a rank holds of an axis cut along `held`, None where that is all of it."""
        local = self.cut.only(held)
        if not local.leaves(dim):
            return None
        key = (root(dim), held, rank)
        if key not in self._ranges:
            self._ranges[key] = ranges_of(local.index(dim, rank))
        return self._ranges[key]

    def starts(self, rank: int, axes: frozenset[int]) -> bool:
        """Whether a rank is the first of its group over `axes`: what is added once is added there."""
        digits = self.cut.mesh.digits(rank)
        return all(digits[axis] == 0 for axis in axes)

    # -- collectives -------------------------------------------------

    def _axes(self, value: Value) -> list[Dim]:
        axes = self.analysis.axes[value]
        if axes is None:
            raise ValueError(f"{value.name} has no axes")
        return axes

    def shapes(self, value: Value, held: Leaves) -> list[list[LocalSize]]:
        """The shape of a version on each rank, dynamic axes in symbols."""
        local = self.cut.only(held)
        found = []
        for rank in range(self.cut.mesh.tp):
            shape: list[LocalSize] = []
            for dim in self._axes(value):
                if dim.static:
                    shape.append(local.local_size(dim, rank))
                else:
                    shape.append(self.describe(dim.sizes) if not local.leaves(dim) else None)
            found.append(shape)
        return found

    def size_text(self, dim: Dim) -> str:
        """A size that no rank has a part of, with the symbols of the source."""
        return self.describe(dim.sizes) or "?"

    def bytes_text(self, dtype: str | None, shape: Sequence[LocalSize]) -> str:
        """The bytes of a version, with the symbols of dynamic axes: "batch*seq*512"."""
        number, symbols = item_bytes(dtype), []
        for size in shape:
            if isinstance(size, int):
                number *= size
            else:
                symbols.append("?" if size is None else f"({size})" if " " in size else size)
        return "*".join([*symbols, str(round(number))])

    def _reduce(self, value: Value, name: str, held: Leaves, output: str) -> str:
        """Sum over ranks, half precision in float32 if that is asked for: nothing is rounded between the parts then.

        Where a runtime computes products in float32 anyway (ONNX Runtime on CPUs), no part is rounded before either.
        """
        axes: SubAxes = tuple(sorted(self.partial[value]))
        shapes, emitter = self.shapes(value, held), self.emitter
        wide = self.reduce_dtype == "float32" and value.dtype in HALVES
        dtype = "float32" if wide else value.dtype
        if wide:
            name = emitter.node("Cast", [name], emitter.name(f"{output}.wide"), to="float32")
        total = emitter.collective(
            "all_reduce", name, emitter.name(f"{output}.total") if wide else output, axes, value=value, shapes=shapes,
            nbytes=self.bytes_text(dtype, shapes[0]), because=self.because.get(value, ""), dtype=dtype,
        )  # fmt: skip
        return emitter.node("Cast", [total], output, to=value.dtype) if wide and value.dtype else total

    def _gather(self, value: Value, name: str, held: Leaves, kept: Leaves, output: str) -> str:
        """Make leaves whole, one axis after the other."""
        axes = self._axes(value)
        todo = [k for k, dim in enumerate(axes) if (held - kept).intersection(leaves(dim))]
        for step, axis in enumerate(todo):
            lost = (held - kept).intersection(leaves(axes[axis]))
            last = step == len(todo) - 1
            name = self._gather_axis(
                value, name, axis, held, held - lost, output if last else self.emitter.name(f"{output}.{axis}")
            )
            held = held - lost
        return name

    def _gather_axis(self, value: Value, name: str, axis: int, held: Leaves, kept: Leaves, output: str) -> str:
        """AllGather along one axis: brought to the front, padded to equal parts, put back in the source's order."""
        emitter, mesh = self.emitter, self.cut.mesh
        shapes = self.shapes(value, held)
        dims = self._axes(value)
        dim, rank_count, position = dims[axis], len(dims), axis
        if not dim.static:
            name, dim, position, rank_count, shapes = self._isolate(value, name, axis, held, shapes, output)
        over: SubAxes = tuple(
            sorted({a for leaf in held - kept for a in self.cut.of(leaf) if leaf in set(leaves(dim))})
        )
        before, after = self.cut.only(held), self.cut.only(kept)
        held_by = [before.index(dim, rank) for rank in range(mesh.tp)]
        wanted = [after.index(dim, rank) for rank in range(mesh.tp)]
        part = max(map(len, held_by))
        if any(len(found) != part for found in held_by):
            name = self._pad(value, name, position, rank_count, list(map(len, held_by)), output)
        front = [position, *(k for k in range(rank_count) if k != position)]
        if position:
            name = emitter.node("Transpose", [name], emitter.name(f"{output}.front"), perm=front)
        groups = mesh.groups(over)
        degree = len(groups[0])
        gathered = [[part * degree, *(shape[k] for k in front[1:])] for shape in shapes]
        mine = [rank if self.gradients is not None else None for rank in range(mesh.tp)]
        of_rank = [next(group for group in groups if rank in group) for rank in range(mesh.tp)]
        order = [_order(held_by, wanted[rank], of_rank[rank], part, mine[rank]) for rank in range(mesh.tp)]
        ordered = all(np.array_equal(found, np.arange(part * degree)) for found in order)
        direct = ordered and not position and dims[axis].static
        name = emitter.collective(
            "all_gather", name, output if direct else emitter.name(f"{output}.gathered"), over,
            value=value, shapes=gathered,
            nbytes=self.bytes_text(value.dtype, gathered[0]), because=self.because.get(value, ""),
        )  # fmt: skip
        if not ordered:
            done = not position and dims[axis].static
            name = emitter.node(
                "Gather",
                [name, emitter.constant(f"{output}.order", order)],
                output if done else emitter.name(f"{output}.ordered"),
                axis=0,
            )
        if position:
            back = [front.index(k) for k in range(rank_count)]
            name = emitter.node(
                "Transpose", [name], output if dims[axis].static else emitter.name(f"{output}.back"), perm=back
            )
        if not dims[axis].static:
            name = self._merge(name, position, axis, output)
        return name

    def _pad(self, value: Value, name: str, axis: int, rank_count: int, lengths: list[int], output: str) -> str:
        """Bring every rank's part of an axis to the length of the longest; what stands behind its end is never read."""
        emitter, longest, padded = self.emitter, max(lengths), self.emitter.name(f"{output}.padded")
        if value.dtype not in PADDED:
            again = [np.array([*range(length), *[0] * (longest - length)]) for length in lengths]
            return emitter.node("Gather", [name, emitter.constant(f"{output}.again", again)], padded, axis=axis)
        pads = [[0] * (2 * rank_count) for _ in lengths]
        for of_rank, length in zip(pads, lengths, strict=True):
            of_rank[rank_count + axis] = longest - length
        return emitter.node("Pad", [name, emitter.integers(f"{output}.pads", pads)], padded)

    def _isolate(
        self, value: Value, name: str, axis: int, held: Leaves, shapes: list[list[LocalSize]], output: str
    ) -> tuple[str, Dim, int, int, list[list[LocalSize]]]:
        """Split the static factors of an axis off from the dynamic ones: [B·heads] → [B, heads].

        Returns the name, the static dim, its axis, the new rank and the new shapes.
        """
        emitter, dim = self.emitter, self._axes(value)[axis]
        parts = factors(dim)
        fixed = [part for part in parts if part.static]
        tail = bool(parts) and parts[-1].static
        if not fixed or [part.static for part in parts] not in (
            [False] * (len(parts) - len(fixed)) + [True] * len(fixed),
            [True] * len(fixed) + [False] * (len(parts) - len(fixed)),
        ):
            raise refuse("TP330", f"tensor {value.name}",
                         f"axis {axis} mixes a cut dimension with sizes that depend on the inputs",
                         "Pin the weights that cause it whole (--pin GLOB=whole)")  # fmt: skip
        from tpcompile.dims.dim import product

        static = product(fixed)
        local = self.cut.only(held)
        sizes = [local.local_size(static, rank) for rank in range(self.cut.mesh.tp)]
        count = len(self._axes(value))
        shape = emitter.node("Shape", [name], emitter.name(f"{output}.shape"))
        pieces = []
        if axis:
            pieces.append(self._cut_shape(shape, 0, axis, output))
        split = [[-1, size] if tail else [size, -1] for size in sizes]
        pieces.append(emitter.integers(f"{output}.split", split))
        if axis + 1 < count:
            pieces.append(self._cut_shape(shape, axis + 1, count, output))
        target = (
            emitter.node("Concat", pieces, emitter.name(f"{output}.target"), axis=0) if len(pieces) > 1 else pieces[0]
        )
        name = emitter.node("Reshape", [name, target], emitter.name(f"{output}.split"))
        split_shapes: list[list[LocalSize]] = []
        for rank, found in enumerate(shapes):
            pair: list[LocalSize] = [None, sizes[rank]] if tail else [sizes[rank], None]
            split_shapes.append([*found[:axis], *pair, *found[axis + 1 :]])
        return name, static, axis + 1 if tail else axis, count + 1, split_shapes

    def _cut_shape(self, shape: str, start: int, stop: int, output: str) -> str:
        emitter = self.emitter
        return emitter.node(
            "Slice",
            [shape, emitter.integers(f"{output}.from", [start]), emitter.integers(f"{output}.to", [stop])],
            emitter.name(f"{output}.sizes"),
        )

    def _merge(self, name: str, position: int, axis: int, output: str) -> str:
        """Undo `_isolate`: the two axes become one."""
        emitter = self.emitter
        shape = emitter.node("Shape", [name], emitter.name(f"{output}.shape"))
        pieces = [self._cut_shape(shape, 0, axis, output)] if axis else []
        pieces.append(emitter.integers(f"{output}.merged", [-1]))
        pieces.append(
            emitter.node(
                "Slice",
                [shape, emitter.integers(f"{output}.from", [axis + 2]), emitter.integers(f"{output}.to", [2**31])],
                emitter.name(f"{output}.sizes"),
            )
        )
        target = emitter.node("Concat", pieces, emitter.name(f"{output}.target"), axis=0)
        return emitter.node("Reshape", [name, target], output)

    # -- local slices ------------------------------------------------

    def _slice(self, value: Value, name: str, held: Leaves, want: Leaves, output: str) -> str:
        """Take this rank's part of a version that holds more; free of communication."""
        axes = self._axes(value)
        todo = [k for k, dim in enumerate(axes) if (want - held).intersection(leaves(dim))]
        for step, axis in enumerate(todo):
            more = held | (want - held).intersection(leaves(axes[axis]))
            target = output if step == len(todo) - 1 else self.emitter.name(f"{output}.{axis}")
            dim, position, rank, final = axes[axis], axis, len(axes), target
            if not dim.static:
                name, dim, position, rank, _ = self._isolate(value, name, axis, held, self.shapes(value, held), target)
                final = self.emitter.name(f"{target}.taken")
            before, after = self.cut.only(held), self.cut.only(frozenset(more))
            over = frozenset(a for leaf in more - held for a in self.cut.of(leaf))
            taken = [_positions(before.index(dim, rank), after.index(dim, rank)) for rank in range(self.cut.mesh.tp)]
            if self.gradients is None:
                name = self.take(name, position, taken, final)
            else:
                name = self.gradients.copied(value, name, over, self.shapes(value, held))
                divides = self.gradients.alike(value, dim, frozenset(more), over)
                name = self.take(name, position, taken, self.emitter.name(f"{final}.undivided") if divides else final)
                if divides:
                    name = self.gradients.along(name, position, rank, dim, frozenset(more), over, final, inverse=True)
            if not axes[axis].static:
                name = self._merge(name, position, axis, target)
            held = frozenset(more)
        return name

    def take(self, name: str, axis: int, positions: Sequence[Indices], output: str) -> str:
        """Each rank takes its positions of an axis: a Slice where they are one run, else a Gather."""
        emitter = self.emitter
        if all(len(p) and np.array_equal(p, np.arange(p[0], p[0] + len(p))) for p in positions):
            starts = emitter.integers(f"{output}.from", [[int(p[0])] for p in positions])
            stops = emitter.integers(f"{output}.to", [[int(p[0]) + len(p)] for p in positions])
            return emitter.node("Slice", [name, starts, stops, emitter.integers(f"{output}.axis", [axis])], output)
        return emitter.node("Gather", [name, emitter.constant(f"{output}.taken", list(positions))], output, axis=axis)


def _positions(held: Indices, wanted: Indices) -> Indices:
    """Where the wanted elements stand among those held."""
    sorter = np.argsort(held, kind="stable")
    return sorter[np.searchsorted(held, wanted, sorter=sorter)].astype(np.int64)


def _order(
    held_by: Sequence[Indices], wanted: Indices, group: Sequence[int], part: int, mine: int | None = None
) -> Indices:
    """Where each wanted element stands in the concatenation of a group's parts of `part` elements.

    Of elements that several ranks hold the first counts; that of rank `mine`, where its gradient is to stay with it.
    """
    ranks = sorted(group, key=lambda rank: rank != mine)
    where = np.concatenate([np.arange(len(held_by[rank])) + group.index(rank) * part for rank in ranks])
    elements = np.concatenate([held_by[rank] for rank in ranks])
    return where[_positions(elements, wanted)].astype(np.int64)
