"""What every way to run segments on a GPU shares: one stream, values in its memory, NCCL between segments.

Nothing waits on the host from segment to segment. The watchdog sees each collective twice: when it is asked for, and at
the end of the step, when the GPU is waited for and the first collective that has not ended is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpcompile.run.cuda import DeviceArray, Gpu
from tpcompile.run.mpi import World
from tpcompile.run.nccl import Nccl
from tpcompile.run.tensors import Array
from tpcompile.run.watchdog import Watchdog
from tpcompile.targets.collectives import Collective


class GpuExecutor:
    """An `Executor` but for `load`, which is what computes segments: on `gpu.stream`, in the order asked."""

    keeps_halves = True

    def __init__(self, gpu: Gpu, world: World) -> None:
        self.gpu, self.world = gpu, world
        self._nccl: Nccl | None = None

    def join(self, collectives: Sequence[Collective], watchdog: Watchdog) -> None:
        """Make NCCL's communicators, in the order of `collectives`."""
        if self.world.size > 1 and collectives:
            self._nccl = Nccl(self.gpu, self.world, watchdog)
            self._nccl.join([found.groups for found in collectives])

    def perform(self, found: Collective, value: DeviceArray, *, owned: bool, label: str) -> DeviceArray:
        if self._nccl is None:
            return value  # over one rank, every collective gives what it is given
        made = self._nccl.perform(found, value, owned=owned)
        self.gpu.mark(label)
        return made

    def finish(self) -> None:
        self.gpu.finish()

    def from_numpy(self, array: Array) -> DeviceArray:
        return self.gpu.from_numpy(array)

    def to_numpy(self, value: DeviceArray) -> Array:
        return self.gpu.to_numpy(value)

    def view(self, value: DeviceArray) -> Array:
        return self.gpu.to_numpy(value)
