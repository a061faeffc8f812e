"""Stand-ins for cuda.core, cuda.bindings.driver, nccl.core and nccl.bindings.nccl: one process is one GPU.

"GPU memory" is memory of this process, a stream does at once what it is asked, and NCCL is MPI. What the libraries
demand is demanded here too: a device before a stream, buffers of one size, a communicator before a collective. Each
call that matters is noted with the time, so that tests see the order of calls over all ranks.
"""

from __future__ import annotations

import ctypes
import enum
import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

SETTINGS = "FAKE_GPU"
"""A JSON object: "folder" for notes and rendezvous, "gpus" of the machine, "faults" by rank."""


def settings() -> dict[str, Any]:
    return dict(json.loads(os.environ.get(SETTINGS, "{}")))


def rank() -> int:
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


def fault(name: str, usual: Any) -> Any:
    """What a test wants this rank to be given instead of `usual`."""
    return settings().get("faults", {}).get(str(rank()), {}).get(name, usual)


def may_sleep(where: str) -> None:
    """Where a test wants it, this rank stops here."""
    if fault("sleeps_in", "") == where:
        time.sleep(600)


def note(what: str, **facts: Any) -> None:
    line = json.dumps({"at": time.monotonic_ns(), "rank": rank(), "what": what, **facts})
    with (Path(settings()["folder"]) / f"notes.{rank()}").open("a") as file:
        file.write(line + "\n")


def notes(folder: Path) -> list[dict[str, Any]]:
    """What all ranks noted, in the order of time."""
    lines = [line for path in folder.glob("notes.*") for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda found: int(found["at"]))


class ComputeCapability(NamedTuple):
    major: int
    minor: int


class Buffer:
    def __init__(self, address: int, size: int, owner: object = None) -> None:
        self.handle, self.size, self.owner = address, size, owner

    @staticmethod
    def from_handle(ptr: int, size: int, mr: object = None, owner: object = None) -> Buffer:
        assert ptr and size, "a buffer needs an address and a size"
        return Buffer(ptr, size, owner)

    def copy_from(self, src: Buffer, *, stream: Stream) -> None:
        assert src.size == self.size, (src.size, self.size)
        stream.do(lambda: ctypes.memmove(self.handle, src.handle, self.size) and None)


class Event:
    def __init__(self) -> None:
        self.is_done = True


class Graph:
    def __init__(self, actions: list[Callable[[], None]]) -> None:
        self.actions = actions

    def launch(self, stream: Stream) -> None:
        note("graph", actions=len(self.actions))
        for action in self.actions:
            stream.do(action)


class GraphBuilder:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def begin_building(self, mode: str = "relaxed") -> GraphBuilder:
        self.stream.captured = []
        return self

    def end_building(self) -> GraphBuilder:
        self.actions, self.stream.captured = self.stream.captured, None
        return self

    def complete(self) -> Graph:
        assert self.actions is not None
        return Graph(self.actions)


class Stream:
    seen: set[str] = set()  # noqa: RUF012 - one process, one GPU

    def __init__(self) -> None:
        self.handle = 4096
        self.captured: list[Callable[[], None]] | None = None

    def do(self, action: Callable[[], None]) -> None:
        if self.captured is None:
            action()
        else:
            self.captured.append(action)

    def sync(self) -> None:
        if self._is_stuck():
            time.sleep(600)

    def record(self, event: Event | None = None) -> Event:
        made = event or Event()
        made.is_done = not self._is_stuck()
        return made

    def _is_stuck(self) -> bool:
        """Where a test wants it, the GPU never ends what it is asked for once a model runs."""
        running = [found for found in ("model", "segment") if found in Stream.seen]
        return bool(fault("stuck", False)) and bool(running)

    def create_graph_builder(self) -> GraphBuilder:
        return GraphBuilder(self)


