"""A TensorRT engine with its tensors bound to GPU memory: `tensorrt` and `tensorrt_rtx` have one API.

Outputs lie in memory that is kept: two places for each, so that what comes out of one step can go into the next while
that writes to the other place. Caches are never copied, only their places change roles.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from tpcompile.bundle.manifest import Profile
from tpcompile.errors import Fault, RankFailed, refuse
from tpcompile.run.cuda import DeviceArray, Gpu, failing_as
from tpcompile.run.tensors import NUMPY_OF, Array

ELEMENTS: dict[str, int] = {
    "FLOAT": TensorProto.FLOAT,
    "HALF": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "INT8": TensorProto.INT8,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "BOOL": TensorProto.BOOL,
    "FP8": TensorProto.FLOAT8E4M3FN,
}
"""Names of the library's types and the ONNX types they are."""
GRAPHS_KEPT = 32
"""CUDA graphs of one engine, at most: each is for one set of shapes and places."""


@dataclass(frozen=True)
class EngineTensor:
    """An input or output as the engine declares it; `on_host`: it reads or writes it in the host's memory."""

    name: str
    is_input: bool
    element: int
    on_host: bool


@dataclass
class _Places:
    """The memory of one tensor that the engine writes: two places, made when they are first needed."""

    kept: list[DeviceArray] = field(default_factory=list)

    def free(self, gpu: Gpu, shape: tuple[int, ...], element: int, taken: set[int]) -> DeviceArray:
        """Memory for a tensor of `shape` in a place that is not `taken`."""
        place = next((place for place in self.kept if place.pointer not in taken), None)
        size = math.prod(shape) * NUMPY_OF[element].itemsize
        if place is None or place.bytes < size:
            room = size if place is None else max(size, 2 * place.bytes)  # it grows: seldom, rather than by each token
            made = gpu.empty((room,), TensorProto.UINT8)
            self.kept = [other for other in self.kept if other is not place] + [made]
            place = made
        return DeviceArray(place.pointer, shape, element, place.memory)


