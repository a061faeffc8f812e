"""The source model as the comparison runs it: every value visible, and how much of it rounding alone moves."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]

from tpcompile.errors import refuse
from tpcompile.graph.scopes import outer_names, read_names
from tpcompile.verify.branches import branches, graphs
from tpcompile.verify.compare import CEILING, FLOOR, MEAN_STEPS, NOISES, mean_error, relative_error
from tpcompile.verify.files import Array, ModelFile, tensor_bytes
from tpcompile.verify.rounding import rounded_values
from tpcompile.verify.shelf import SHARES, Shelf
from tpcompile.verify.simulate import session_options
from tpcompile.weights.source import MemoryBytes

FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


@dataclass
class SourceRun:
    """The source model, all values visible: once as it is, once with weights moved by one unit in the last place.

    Of each If the branch that is taken is run once more by itself, so that its values are visible too. `memory_bytes`:
    the graph is run in parts, one after the other, whose weights take a quarter of that, and large values go to disk.
    """

    model: ModelFile
    memory_bytes: int | None = None
    outputs: list[str] = field(init=False)
    rounded: frozenset[str] = field(init=False)
    """Values made of activations that were rounded to few bits."""
    _shelf: Shelf = field(init=False)
    _programs: dict[tuple[str, int], _Visible] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.outputs = [value.name for value in self.model.graph.output]
        self.rounded = rounded_values(self.model.graph)
        self._shelf = Shelf(self.memory_bytes)
        if self.memory_bytes is None:
            for variant in range(2):
                self._program(self.model.graph, "", variant, {})

    def _program(self, graph: onnx.GraphProto, name: str, variant: int, values: Mapping[str, Array]) -> _Visible:
        """The session of a graph, or of a branch (`name`) that reads `values` from outside; kept for other inputs."""
        if (name, variant) not in self._programs:
            self._programs[name, variant] = _Visible(self.model, graph, values, variant)
        return self._programs[name, variant]

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
        values = dict(known)
        if self.memory_bytes is None:
            values |= self._program(graph, name, variant, known).run(known)
        else:
            for part in parts_of(graph, self.model, self.memory_bytes // SHARES):
                values |= self._shelf.put(_Visible(self.model, part, values, variant, lean=True).run(values))
        for node in graph.node:
            if node.op_type == "If":
                condition = values[node.input[0]] if node.input[0] in values else self.model.array(node.input[0])
                side, branch = branches(node)[0 if bool(condition.item()) else 1]
                values |= self._values(branch, f"{node.output[0]}/{side}", variant, values)
        return values


def parts_of(graph: onnx.GraphProto, model: ModelFile, limit_bytes: int) -> Iterator[onnx.GraphProto]:
    """The nodes of a graph in runs whose weights take at most `limit_bytes`, or of one node where that takes more."""
    nodes: list[onnx.NodeProto] = []
    held: dict[str, int] = {}
    local = {tensor.name: tensor for tensor in graph.initializer} if graph is not model.graph else {}

    def part() -> onnx.GraphProto:
        read = {name for node in nodes for name in read_names(node)}
        return onnx.GraphProto(name="part", node=nodes, initializer=[local[name] for name in read if name in local])

    for node in graph.node:
        mine = {name: tensor_bytes(model.tensors[name]) for name in read_names(node) if name in model.tensors}
        if nodes and sum((held | mine).values()) > limit_bytes:
            yield part()
            nodes, held = [], {}
        nodes.append(node)
        held |= mine
    if nodes:
        yield part()


def moved(tensor: onnx.TensorProto, array: Array) -> Array | None:
    """A weight with about half of its numbers moved by one unit in the last place; None for what is no weight."""
    if tensor.data_type not in FLOATS or math.prod(tensor.dims) <= 16:
        return None
    rng = np.random.default_rng(zlib.crc32(tensor.name.encode()))
    up = np.where(rng.random(array.shape, np.float32) < 0.5, np.inf, -np.inf).astype(array.dtype)
    return np.where(rng.random(array.shape, np.float32) < 0.5, np.nextafter(array, up), array)


class _Visible:
    """A session of one graph, or of one branch, that gives all its values."""

    def __init__(
        self,
        model: ModelFile,
        graph: onnx.GraphProto,
        known: Mapping[str, Array],
        variant: int,
        *,
        lean: bool = False,
    ) -> None:
        stored = {tensor.name: tensor for held in graphs(model.graph) for tensor in held.initializer}
        outputs = [value.name for value in graph.output]
        inner = dict.fromkeys(name for node in graph.node for name in node.output if name and name not in outputs)
        self.names = [*outputs, *inner]
        self.reads = [name for name in outer_names(graph) if name in known and name not in stored]
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        if graph is not model.graph:
            outside = [stored[name] for name in outer_names(graph) if name in stored]
            proto.graph.CopyFrom(graph)
            proto.graph.initializer.extend(outside)
            proto.graph.input.extend(
                onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(known[name].dtype), None)
                for name in self.reads
            )
        self._kept = []  # onnxruntime reads these while the session lives
        options = session_options(model.folder, lean=lean)
        for tensor in proto.graph.initializer:
            replaced = self._replaced(model, tensor, variant)
            if replaced is not None:
                self._kept.append(ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(replaced)))
                options.add_initializer(tensor.name, self._kept[-1])
        for tensor in (tensor for held in graphs(proto.graph) for tensor in held.initializer):
            place = model.places.get(tensor.name)
            if isinstance(place, MemoryBytes):  # a torch module's: there is no file onnxruntime could read
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                tensor.raw_data = bytes(place.data)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
        try:
            self._session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises a dozen types of its own
            raise refuse(
                "TP504",
                model.name,
                f"onnxruntime cannot open it: {' '.join(str(error).split())[:300]}",
                "Verification runs the source; give one that onnxruntime can run on a CPU",
            ) from error

    @staticmethod
    def _replaced(model: ModelFile, tensor: onnx.TensorProto, variant: int) -> Array | None:
        """What a session is given in a weight's stead: it moved, or its bytes where onnxruntime could not find them."""
        place = model.places.get(tensor.name)
        found = moved(tensor, model.array(tensor.name)) if variant else None
        if found is None and place is not None and not isinstance(place, MemoryBytes):
            return model.array(tensor.name)
        return found

    def run(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """Every value that the graph makes, from those of `known` that it reads."""
        feeds = {value.name: known[value.name] for value in self._session.get_inputs()}
        return dict(zip(self.names, self._session.run(self.names, feeds), strict=True))