class Device:
    current: Device | None = None
    stream: Stream | None = None

    def __init__(self, index: int) -> None:
        self.device_id = index
        self.uuid = f"GPU-{fault('uuid', index)}"
        self.pci_bus_id = f"0000:{index + 1:02x}:00.0"
        self.name = "Fake GPU"
        self.compute_capability = ComputeCapability(*fault("capability", [8, 9]))

    @classmethod
    def get_all_devices(cls) -> tuple[Device, ...]:
        note("look for devices")
        return tuple(Device(index) for index in range(settings().get("gpus", 8)))

    def set_current(self) -> None:
        note("device", index=self.device_id)
        if fault("device_broken", False):
            raise RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered")
        Device.current = self

    def create_stream(self) -> Stream:
        assert Device.current is self, "no device is current"
        note("stream")
        Device.stream = Stream()
        return Device.stream

    def allocate(self, size: int, *, stream: Stream) -> Buffer:
        assert Device.current is self and size > 0
        memory = np.full(size + 256, 0xAB, np.uint8)  # never zeros: nobody may rely on what is not initialised
        address = memory.ctypes.data
        return Buffer(address + -address % 256, size, memory)


class UniqueId:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def __bytes__(self) -> bytes:
        return self.content

    @staticmethod
    def from_bytes(content: bytes) -> UniqueId:
        assert len(content) == 128
        return UniqueId(content)


def get_unique_id() -> UniqueId:
    note("unique id")
    return UniqueId(os.urandom(128))


class Communicator:
    known: dict[int, Any] = {}  # noqa: RUF012 - one process, one registry
    failing = 0

    def __init__(self, comm: Any) -> None:
        self.ptr = 7000 + len(Communicator.known)
        Communicator.known[self.ptr] = comm

    @classmethod
    def init(cls, nranks: int, rank: int, unique_id: UniqueId) -> Communicator:
        """Members find each other by the id: each leaves its MPI rank in a file of that name."""
        from mpi4py import MPI

        assert Device.current is not None, "NCCL needs a current device"
        note("communicator", ranks=nranks, place=rank)
        key, folder = bytes(unique_id)[:8].hex(), Path(settings()["folder"])
        part = folder / f"{key}.{rank}.part"
        part.write_text(str(MPI.COMM_WORLD.rank))
        part.rename(folder / f"{key}.{rank}")
        members = [folder / f"{key}.{place}" for place in range(nranks)]
        while not all(path.exists() for path in members):
            time.sleep(0.005)
        group = MPI.COMM_WORLD.group.Incl([int(path.read_text()) for path in members])
        return cls(MPI.COMM_WORLD.Create_group(group, tag=int(key[:4], 16) % 30000))

    def get_async_error(self) -> int:
        Communicator.failing += 1
        return int(fault("nccl_error", 0)) if Communicator.failing > 5 else 0

    def get_last_error(self) -> str:
        return "a cable was pulled"


class Comm:
    """The low functions take this and no number."""

    def __init__(self, handle: int = 0) -> None:
        self.handle = handle


class DataType(enum.IntEnum):
    Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16, Float8e4m3, Float8e5m2 = range(12)


class RedOp(enum.IntEnum):
    Sum, Prod, Max, Min, Avg = range(5)


class Result(enum.IntEnum):
    Success, UnhandledCudaError, SystemError, InternalError, InvalidArgument, InvalidUsage, RemoteError, InProgress = (
        range(8)
    )


KINDS: dict[int, Any] = {
    DataType.Int8: np.int8, DataType.Uint8: np.uint8, DataType.Int32: np.int32, DataType.Uint32: np.uint32,
    DataType.Int64: np.int64, DataType.Uint64: np.uint64, DataType.Float16: np.float16, DataType.Float32: np.float32,
    DataType.Float64: np.float64, DataType.Bfloat16: ml_dtypes.bfloat16,
}  # fmt: skip
FOLDS = {RedOp.Sum: np.add, RedOp.Prod: np.multiply, RedOp.Max: np.maximum, RedOp.Min: np.minimum, RedOp.Avg: np.add}


def memory(address: int, count: int, kind: int) -> Any:
    dtype = np.dtype(KINDS[kind])
    size = count * dtype.itemsize
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address)).view(dtype)