class BoundEngine:
    """An engine read from `plan`, on `gpu`. `where` names it in messages; `profiles` are those it was built with.

    Raises:
        Refused: TP653 the library cannot read it.
    """

    def __init__(
        self, library: Any, plan: Any, gpu: Gpu, where: str, profiles: Sequence[Profile] = (), *, graphs: bool = False
    ) -> None:
        self.library, self.gpu, self.where = library, gpu, where
        self._logger = listen(library)
        self._runtime = library.Runtime(self._logger)
        engine = self._runtime.deserialize_cuda_engine(plan)  # None where it cannot, and no exception
        context = None if engine is None else engine.create_execution_context()
        if context is None:
            fact = f"{library.__name__} {library.__version__} cannot {'read' if engine is None else 'prepare'} it"
            remedy = "Build the engines with this version of the library, for this GPU"
            raise refuse("TP653", where, f"{fact} ({self.said()})", remedy)
        self.engine, self.context = engine, context
        self.tensors = [self._tensor(engine.get_tensor_name(index)) for index in range(engine.num_io_tensors)]
        on_host = {tensor.name for tensor in self.tensors if tensor.on_host}
        # What is read on the host has values in a profile, not shapes.
        self.profiles = [{n: ends for n, ends in profile.items() if n not in on_host} for profile in profiles]
        self.profile = 0
        self._places: dict[str, _Places] = {tensor.name: _Places() for tensor in self.tensors}
        self._graphs: dict[Any, Any] | None = {} if graphs else None
        self._capsule: Any = None

    def said(self) -> str:
        """What the library complained of since the last time."""
        told = "; ".join(self._logger.errors) or "it does not say why"
        self._logger.errors.clear()
        return told

    def _tensor(self, name: str) -> EngineTensor:
        library, engine = self.library, self.engine
        return EngineTensor(
            name, engine.get_tensor_mode(name) == library.TensorIOMode.INPUT,
            ELEMENTS[engine.get_tensor_dtype(name).name],
            engine.get_tensor_location(name) == library.TensorLocation.HOST,
        )  # fmt: skip

    def take_communicator(self, address: int) -> bool:
        """Give the engine NCCL's communicator at `address`, which must stay; all ranks at once. Whether it took it."""
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self._capsule = make(address, None, None)
        return self.context.set_communicator(self._capsule) is True

    def reserve(self, names: Sequence[str]) -> None:
        """Take both places of these outputs now, as large as the profiles allow: a long decode cannot run out later.

        What the library does not say a size of grows when it must.
        """
        largest = dict.fromkeys(names, 0)
        for index, profile in enumerate(self.profiles):
            self._use_profile(index)
            taken = [self.context.set_input_shape(name, ends.max) for name, ends in profile.items()]
            if all(taken):
                for name in names:
                    largest[name] = max(largest[name], self.context.get_max_output_size(name))
        with failing_as(f"memory for the caches of {self.where}"):
            for name, size in largest.items():
                if size > 0:
                    self._places[name].kept = [self.gpu.empty((size,), TensorProto.UINT8) for _ in range(2)]

    def run(self, feeds: Mapping[str, DeviceArray]) -> dict[str, DeviceArray]:
        """Ask the GPU for one step, and return where its outputs will be: until the next step but one.

        Raises:
            Refused: TP656 shapes that the engine was not built for.
            RankFailed: TP657 the engine does not run.
        """
        inputs = {tensor.name: feeds[tensor.name] for tensor in self.tensors if tensor.is_input}
        self._use_profile(self.fitting_profile(inputs))
        if self._graphs is not None:
            inputs = {name: self._in_place(name, value) for name, value in inputs.items()}
        hosts: dict[str, Array] = {}
        with failing_as(self.where):
            self._bind(inputs, hosts)
            lacking = self.context.infer_shapes()
            made = self._bind_outputs(inputs, hosts)
        if lacking:
            raise self._failed(f"lacks the values of {', '.join(lacking)}")
        self._enqueue((self.profile, *((n, v.pointer, v.shape) for n, v in [*inputs.items(), *made.items()])))
        return made | self._from_hosts(hosts)

    def _use_profile(self, index: int) -> None:
        if index != self.profile:
            with failing_as(self.where):
                changed = self.context.set_optimization_profile_async(index, self.gpu.stream_handle)
            if not changed:
                raise self._failed(f"does not change to its profile {index}")
            self.profile = index

    def fitting_profile(self, feeds: Mapping[str, DeviceArray]) -> int:
        """Of the profiles that take such shapes, the one whose kernels were chosen for shapes most like these.

        Raises:
            Refused: TP656 there is none.
        """
        shapes = {name: value.shape for name, value in feeds.items()}
        if not self.profiles:
            return 0
        fitting = [index for index, profile in enumerate(self.profiles) if not any(_outside(profile, shapes))]
        if not fitting:
            name = next(_outside(self.profiles[0], shapes))
            ends = " or ".join(f"{list(profile[name].min)} to {list(profile[name].max)}" for profile in self.profiles
                               if name in profile)  # fmt: skip
            remedy = "Give shapes within, build the engines with --profile for these, or use --backend cuda or cpu"
            raise refuse(
                "TP656", f"input {name}", f"is {list(shapes[name])} on this rank, and the engine takes {ends}", remedy
            )
        return min(fitting, key=lambda index: _distance(self.profiles[index], shapes))

    def _in_place(self, name: str, value: DeviceArray) -> DeviceArray:
        """The input at an address that stays, as graphs need it: outputs of the last step stay where they are."""
        if any(value.pointer == place.pointer for places in self._places.values() for place in places.kept):
            return value
        place = self._places[name].free(self.gpu, value.shape, value.element, set())
        with failing_as(self.where):
            self.gpu.copy(value, place.pointer)
        return place

    def _bind(self, inputs: Mapping[str, DeviceArray], hosts: dict[str, Array]) -> None:
        for tensor in self.tensors:
            if not tensor.is_input:
                continue
            value = inputs[tensor.name]
            address = value.pointer
            if tensor.on_host:
                hosts[tensor.name] = self.gpu.to_numpy(value)
                address = hosts[tensor.name].ctypes.data
            shaped = self.context.set_input_shape(tensor.name, value.shape)
            if not (shaped and self.context.set_tensor_address(tensor.name, address)):
                raise refuse("TP656", f"input {tensor.name}",
                             f"the engine does not take it as {list(value.shape)} ({self.said()})",
                             "Give the shapes that the engines were built for")  # fmt: skip

    def _bind_outputs(self, inputs: Mapping[str, DeviceArray], hosts: dict[str, Array]) -> dict[str, DeviceArray]:
        taken, made = {value.pointer for value in inputs.values()}, {}
        for tensor in self.tensors:
            if tensor.is_input:
                continue
            shape = tuple(self.context.get_tensor_shape(tensor.name))
            if any(size < 0 for size in shape):
                raise self._failed(f"output {tensor.name} has a shape that is known only after the step")
            if tensor.on_host:
                hosts[tensor.name] = np.empty(shape, NUMPY_OF[tensor.element])
                address = hosts[tensor.name].ctypes.data
            else:
                shared = self.engine.get_aliased_input_tensor(tensor.name)  # written where the input lies
                made[tensor.name] = (
                    inputs[shared] if shared else self._places[tensor.name].free(
                        self.gpu, shape, tensor.element, taken)
                )  # fmt: skip
                address = made[tensor.name].pointer
            if not self.context.set_tensor_address(tensor.name, address):
                raise self._failed(f"does not take the memory of output {tensor.name}")
        return made

    def _from_hosts(self, hosts: Mapping[str, Array]) -> dict[str, DeviceArray]:
        """The outputs that the engine writes on the host, once they are there."""
        outputs = [tensor.name for tensor in self.tensors if tensor.on_host and not tensor.is_input]
        if outputs:
            self.gpu.finish()
        return {name: self.gpu.from_numpy(hosts[name]) for name in outputs}

    def _enqueue(self, key: Any) -> None:
        """Ask for the step; where graphs are wanted, `key` (shapes and places) that comes again is replayed as one."""
        graph = None if self._graphs is None else self._graphs.get(key, "new")
        with failing_as(self.where):
            if graph is None or self._graphs is None:
                self._execute()
            elif graph == "new":
                self._execute()
                self._graphs[key] = "seen"
            elif graph == "seen":
                self._graphs[key] = graph = self._captured()
                self._execute() if graph is None else graph.launch(self.gpu.stream)
            else:
                graph.launch(self.gpu.stream)

    def _execute(self) -> None:
        if not self.context.execute_async_v3(self.gpu.stream_handle):
            raise self._failed("does not run")

    def _captured(self) -> Any:
        """A CUDA graph of the step, or None where the engine does not let itself be captured."""
        capturable = getattr(self.context, "is_stream_capturable", None)
        full = self._graphs is None or len(self._graphs) > GRAPHS_KEPT
        if full or (capturable is not None and not capturable(self.gpu.stream_handle)):
            return None
        builder = self.gpu.stream.create_graph_builder()
        builder.begin_building()
        self._execute()
        return builder.end_building().complete()

    def _failed(self, fact: str) -> RankFailed:
        remedy = "See what the library says above; all ranks end with this one"
        return RankFailed(Fault("TP657", self.where, f"the engine {fact} ({self.said()})", remedy))


def _distance(profile: Profile, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """How many times larger or smaller `shapes` are than those the profile was made for, as a logarithm."""
    pairs = [
        pair for name, ends in profile.items() if name in shapes for pair in zip(shapes[name], ends.opt, strict=True)
    ]
    return sum(abs(math.log((size + 1) / (opt + 1))) for size, opt in pairs)


def _outside(profile: Profile, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """The inputs whose shape does not lie within `profile`."""
    for name, ends in profile.items():
        shape = shapes.get(name)
        if shape is not None and not (
            len(shape) == len(ends.min)
            and all(low <= size <= high for low, size, high in zip(ends.min, shape, ends.max, strict=True))
        ):
            yield name


def listen(library: Any) -> Any:
    """A logger that keeps what the library complains of, in `errors`."""

    class Listener(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (library.ILogger.Severity.ERROR, library.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(" ".join(message.split()))

    return Listener()
