"""Executors that compute a rank's segments with torch, for machines that have it and no other way to use their GPU.

Everything around the segments is the runner's own: the choice of the GPU, its stream, NCCL's start over MPI,
collectives in place, the watchdog, caches. `HostExchange` sends collectives through MPI and host memory instead of
NCCL, where NCCL does not let two ranks share a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor
from torch_ops import TYPES
from torch_segment import SIGNED_OF, TorchSegment, Weights

from tpcompile.run import mpi, tensors
from tpcompile.run.cpu import CpuExecutor
from tpcompile.run.cuda import DeviceArray, Gpu
from tpcompile.run.gpu_executor import GpuExecutor
from tpcompile.run.mpi import World
from tpcompile.run.watchdog import Watchdog
from tpcompile.targets.collectives import Collective

DEVICE = "cuda"
ELEMENT_OF = {dtype: element for element, dtype in TYPES.items()}


class TorchOnCpu(CpuExecutor):
    """Segments in torch on the CPU, collectives in MPI: the same code without a GPU."""

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder, world, prepack=False)
        torch.set_num_threads(1)  # numbers are what counts here, and ranks share the cores
        self.weights = Weights(folder, torch.device("cpu"))

    def load(self, part: onnx.ModelProto, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Any:
        return _Loaded(TorchSegment(part, outputs, self.weights), inputs, self._given, self._made)

    def _given(self, value: Any) -> Tensor:
        array = tensors.view(value)
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(TYPES[value.element_type()])

    def _made(self, found: Tensor) -> Any:
        bits = found.contiguous().view(SIGNED_OF[found.element_size()]).numpy()
        return tensors.from_numpy(bits.view(tensors.NUMPY_OF[ELEMENT_OF[found.dtype]]))


class TorchOnGpu(GpuExecutor):
    """Segments in torch on the rank's GPU and on its stream, NCCL between them."""

    def __init__(self, folder: Path, world: World, watchdog: Watchdog) -> None:
        super().__init__(Gpu(world.local_rank, watchdog), world)
        torch.cuda.set_device(self.gpu.device.device_id)
        self.stream = torch.cuda.ExternalStream(self.gpu.stream_handle)
        self.weights = Weights(folder, torch.device(DEVICE, self.gpu.device.device_id))

    def load(self, part: onnx.ModelProto, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Any:
        with torch.cuda.stream(self.stream):
            segment = TorchSegment(part, outputs, self.weights)
        self.stream.synchronize()  # weights came over other streams
        loaded = _Loaded(segment, inputs, self._given, self._made)
        return _OnStream(loaded, self.stream)

    def _given(self, value: DeviceArray) -> Tensor:
        if not value.count:
            return torch.empty(value.shape, dtype=TYPES[value.element], device=self.weights.device)
        bits = bits_at(value, self.weights.device)
        return bits.view(TYPES[value.element]).reshape(value.shape)

    def _made(self, found: Tensor) -> DeviceArray:
        held = found.to(self.weights.device).contiguous()
        return DeviceArray(held.data_ptr(), tuple(held.shape), ELEMENT_OF[held.dtype], held)


class HostExchange(TorchOnGpu):
    """As `TorchOnGpu`, with collectives by way of host memory and MPI."""

    keeps_halves = False  # MPI has no sums of them

    def join(self, collectives: Sequence[Collective], watchdog: Watchdog) -> None:
        """MPI's communicators are there already."""

    def perform(self, found: Collective, value: DeviceArray, *, owned: bool, label: str) -> DeviceArray:
        given = tensors.from_numpy(self.gpu.to_numpy(value))
        made = mpi.perform(self.world, found, given, owned=True)
        return self.gpu.from_numpy(tensors.to_numpy(made))


def bits_at(value: DeviceArray, device: torch.device) -> Tensor:
    """The elements of a DeviceArray, in a row, as integers of their size: its own memory."""
    return torch.as_tensor(_Exposed(value), device=device)


class _Exposed:
    """A DeviceArray as torch takes it without a copy: its bits, which are of a type that every library knows."""

    def __init__(self, value: DeviceArray) -> None:
        self.value = value
        size = TYPES[value.element].itemsize
        self.__cuda_array_interface__ = {
            "shape": (value.count,),
            "typestr": f"|u{size}" if size == 1 else f"<i{size}",
            "data": (value.pointer, False),
            "version": 3,
            "stream": None,
        }


class _Loaded:
    """A segment between values of an executor."""

    def __init__(
        self,
        segment: TorchSegment,
        inputs: tuple[str, ...],
        given: Callable[[Any], Tensor],
        made: Callable[[Tensor], Any],
    ) -> None:
        self.segment, self.inputs, self.made = segment, inputs, segment.made
        self._given, self._made = given, made

    def run(self, values: Mapping[str, Any]) -> Iterable[Any]:
        given = {name: self._given(values[name]) for name in self.inputs}
        return [self._made(found) for found in self.segment.run(given)]


class _OnStream:
    """A loaded segment whose work is asked of a stream."""

    def __init__(self, loaded: _Loaded, stream: torch.cuda.Stream) -> None:
        self.loaded, self.stream, self.made = loaded, stream, loaded.made

    def run(self, values: Mapping[str, Any]) -> Iterable[Any]:
        with torch.cuda.stream(self.stream):
            return self.loaded.run(values)