def everybodys(comm: Comm, mine: Any) -> list[Any]:
    """The arrays of all members."""
    group = Communicator.known[comm.handle]
    whole = np.empty(group.size * mine.nbytes, np.uint8)
    group.Allgather(np.ascontiguousarray(mine).view(np.uint8), whole)
    return [part.view(mine.dtype) for part in np.split(whole, group.size)]


def folded(blocks: list[Any], op: int) -> Any:
    total = blocks[0].astype(np.float64) if op == RedOp.Avg else blocks[0].copy()
    for block in blocks[1:]:
        total = FOLDS[RedOp(op)](total, block).astype(total.dtype)
    return (total / len(blocks)).astype(blocks[0].dtype) if op == RedOp.Avg else total


def asked(name: str, stream: int) -> None:
    assert Device.stream is not None and stream == Device.stream.handle, "not the stream of the rank"
    note("nccl", op=name)


def all_reduce(sent: int, received: int, count: int, kind: int, op: int, comm: Comm, stream: int) -> None:
    asked("all_reduce", stream)
    if fault("nccl_broken", False):
        raise RuntimeError("unhandled system error")
    memory(received, count, kind)[:] = folded(everybodys(comm, memory(sent, count, kind)), op)


def reduce_scatter(sent: int, received: int, count: int, kind: int, op: int, comm: Comm, stream: int) -> None:
    asked("reduce_scatter", stream)
    group = Communicator.known[comm.handle]
    total = folded(everybodys(comm, memory(sent, count * group.size, kind)), op)
    memory(received, count, kind)[:] = np.split(total, group.size)[group.rank]


def all_gather(sent: int, received: int, count: int, kind: int, comm: Comm, stream: int) -> None:
    asked("all_gather", stream)
    blocks = everybodys(comm, memory(sent, count, kind))
    memory(received, count * len(blocks), kind)[:] = np.concatenate(blocks)


def broadcast(sent: int, received: int, count: int, kind: int, root: int, comm: Comm, stream: int) -> None:
    asked("broadcast", stream)
    memory(received, count, kind)[:] = everybodys(comm, memory(sent, count, kind))[root]


_open: list[tuple[str, int, int, int, int, Comm]] = []


def group_start() -> None:
    assert not _open


def send(sent: int, count: int, kind: int, peer: int, comm: Comm, stream: int) -> None:
    asked("send", stream)
    _open.append(("send", sent, count, kind, peer, comm))


def recv(received: int, count: int, kind: int, peer: int, comm: Comm, stream: int) -> None:
    asked("recv", stream)
    _open.append(("recv", received, count, kind, peer, comm))


def group_end() -> None:
    from mpi4py import MPI

    waiting = []
    for way, address, count, kind, peer, comm in _open:
        group, buffer = Communicator.known[comm.handle], memory(address, count, kind).view(np.uint8)
        waiting.append(group.Isend(buffer, peer) if way == "send" else group.Irecv(buffer, peer))
    MPI.Request.Waitall(waiting)
    _open.clear()


def _module(name: str, **content: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(content)
    sys.modules[name] = made
    return made


def install() -> None:
    """Put the stand-ins where the libraries would be, for this process."""
    bindings = _module(
        "nccl.bindings.nccl", get_version=lambda: fault("nccl", 23203), DataType=DataType, RedOp=RedOp, Result=Result,
        Comm=Comm, get_error_string=lambda number: f"{Result(number).name} of NCCL",
        all_reduce=all_reduce, reduce_scatter=reduce_scatter, all_gather=all_gather, broadcast=broadcast,
        group_start=group_start, group_end=group_end, send=send, recv=recv,
    )  # fmt: skip
    core = _module("nccl.core", get_unique_id=get_unique_id, UniqueId=UniqueId, Communicator=Communicator)
    _module("nccl", core=core, bindings=_module("nccl.bindings", nccl=bindings))
    driver = _module("cuda.bindings.driver", cuDriverGetVersion=lambda: (0, fault("driver", 13000)))
    cuda_core = _module("cuda.core", Device=Device, Buffer=Buffer, Stream=Stream, Event=Event)
    _module("cuda", core=cuda_core, bindings=_module("cuda.bindings", driver=driver))
