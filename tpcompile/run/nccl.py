"""NCCL between ranks: communicators made over MPI, collectives on GPU memory, errors that come later.

The id of a communicator goes from its first rank to the others through MPI: no file that a run could leave to the next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto

from tpcompile.errors import Fault
from tpcompile.run.cuda import INSTALL, DeviceArray, Gpu, failing_as
from tpcompile.run.mpi import BOOL_REDUCTIONS, World, misfit
from tpcompile.run.watchdog import Watchdog
from tpcompile.targets.collectives import Collective

if TYPE_CHECKING:
    from nccl.core import Communicator

SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Set to 1, it lets NCCL 2.30 and newer work between ranks on one GPU."""
SHARED_GPU_SINCE = (2, 30)
UNIQUE_ID_BYTES = 128
TYPES: dict[int, str] = {
    TensorProto.FLOAT: "Float32",
    TensorProto.DOUBLE: "Float64",
    TensorProto.FLOAT16: "Float16",
    TensorProto.BFLOAT16: "Bfloat16",
    TensorProto.FLOAT8E4M3FN: "Float8e4m3",
    TensorProto.FLOAT8E5M2: "Float8e5m2",
    TensorProto.BOOL: "Uint8",
    TensorProto.UINT8: "Uint8",
    TensorProto.INT8: "Int8",
    TensorProto.UINT32: "Uint32",
    TensorProto.INT32: "Int32",
    TensorProto.UINT64: "Uint64",
    TensorProto.INT64: "Int64",
}
"""What NCCL combines; anything can be moved, as bytes."""
REDUCTIONS = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "avg": "Avg"}


@cache
def why_no_nccl() -> str | None:
    """Why this process cannot use NCCL, None where it can. Uses no GPU."""
    try:
        version()
    except ImportError as error:
        return f"the Python package nccl4py is not installed ({error}): {INSTALL}"
    except Exception as error:  # the library itself is missing or broken
        return f"NCCL cannot be loaded ({str(error).strip().splitlines()[0]}): {INSTALL}"
    return None


@cache
def version() -> str:
    """The version of the NCCL that is loaded, "2.32.3"."""
    from nccl.bindings import nccl

    number = nccl.get_version()
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def shares_gpus() -> bool:
    """Whether several ranks may use one GPU: asked for, and NCCL can."""
    major, minor, _ = map(int, version().split("."))
    return os.environ.get(SHARED_GPU) == "1" and (major, minor) >= SHARED_GPU_SINCE


class Nccl:
    """This rank's communicators. Every call but `fault` is made by all ranks (of the group) together."""

    def __init__(self, gpu: Gpu, world: World, watchdog: Watchdog) -> None:
        self.gpu, self.world, self.watchdog = gpu, world, watchdog
        self._joined: dict[tuple[int, ...], Communicator] = {}
        watchdog.checks.append(self.fault)

    def join(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Make the communicators of `groups` (() for all ranks), in this order. MPI's are there already."""
        from nccl import core

        for group in groups:
            ranks = group or tuple(range(self.world.size))
            if ranks in self._joined:
                continue
            place = ranks.index(self.world.rank)
            self.watchdog.waits(f"NCCL's start with ranks {', '.join(map(str, ranks))}", loading=True)
            with failing_as("NCCL's start"):
                identity = np.zeros(UNIQUE_ID_BYTES, np.uint8)
                if place == 0:
                    identity[:] = np.frombuffer(bytes(core.get_unique_id()), np.uint8)
                self.world.broadcast_in(group, identity)
                unique = core.UniqueId.from_bytes(identity.tobytes())
                self._joined[ranks] = core.Communicator.init(len(ranks), place, unique)
            self.watchdog.goes_on()

    def of(self, group: tuple[int, ...]) -> Communicator:
        """The communicator of `group` (() for all ranks)."""
        return self._joined[group or tuple(range(self.world.size))]

    def perform(self, found: Collective, value: DeviceArray, *, owned: bool) -> DeviceArray:
        """Ask for one collective on the GPU's stream; see `Executor.perform`."""
        ranks, shape = found.nb_rank, value.shape
        if found.op in ("all_reduce", "broadcast"):
            made = value if owned else self.gpu.empty(shape, value.element)
        else:
            if not shape or (found.op != "all_gather" and shape[0] % ranks):
                raise misfit(found, f"a value of shape {list(shape)} has no {ranks} equal parts along axis 0")
            rows = {"all_gather": shape[0] * ranks, "reduce_scatter": shape[0] // ranks, "all_to_all": shape[0]}
            made = self.gpu.empty((rows[found.op], *shape[1:]), value.element)
        if math.prod(shape):
            with failing_as(str(found)):
                self._enqueue(found, value, made)
        return made

    def _enqueue(self, found: Collective, value: DeviceArray, made: DeviceArray) -> None:
        from nccl.bindings import nccl

        comm, stream, ranks = nccl.Comm(self.of(found.groups).ptr), self.gpu.stream_handle, found.nb_rank
        sent, received, as_bytes = value.pointer, made.pointer, int(nccl.DataType.Uint8)
        if found.op == "all_reduce":
            kind, reduction = summed_as(found, value.element, nccl)
            nccl.all_reduce(sent, received, value.count, kind, reduction, comm, stream)
        elif found.op == "reduce_scatter":
            kind, reduction = summed_as(found, value.element, nccl)
            nccl.reduce_scatter(sent, received, made.count, kind, reduction, comm, stream)
        elif found.op == "all_gather":
            nccl.all_gather(sent, received, value.bytes, as_bytes, comm, stream)
        elif found.op == "broadcast":
            root = list(found.groups or range(ranks)).index(found.root)
            nccl.broadcast(sent, received, value.bytes, as_bytes, root, comm, stream)
        else:
            part = value.bytes // ranks
            nccl.group_start()
            for peer in range(ranks):
                nccl.send(sent + peer * part, part, as_bytes, peer, comm, stream)
                nccl.recv(received + peer * part, part, as_bytes, peer, comm, stream)
            nccl.group_end()

    def fault(self) -> str | None:
        """What has gone wrong since the last call, on this rank or another. Asked by the watchdog's thread."""
        if not self._joined:
            return None
        from nccl.bindings import nccl

        for ranks, comm in list(self._joined.items()):
            try:
                result = comm.get_async_error()
                if result in (nccl.Result.Success, nccl.Result.InProgress):
                    continue
                said = f"{nccl.get_error_string(int(result))} ({comm.get_last_error()})"
            except Exception as error:  # it must not end the thread that watches
                said = str(error)
            remedy = "See NCCL's own words with NCCL_DEBUG=INFO; `tpcompile doctor` tries NCCL without a model"
            fact = f"NCCL between ranks {', '.join(map(str, ranks))} failed: {said}"
            return str(Fault("TP658", self.world.place(), fact, remedy))
        return None


def summed_as(found: Collective, element: int, nccl: Any) -> tuple[int, int]:
    """NCCL's numbers of the type and the reduction."""
    reduction = BOOL_REDUCTIONS.get(found.reduce_op) if element == TensorProto.BOOL else found.reduce_op
    if reduction is None:
        raise misfit(found, "bools have no average")
    if element not in TYPES:
        raise misfit(found, f"NCCL cannot combine values of {TensorProto.DataType.Name(element).lower()}")
    name = REDUCTIONS[reduction.lower()]
    return int(getattr(nccl.DataType, TYPES[element])), int(getattr(nccl.RedOp, name))
