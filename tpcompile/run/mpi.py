"""The ranks of a run: who this process is, what ranks tell each other, and how collectives move memory.

MPI is imported late: Open MPI reads its settings when it starts, so `start` sets those that were measured best first
(docs/performance.md).
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]
from onnx import TensorProto

from tpcompile.errors import Fault, RankFailed, refuse
from tpcompile.run import tensors
from tpcompile.targets.collectives import Collective

if TYPE_CHECKING:
    from mpi4py import MPI

LAST_WORDS_S = 0.1
"""How long mpirun gets to pass on what a rank said before that rank has it end everything."""
LOCAL_SETTINGS = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
"""For ranks of one machine: shared memory only and no look for network cards, so that a start takes half the time;
a rank that waits lets others have its core."""


@dataclass
class World:
    """All ranks of a run, and where this one is.

    This is `rank` of `size`; `threads` is its share of its machine's cores; `shares_threads`: this
    process runs nothing else, so all its sessions may share one pool of threads; `local_rank` counts the ranks of its
    machine. `step` counts passes over the model (-1 while loading), `joined` the times it met the others in this step.
    """

    comm: MPI.Intracomm
    rank: int
    size: int
    threads: int = 1
    shares_threads: bool = False
    local_rank: int = 0
    step: int = -1
    joined: int = 0
    _groups: dict[tuple[int, ...], MPI.Intracomm] = field(default_factory=dict)

    def exchange(self, message: Any) -> list[Any]:
        """What every rank says, in the order of ranks; messages are JSON, never pickles."""
        mine = np.frombuffer(json.dumps(message).encode(), np.uint8)
        lengths = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([mine.size], np.int64), lengths)
        everything = np.empty(int(lengths.sum()), np.uint8)
        self.comm.Allgatherv(mine, [everything, lengths])
        ends = np.cumsum(lengths)
        return [json.loads(everything[end - size : end].tobytes()) for end, size in zip(ends, lengths, strict=True)]

    def votes(self, mine: bool) -> list[bool]:
        """What every rank says to a question of yes or no, in the order of ranks."""
        said = np.empty(self.size, np.uint8)
        self.comm.Allgather(np.array([mine], np.uint8), said)
        return [bool(vote) for vote in said]

    def broadcast(self, array: tensors.Array, root: int = 0) -> None:
        """Make `array` (contiguous) the same on all ranks: that of `root`."""
        self.comm.Bcast([array.reshape(-1).view(np.uint8), _mpi().BYTE], root=root)

    def broadcast_in(self, group: tuple[int, ...], array: tensors.Array) -> None:
        """Make `array` the same on the ranks of `group` (() for all): that of its first."""
        self._groups.get(group, self.comm).Bcast([array.reshape(-1).view(np.uint8), _mpi().BYTE], root=0)

    def join_groups(self, collectives: list[Collective]) -> None:
        """Make the sub-communicators that `collectives` need: in their order, which is the same on all ranks."""
        for index, found in enumerate(collectives):
            if found.groups and found.groups != tuple(range(self.size)) and found.groups not in self._groups:
                group = self.comm.group.Incl(list(found.groups))
                self._groups[found.groups] = self.comm.Create_group(group, tag=index % 32767)

    def group_of(self, collective: Collective) -> MPI.Intracomm:
        """The communicator that `collective` runs on."""
        return self._groups.get(collective.groups, self.comm)

    def place(self) -> str:
        """Where this rank is, for messages."""
        return place(self.step, self.joined)

    def abort(self, code: int) -> None:
        """End all ranks at once with exit code `code`."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(LAST_WORDS_S)
        self.comm.Abort(code)


def place(step: int, joined: int) -> str:
    """Where a rank is, for messages: the collective it comes to next counts from 0."""
    return "while loading" if step < 0 else f"at step {step}, before collective {joined}"


def start() -> World:
    """Join the run that mpirun (or srun) made of this process; a process alone is a world of one.

    Raises:
        Refused: TP603 mpi4py or its MPI library is missing; TP604 started by torchrun, which makes no MPI world.
    """
    ours = {name: value for name, value in _settings().items() if name not in os.environ}
    os.environ.update(ours)
    _die_with_parent()
    comm = _mpi().COMM_WORLD
    for name in ours:  # they were for this process, not for ranks that it may start
        del os.environ[name]
    wanted = os.environ.get("WORLD_SIZE", "1")
    if comm.size == 1 and wanted not in ("", "1"):
        raise refuse("TP604", "tprun", f"started with WORLD_SIZE={wanted} (torchrun) but without MPI, which it needs",
                     f"Start it as `mpirun -n {wanted} tprun BUNDLE`")  # fmt: skip
    world = World(comm, comm.rank, comm.size)
    said = world.exchange([host(), cores()])
    world.threads = _share(said, world.rank)
    world.local_rank = sum(machine == host() for machine, _ in said[: world.rank])
    return world


def _settings() -> dict[str, str]:
    """What to tell Open MPI before it starts; nothing where ranks may be on several machines."""
    local, size = (os.environ.get(f"OMPI_COMM_WORLD_{name}SIZE") for name in ("LOCAL_", ""))
    if size is None and "PMIX_RANK" not in os.environ:
        return LOCAL_SETTINGS | {"OMPI_MCA_btl": "self"}  # alone: shared memory would only be left behind
    return LOCAL_SETTINGS if size is not None and local == size else {}


