"""The GPU of a rank: chosen before anything is put on one, with a stream of its own, and tensors in its memory.

Everything a rank asks of its GPU goes to one stream, in order, and nothing waits on the host until numbers are needed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tpcompile.errors import Fault, RankFailed, TpcompileError
from tpcompile.run.tensors import ELEMENT_OF, NUMPY_OF, Array

if TYPE_CHECKING:
    from cuda.core import Device, Event, Stream

    from tpcompile.run.watchdog import Watchdog

LEAST_BYTES = 256
"""Allocated for an empty tensor too: libraries refuse null pointers."""
INSTALL = "pip install 'tpcompile[gpu]'"


@cache
def why_no_gpu() -> str | None:
    """Why this process cannot use a GPU, None where it can. Puts nothing on any GPU."""
    try:
        from cuda.core import Device
    except ImportError as error:
        return f"the Python packages cuda-core and cuda-bindings cannot be imported ({error}): {INSTALL}"
    try:
        found = Device.get_all_devices()
    except Exception as error:  # no driver, or one that fails: each layer has errors of its own
        if type(error).__name__ == "DynamicLibNotFoundError":
            return "no NVIDIA driver is installed"
        return f"CUDA cannot start ({_first_line(error)})"
    return None if found else "CUDA shows no GPU"


def devices() -> Sequence[Device]:
    """The GPUs that CUDA shows to this process."""
    from cuda.core import Device

    found: Sequence[Device] = Device.get_all_devices()
    return found


def driver_version() -> str:
    """The newest CUDA that the driver knows, "13.0"."""
    from cuda.bindings import driver

    _, number = driver.cuDriverGetVersion()
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


def capability(device: Device) -> str:
    """The compute capability of a GPU, "9.0"."""
    major, minor = device.compute_capability
    return f"{major}.{minor}"


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turn what a GPU library raises into TP657, which ends all ranks."""
    try:
        yield
    except TpcompileError:
        raise
    except Exception as error:
        remedy = "`tpcompile doctor` tries the GPU and NCCL without a model; all ranks end with this one"
        raise RankFailed(Fault("TP657", what, _first_line(error), remedy)) from error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


@dataclass(frozen=True)
class DeviceArray:
    """A tensor at `pointer` in a GPU's memory, `element` its ONNX type; `memory` keeps it there."""

    pointer: int
    shape: tuple[int, ...]
    element: int
    memory: Any

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes they take."""
        return self.count * NUMPY_OF[self.element].itemsize


class Gpu:
    """The GPU that this rank uses and its stream: a `Memory` whose values are DeviceArrays.

    The `local_rank`th of those that CUDA shows, starting over where ranks are more: `check_distinct` judges that.
    """

    def __init__(self, local_rank: int, watchdog: Watchdog) -> None:
        self.watchdog = watchdog
        with failing_as("the GPU of this rank"):
            found = devices()
            self.device = found[local_rank % len(found)]
            self.device.set_current()
            self.stream: Stream = self.device.create_stream()
        self._marks: list[tuple[str, Event]] = []
        self._events: dict[str, Event] = {}
        self._lent: list[Array] = []

    @property
    def stream_handle(self) -> int:
        """The address of the stream, as C libraries take it."""
        return int(self.stream.handle)

    def identity(self) -> dict[str, str]:
        """What tells GPUs apart, and what engines are built for."""
        device = self.device
        return {"uuid": str(device.uuid), "bus": device.pci_bus_id, "name": device.name,
                "capability": capability(device)}  # fmt: skip

    def empty(self, shape: Sequence[int], element: int) -> DeviceArray:
        """A new tensor, not initialised; its memory is free for others when it is dropped and the stream is past it."""
        bytes_wanted = math.prod(shape) * NUMPY_OF[element].itemsize
        memory = self.device.allocate(max(bytes_wanted, LEAST_BYTES), stream=self.stream)
        return DeviceArray(int(memory.handle), tuple(shape), element, memory)

    def from_numpy(self, array: Array) -> DeviceArray:
        array = np.require(array, requirements="C")
        with failing_as("copying to the GPU"):
            made = self.empty(array.shape, ELEMENT_OF[array.dtype])
            if array.nbytes:
                self._copy(made.pointer, array.ctypes.data, array.nbytes)
                self._lent.append(array)
        return made

    def to_numpy(self, value: DeviceArray) -> Array:
        made = np.empty(value.shape, NUMPY_OF[value.element])
        with failing_as("copying from the GPU"):
            if made.nbytes:
                self._copy(made.ctypes.data, value.pointer, made.nbytes)
        self.finish()
        return made

    def view(self, value: DeviceArray) -> Array:
        return self.to_numpy(value)

    def copy(self, source: DeviceArray, target: int) -> None:
        """Copy a tensor to the address `target` of this GPU."""
        if source.bytes:
            self._copy(target, source.pointer, source.bytes)

    def _copy(self, target: int, source: int, size: int) -> None:
        from cuda.core import Buffer

        place = Buffer.from_handle(target, size)
        place.copy_from(Buffer.from_handle(source, size), stream=self.stream)

    def mark(self, label: str) -> None:
        """Note that what is asked of the stream up to here is `label`: what `finish` waits for, in messages."""
        event = self._events.get(label)
        self._events[label] = event = self.stream.record(event)
        self._marks.append((label, event))

    def finish(self) -> None:
        """Return when all that was asked of the stream is done, under the watchdog's eye."""
        self.watchdog.waits(self._pending)
        with failing_as("waiting for the GPU"):
            self.stream.sync()
        self.watchdog.goes_on()
        self._marks.clear()
        self._lent.clear()

    def _pending(self) -> str:
        """The first mark that the GPU has not passed. Asked by the watchdog's thread."""
        with contextlib.suppress(Exception):
            self.device.set_current()
            for label, event in list(self._marks):
                if not event.is_done:
                    return label
        return "the work of the GPU"


def check_distinct(said: Sequence[dict[str, str]], shared_allowed: bool) -> Iterator[Fault]:
    """TP651 for each two ranks on one GPU; `said` are the identities of all ranks' GPUs."""
    first: dict[str, int] = {}
    for rank, found in enumerate(said):
        other = first.setdefault(found["uuid"], rank)
        if other != rank and not shared_allowed:
            yield Fault(
                "TP651", f"rank {rank}", f"has the same GPU as rank {other}: {found['name']}, {found['bus']}",
                "Give each rank a GPU of its own (CUDA_VISIBLE_DEVICES, --gpus-per-task); to try several on one, set "
                "NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL 2.30 or newer",
            )  # fmt: skip
