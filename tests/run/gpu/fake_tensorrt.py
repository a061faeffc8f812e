"""A stand-in for tensorrt_rtx: a plan names an ONNX model, an engine runs it on the CPU in the GPU's memory.

Collectives within meet over the communicator that was set; without one they do nothing, as in the library.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.run.gpu.fake_cuda import Communicator, Device, Stream, fault, may_sleep, note, rank, settings
from tpcompile.bundle.manifest import RankEntry
from tpcompile.run import mpi, tensors
from tpcompile.run.cpu import CpuExecutor
from tpcompile.run.segments import SegmentRunner
from tpcompile.run.watchdog import Watchdog
from tpcompile.targets.collectives import Collective

VERSION = "1.7.1"
HEADER = b"fake plan of "


class DataType(enum.Enum):
    FLOAT, HALF, BF16, INT8, INT32, INT64, BOOL, UINT8 = range(8)


TYPES = {1: DataType.FLOAT, 10: DataType.HALF, 16: DataType.BF16, 3: DataType.INT8, 6: DataType.INT32,
         7: DataType.INT64, 9: DataType.BOOL, 2: DataType.UINT8}  # fmt: skip


class TensorIOMode(enum.Enum):
    NONE, INPUT, OUTPUT = range(3)


class TensorLocation(enum.Enum):
    DEVICE, HOST = range(2)


class ILogger:
    class Severity(enum.IntEnum):
        INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def log(self, severity: Severity, message: str) -> None:
        raise NotImplementedError


class _Executor(CpuExecutor):
    """Collectives over the communicator of a context; without one, or where a test wants it, they do nothing."""

    communicator: int | None = None
    trial = True
    name = ""

    def perform(self, found: Collective, value: Any, *, owned: bool, label: str) -> Any:
        if self.communicator is not None and not self.trial and not self.name.startswith(fault("silent", "none")):
            return mpi.perform(self.world, found, value, owned=owned)
        array = tensors.to_numpy(value)
        if found.op == "all_gather":
            array = np.concatenate([array] * found.nb_rank)
        if found.op == "reduce_scatter":
            array = np.split(array, found.nb_rank)[0]
        return tensors.from_numpy(np.ascontiguousarray(array))


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.made: dict[str, Any] = {}

    def set_communicator(self, communicator: Any) -> bool:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(communicator, None)
        group = Communicator.known[address]
        group.Barrier()  # a handshake of all ranks
        note("set_communicator", engine=self.engine.name)
        if not fault("set_communicator", True):
            self.engine.logger.log(ILogger.Severity.ERROR, "The engine is not a multi-device engine")
            return False
        self.engine.executor.communicator = address
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address, name
        self.addresses[name] = address
        return True

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        note("profile", index=index)
        return True

    def get_max_output_size(self, name: str) -> int:
        return int(fault("largest", -1))

    def infer_shapes(self) -> list[str]:
        self.engine.executor.trial = True
        self.made = self._run()
        return []

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.made[name].shape)

    def is_stream_capturable(self, stream: int) -> bool:
        return bool(fault("capturable", True))

    def execute_async_v3(self, stream_handle: int) -> bool:
        stream = Device.stream
        assert stream is not None and stream_handle == stream.handle, "not the stream of the rank"
        where = dict(self.addresses)
        kind = self.engine.name.partition("_")[0]
        if kind in Stream.seen:
            may_sleep(f"second {kind}")
        Stream.seen.add(kind)
        note("enqueue", engine=self.engine.name, places=where)
        if fault("execute", True):
            stream.do(lambda: self._execute(dict(self.shapes), where))
            return True
        return False

    def _execute(self, shapes: dict[str, tuple[int, ...]], where: dict[str, int]) -> None:
        self.shapes, self.addresses = shapes, dict(where)
        self.engine.executor.trial = False
        for name, array in self._run().items():
            ctypes.memmove(where[name], np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def _run(self) -> dict[str, Any]:
        runner, feeds = self.engine.runner, {}
        for name in runner.inputs:
            dtype, shape = self.engine.dtypes[name], self.shapes[name]
            size = dtype.itemsize * int(np.prod(shape))
            held = np.frombuffer(ctypes.string_at(self.addresses[name], size), np.uint8).copy()
            feeds[name] = tensors.from_numpy(held.view(dtype).reshape(shape))
        return {name: tensors.to_numpy(value) for name, value in runner.run(feeds).items()}


class Engine:
    def __init__(self, path: Path, logger: Any) -> None:
        from mpi4py import MPI

        self.logger, self.name = logger, path.name
        model = onnx.load_model(path, load_external_data=False)
        stored = {tensor.name for tensor in model.graph.initializer}
        self.inputs = [value for value in model.graph.input if value.name not in stored]
        self.tensors = {value.name: value for value in [*self.inputs, *model.graph.output]}
        self.dtypes = {name: tensors.NUMPY_OF[value.type.tensor_type.elem_type] for name, value in self.tensors.items()}
        world = mpi.World(MPI.COMM_WORLD, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
        self.executor = _Executor(path.parent, world, prepack=False)
        self.executor.name = self.name
        data = {entry.value for tensor in model.graph.initializer for entry in tensor.external_data
                if entry.key == "location"}  # fmt: skip
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        entry = RankEntry(world.rank, world.rank, 0, path.name, digest, tuple(map(_Data, sorted(data))))
        self.runner = SegmentRunner(path.parent, entry, world, Watchdog(world, 0, 0), self.executor)
        self.num_io_tensors = len(self.tensors)

    def create_execution_context(self) -> Context | None:
        world = self.executor.world
        from tpcompile.run.split import collectives

        world.join_groups(list(collectives(self.runner.stages)))
        return Context(self)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in [value.name for value in self.inputs] else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return TYPES[fault("dtypes", {}).get(name, self.tensors[name].type.tensor_type.elem_type)]

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.HOST if name in fault("on_host", []) else TensorLocation.DEVICE

    def get_aliased_input_tensor(self, name: str) -> str | None:
        found: str | None = fault("aliased", {}).get(name)
        return found


class _Data:
    def __init__(self, file: str) -> None:
        self.file = file


class Runtime:
    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
        assert Device.current is not None, "engines are read onto a device"
        note("read", plan=plan[:60].decode(errors="replace"))
        if not fault("reads", True) or not plan.startswith(HEADER):
            self.logger.log(ILogger.Severity.ERROR, "Serialization assertion header == kHEADER failed")
            return None
        return Engine(Path(plan[len(HEADER) :].decode()), self.logger)


class OnnxParser:
    def __init__(self, network: types.SimpleNamespace, logger: Any) -> None:
        self.network = network

    def parse(self, model: bytes) -> bool:
        self.network.model = model
        return True


class Builder:
    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def create_network(self, flags: int = 0) -> types.SimpleNamespace:
        return types.SimpleNamespace(model=b"")

    def create_builder_config(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(num_compute_capabilities=0, set_compute_capability=lambda kind, index: True,
                                     clear_flag=lambda flag: None)  # fmt: skip

    def build_serialized_network(self, network: Any, config: Any) -> bytes | None:
        note("build")
        if not fault("builds", True):
            self.logger.log(ILogger.Severity.ERROR, "no such layer")
            return None
        built = len(list(Path(settings()["folder"]).glob(f"built.{rank()}.*")))
        folder = Path(settings()["folder"]) / f"built.{rank()}.{built}"
        folder.mkdir()
        path = folder / "self_test.onnx"
        path.write_bytes(network.model)
        return HEADER + str(path).encode()


def install() -> None:
    made = types.ModuleType("tensorrt_rtx")
    made.__dict__.update(
        __version__=fault("tensorrt", VERSION), ILogger=ILogger, Runtime=Runtime, Builder=Builder,
        OnnxParser=OnnxParser, TensorIOMode=TensorIOMode, TensorLocation=TensorLocation,
        ComputeCapability=types.SimpleNamespace(CURRENT=1), BuilderFlag=types.SimpleNamespace(TF32=1),
        PreviewFeature=types.SimpleNamespace(), NetworkDefinitionCreationFlag=types.SimpleNamespace(),
    )  # fmt: skip
    sys.modules["tensorrt_rtx"] = made
