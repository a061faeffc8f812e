"""Comparison with the source model: outputs, and every value of the ranks that can be put together again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]

from tpcompile.errors import refuse
from tpcompile.verify.branches import branches, captures, graphs, walk
from tpcompile.verify.files import Array, Bundle, ModelFile
from tpcompile.verify.rounding import rounded_values
from tpcompile.verify.simulate import Trace, session_options
from tpcompile.weights.source import MemoryBytes

FLOOR, CEILING, NOISES = 3e-5, 2e-2, 1.5
"""Relative error that is always allowed; that never is; how many times the source's own noise is allowed between."""
MEAN_STEPS = 2e-2
"""How far a value made of rounded activations may be off on average: in steps, or of its mean magnitude."""
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


def relative_error(want: Array, got: Array) -> float:
    """Largest difference over largest magnitude; the share of differing elements where values are no floats.

    Infinite where shapes or types differ, or where one has an infinity or NaN that the other has not.
    """
    if want.shape != got.shape or want.dtype != got.dtype:
        return math.inf
    if not want.size:
        return 0.0
    if want.dtype.kind in "iubSUO":
        return float(np.mean(want != got))
    a, b = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    return float(np.abs(a[finite] - b[finite]).max(initial=0) / (np.abs(a[finite]).max(initial=0) + 1e-6))


def mean_error(want: Array, got: Array) -> float:
    """How far elements are off on average: in steps where values are whole numbers, else of the mean magnitude.

    One step in a hundred elements is what another order of sums does to rounded activations; a fault moves most of
    them. Infinite where shapes or types differ, or where one has an infinity or NaN that the other has not.
    """
    if not want.size or math.isinf(relative_error(want, got)) or want.dtype.kind in "bSUO":
        return relative_error(want, got)
    a, b = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    scale = 1.0 if want.dtype.kind in "iu" else np.abs(a[finite]).mean() + 1e-6
    return float(np.abs(a[finite] - b[finite]).mean() / scale)


@dataclass
class SourceRun:
    """The source model, all values visible: once as it is, once with weights moved by one unit in the last place.

    Of each If the branch that is taken is run once more by itself, so that its values are visible too.
    """

    model: ModelFile
    outputs: list[str] = field(init=False)
    rounded: frozenset[str] = field(init=False)
    """Values made of activations that were rounded to few bits."""
    _replaced: list[dict[str, Array]] = field(init=False)
    _programs: dict[tuple[str, int], _Visible] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.outputs = [value.name for value in self.model.graph.output]
        self.rounded = rounded_values(self.model.graph)
        elsewhere = {
            name: self.model.array(name)
            for name, place in self.model.places.items()
            if not isinstance(place, MemoryBytes)
        }
        self._replaced = [elsewhere, elsewhere | self._moved()]
        for variant in range(2):
            self._program(self.model.graph, "", variant, {})

    def _program(self, graph: onnx.GraphProto, name: str, variant: int, values: Mapping[str, Array]) -> _Visible:
        """The session of a graph, or of a branch (`name`) that reads `values` from outside."""
        if (name, variant) not in self._programs:
            self._programs[name, variant] = _Visible(self.model, graph, values, self._replaced[variant])
        return self._programs[name, variant]

    def _moved(self) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        moved = {}
        for tensor in (tensor for held in graphs(self.model.graph) for tensor in held.initializer):
            if tensor.data_type in FLOATS and math.prod(tensor.dims) > 16:
                array = self.model.array(tensor.name)
                up = np.where(rng.random(array.shape, np.float32) < 0.5, np.inf, -np.inf).astype(array.dtype)
                moved[tensor.name] = np.where(rng.random(array.shape, np.float32) < 0.5, np.nextafter(array, up), array)
        return moved

    def run(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, float]]:
        """All values, and for each the relative error that is allowed. Raises what onnxruntime raises."""
        values, moved = (self._values(self.model.graph, "", variant, feeds) for variant in range(2))
        limits = {
            name: MEAN_STEPS
            if name in self.rounded
            else min(CEILING, max(FLOOR, NOISES * relative_error(values[name], moved[name])))
            for name in values
            if (name not in feeds or name in self.outputs) and isinstance(values[name], np.ndarray) and name in moved
        }
        return values, limits

    def error(self, name: str, want: Array, got: Array) -> float:
        """How far a value of the ranks is off, by the measure that its limit is of."""
        return mean_error(want, got) if name in self.rounded else relative_error(want, got)

    def _values(self, graph: onnx.GraphProto, name: str, variant: int, known: Mapping[str, Array]) -> dict[str, Array]:
        values = dict(known) | self._program(graph, name, variant, known).run(known)
        for node in graph.node:
            if node.op_type == "If":
                condition = values[node.input[0]] if node.input[0] in values else self.model.array(node.input[0])
                side, branch = branches(node)[0 if bool(condition.item()) else 1]
                values |= self._values(branch, f"{node.output[0]}/{side}", variant, values)
        return values