@cache
def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise refuse("TP603", "MPI", f"mpi4py cannot start ({error})", "Run `pip install 'tpcompile[run]'`") from None
    return MPI


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its mpirun dies: a killed mpirun cannot end its ranks itself."""
    if sys.platform == "linux" and "OMPI_COMM_WORLD_SIZE" in os.environ:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def host() -> str:
    """A name that ranks of one machine share."""
    return socket.gethostname()


def cores() -> list[int]:
    """The cores this process may use."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))


def _share(said: list[tuple[str, list[int]]], rank: int) -> int:
    """How many threads `rank` may run: each core is shared among the ranks of its machine that may use it."""
    mine, own = said[rank]
    others = [core for machine, found in said if machine == mine for core in found]
    return max(1, int(sum(1 / others.count(core) for core in own)))


MOVED_AS = {1: "UINT8_T", 2: "UINT16_T", 4: "UINT32_T", 8: "UINT64_T"}
SUMMED_AS = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.DOUBLE: "DOUBLE",
    TensorProto.BOOL: "UINT8_T",
    TensorProto.UINT8: "UINT8_T",
    TensorProto.INT8: "INT8_T",
    TensorProto.UINT16: "UINT16_T",
    TensorProto.INT16: "INT16_T",
    TensorProto.UINT32: "UINT32_T",
    TensorProto.INT32: "INT32_T",
    TensorProto.UINT64: "UINT64_T",
    TensorProto.INT64: "INT64_T",
}
REDUCTIONS = {"sum": "SUM", "prod": "PROD", "max": "MAX", "min": "MIN", "avg": "SUM"}
BOOL_REDUCTIONS = {"sum": "MAX", "prod": "MIN", "max": "MAX", "min": "MIN"}  # any and all, as in numpy


def perform(world: World, found: Collective, value: ort.OrtValue, *, owned: bool) -> ort.OrtValue:
    """Run one collective on `value` and return what this rank has after it.

    `owned` allows to work in the memory of `value`; else it stays as it is.

    Raises:
        RankFailed: TP611 a shape or type that the operation cannot take.
    """
    comm, ranks = world.group_of(found), found.nb_rank
    shape, element = tuple(value.shape()), value.element_type()
    if found.op in ("all_reduce", "broadcast"):
        mine = value if owned else tensors.duplicate(value)
        if found.op == "broadcast":
            comm.Bcast(_buffer(mine, found), root=list(found.groups or range(ranks)).index(found.root))
        else:
            comm.Allreduce(_mpi().IN_PLACE, _buffer(mine, found), _reduction(found, element))
            _average(found, mine)
        return mine
    if not shape or (found.op != "all_gather" and shape[0] % ranks):
        raise misfit(found, f"a value of shape {list(shape)} has no {ranks} equal parts along axis 0")
    rows = {"all_gather": shape[0] * ranks, "reduce_scatter": shape[0] // ranks, "all_to_all": shape[0]}[found.op]
    made = tensors.empty((rows, *shape[1:]), element)
    part = math.prod(shape) // (1 if found.op == "all_gather" else ranks)  # mpi4py counts per rank, on both sides
    sent, received = _buffer(value, found, part), _buffer(made, found, part)
    if found.op == "all_gather":
        comm.Allgather(sent, received)
    elif found.op == "reduce_scatter":
        comm.Reduce_scatter_block(sent, received, _reduction(found, element))
        _average(found, made)
    else:
        comm.Alltoall(sent, received)
    return made


def _buffer(value: ort.OrtValue, found: Collective, part: int | None = None) -> list[Any]:
    """The memory of `value` as MPI takes it: [memory, count, type]; `part` is the count where it is not all."""
    mpi, dtype = _mpi(), tensors.NUMPY_OF[value.element_type()]
    count = math.prod(value.shape())
    name = SUMMED_AS.get(value.element_type()) if found.reduces else MOVED_AS[dtype.itemsize]
    if name is None:
        raise misfit(found, f"MPI cannot combine values of {dtype}")
    address = value.data_ptr() if count else 0
    memory = mpi.memory.fromaddress(address, count * dtype.itemsize)
    return [memory, count if part is None else part, getattr(mpi, name)]


def _reduction(found: Collective, element: int) -> Any:
    names = BOOL_REDUCTIONS if element == TensorProto.BOOL else REDUCTIONS
    if found.reduce_op not in names:
        raise misfit(found, "bools have no average")
    return getattr(_mpi(), names[found.reduce_op])


def misfit(found: Collective, fact: str) -> RankFailed:
    """TP611: what `found` was given, and cannot take."""
    remedy = "Compile the model again; if that does not help, report it with the bundle"
    return RankFailed(Fault("TP611", str(found), fact, remedy))


def _average(found: Collective, value: ort.OrtValue) -> None:
    if found.reduce_op == "avg":
        total = tensors.view(value)
        total[...] = (total / found.nb_rank).astype(total.dtype)