class _Visible:
    """A session of one graph, or of one branch, that gives all its values."""

    def __init__(
        self, model: ModelFile, graph: onnx.GraphProto, known: Mapping[str, Array], replaced: Mapping[str, Array]
    ) -> None:
        stored = {tensor.name: tensor for held in graphs(model.graph) for tensor in held.initializer}
        outputs = [value.name for value in graph.output]
        inner = dict.fromkeys(name for node in graph.node for name in node.output if name and name not in outputs)
        self.names = [*outputs, *inner]
        self.reads = [name for name in dict.fromkeys(captures(graph)) if name in known and name not in stored]
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        if graph is not model.graph:
            outside = [stored[name] for name in dict.fromkeys(captures(graph)) if name in stored]
            proto.graph.CopyFrom(graph)
            proto.graph.initializer.extend(outside)
            proto.graph.input.extend(
                onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(known[name].dtype), None)
                for name in self.reads
            )
        own = {tensor.name for tensor in proto.graph.initializer}
        for tensor in (tensor for held in graphs(proto.graph) for tensor in held.initializer):
            place = model.places.get(tensor.name)
            if isinstance(place, MemoryBytes):  # a torch module's: there is no file onnxruntime could read
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                tensor.raw_data = bytes(place.data)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
        options = session_options(model.folder)
        self._kept = []  # onnxruntime reads these while the session lives
        for name, array in replaced.items():
            if name in own:
                self._kept.append(ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))
                options.add_initializer(name, self._kept[-1])
        try:
            self._session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises a dozen types of its own
            raise refuse(
                "TP504",
                model.name,
                f"onnxruntime cannot open it: {' '.join(str(error).split())[:300]}",
                "Verification runs the source; give one that onnxruntime can run on a CPU",
            ) from error

    def run(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """Every value that the graph makes, from those of `known` that it reads."""
        feeds = {value.name: known[value.name] for value in self._session.get_inputs()}
        return dict(zip(self.names, self._session.run(self.names, feeds), strict=True))


@dataclass(frozen=True)
class Divergence:
    """A value of the ranks that is not the source's: the source node that makes it, the error and what was allowed."""

    value: str
    node: str
    error: float
    limit: float
    declared: bool

    def __str__(self) -> str:
        return f"{self.value} (made by {self.node}): relative error {self.error:.1e}, {self.limit:.1e} allowed"


def whole_output(bundle: Bundle, trace: Trace, name: str) -> Array | str:
    """An output put together by its placement in bundle.json; a text that says why where the parts do not fit."""
    parts, placement = trace.of(name), bundle.placement("outputs", name)
    if not placement:
        differs = [rank for rank, part in enumerate(parts) if relative_error(parts[0], part) > FLOOR]
        return f"is whole by bundle.json, but rank {differs[0]} has another value than rank 0" if differs else parts[0]
    return assembled(parts, placement.axis, placement.ranges)


def assembled(parts: list[Array], axis: int, ranges: Sequence[Sequence[Sequence[int]]]) -> Array | str:
    """Parts that hold `ranges[rank]` of `axis` as one array; a text where they do not fit, cover it, or agree."""
    if len(ranges) != len(parts):
        return f"has ranges for {len(ranges)} ranks, not {len(parts)}"
    held = [np.concatenate([np.arange(start, stop) for start, stop in mine]) for mine in ranges]
    size = 1 + max(int(mine.max(initial=-1)) for mine in held)
    covered = np.zeros(size, bool)
    whole: Array | None = None
    for rank, (part, mine) in enumerate(zip(parts, held, strict=True)):
        if axis >= part.ndim or part.shape[axis] != mine.size:
            return f"has shape {list(part.shape)} on rank {rank}, its ranges on axis {axis} name {mine.size} indices"
        if whole is None:
            whole = np.zeros([size if at == axis else count for at, count in enumerate(part.shape)], part.dtype)
        lead: tuple[Any, ...] = (slice(None),) * axis
        if part.shape[:axis] + part.shape[axis + 1 :] != whole.shape[:axis] + whole.shape[axis + 1 :]:
            return f"has shape {list(part.shape)} on rank {rank}, which does not fit {list(parts[0].shape)} on rank 0"
        copies = covered[mine]
        if copies.any() and relative_error(whole[(*lead, mine[copies])], part[(*lead, copies)]) > FLOOR:
            return f"differs on rank {rank} from another rank that holds the same part of axis {axis}"
        whole[(*lead, mine)] = part
        covered[mine] = True
    if whole is None or not covered.all():
        return f"lacks index {int(np.argmin(covered))} of axis {axis} on every rank"
    return whole


def divergences(
    bundle: Bundle, source: SourceRun, trace: Trace, want: Mapping[str, Array], limits: Mapping[str, float]
) -> Iterator[Divergence]:
    """Values that kept their source's name and are further from it than allowed, in the source's order of nodes.

    Where the rank files say how a value lies (`tpcompile.placements`), that is what is checked; elsewhere the best of
    the ways it could lie is taken: no way is guessed wrong, at the price of seeing less.
    """
    for node in walk(source.model.graph):
        for name in node.output:
            if not name or name not in limits or any(name not in values for values in trace.values):
                continue
            parts, target, limit = trace.of(name), want[name], limits[name]
            error_of = partial(source.error, name)
            declared = [placements.get(name) for placements in bundle.declared]
            if declared[0] is not None:
                try:
                    error = _declared_error(parts, target, declared, error_of)
                except (KeyError, TypeError, ValueError, IndexError):  # a declaration that makes no sense
                    error = math.inf
            else:
                error = min((error_of(target, way) for way in _ways(parts, target)), default=0.0)
            if error > limit:
                yield Divergence(name, f"{node.op_type} {node.name}".strip(), error, limit, declared[0] is not None)


def _declared_error(
    parts: list[Array], want: Array, declared: list[Any], error_of: Callable[[Array, Array], float]
) -> float:
    """The worst error over what the declaration lets us put together; infinite where the parts do not fit it."""
    entry = declared[0]
    if any(other != entry for other in declared):
        return math.inf
    if "partial" in entry:
        group_of = {rank: group for group in entry["partial"] or [range(len(parts))] for rank in group}
        parts = [summed([parts[other] for other in group_of[rank]]) for rank in range(len(parts))]
    if entry.get("axis") is None:
        return max(error_of(want, part) for part in parts)
    whole = assembled(parts, entry["axis"], entry["ranges"])
    return math.inf if isinstance(whole, str) else error_of(want, whole)


def summed(parts: list[Array]) -> Array:
    """The sum of partial values, added up in double precision."""
    if len({part.shape for part in parts}) != 1:
        return np.zeros(0)
    total = parts[0].astype(np.float64)
    for part in parts[1:]:
        total = total + part.astype(np.float64)
    with np.errstate(over="ignore"):
        return total.astype(parts[0].dtype)


def _ways(parts: list[Array], want: Array) -> Iterator[Array]:
    """What the parts could mean together: the same on all ranks, a sum, or pieces of one axis in order of rank."""
    if any(not isinstance(part, np.ndarray) or part.dtype != want.dtype or part.ndim != want.ndim for part in parts):
        return
    if all(part.shape == want.shape for part in parts):
        yield parts[0]
        if want.dtype.kind == "f":
            yield summed(parts)
        return
    for axis in range(want.ndim):
        if sum(part.shape[axis] for part in parts) == want.shape[axis]:
            rest = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
            if len(rest) == 1:
                yield np.concatenate(parts, axis)
