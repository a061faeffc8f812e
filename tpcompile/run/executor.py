"""The two borders of running: what drives a rank's model (`RankModel`), and what computes its segments (`Executor`).

`rank.RankRunner` drives any RankModel: `segments.SegmentRunner`, a chain of segments with collectives between them, or
`engine.EngineRunner`, one TensorRT engine that holds its collectives. A SegmentRunner is the same everywhere (split,
watchdog, dump, branches); where values live, how a segment runs and how a collective is performed is its Executor's:
`cpu.CpuExecutor`, `cuda_segments.CudaExecutor`, or one of your own, given as `rank.load(…, executor=made)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tpcompile.bundle.manifest import Manifest
from tpcompile.targets.collectives import Collective

if TYPE_CHECKING:
    import onnx

    from tpcompile.run.dump import Dump
    from tpcompile.run.tensors import Array
    from tpcompile.run.watchdog import Watchdog

Value = Any
"""A tensor where its Memory keeps it; nobody else looks inside."""


class Memory(Protocol):
    """Where values live, and the ways in and out."""

    def from_numpy(self, array: Array) -> Value:
        """A value with the numbers of `array`, which stays as it is until they have been used."""

    def to_numpy(self, value: Value) -> Array:
        """A copy of `value` that stands on its own, once it has been computed."""

    def view(self, value: Value) -> Array:
        """The numbers of `value`, to be read at once and not kept: no copy where none is needed."""


class Loaded(Protocol):
    """A segment ready to run."""

    @property
    def made(self) -> Sequence[tuple[str, int, Sequence[int | str | None]]]:
        """What it gives: name, ONNX element type, sizes as far as they are known."""

    def run(self, values: Mapping[str, Value]) -> Iterable[Value]:
        """What it gives, in the order of `made`, in memory of its own. `values` hold what it reads, and more."""


class Executor(Memory, Protocol):
    """Computes segments and performs collectives, in the order asked, and may still be at it when a call returns.

    `keeps_halves`: float16 and bfloat16 are computed and summed in their own type. Where not, the graph is rewritten
    to float32 (bfloat16) and sums are widened (both) before it is split.
    """

    keeps_halves: bool

    def load(self, part: onnx.ModelProto, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Loaded:
        """Make a segment ready: `part` is a model of its own, with weights in the files of the bundle's folder.

        Raises:
            Refused: TP606 it cannot be loaded.
        """

    def join(self, collectives: Sequence[Collective], watchdog: Watchdog) -> None:
        """Prepare for `collectives`, together with all ranks: communicators of their groups (`World.group_of`)."""

    def perform(self, found: Collective, value: Value, *, owned: bool, label: str) -> Value:
        """What this rank has after the collective; `owned` allows to work in the memory of `value`.

        `label` says which collective it is, for messages.

        Raises:
            RankFailed: TP611 a shape or type that the operation cannot take.
        """

    def finish(self) -> None:
        """Return when all that was asked for is done."""


class RankModel(Protocol):
    """One rank's part of a bundle, loaded. `dump` is None where nothing is to be dumped."""

    memory: Memory
    dump: Dump | None

    def contradiction(self, manifest: Manifest, rank: int) -> str | None:
        """Where bundle.json says something else than the model of `rank`, in words."""

    def calls(self) -> list[tuple[str, list[int], int]]:
        """What this rank will do together with others, in order: name, group ([] for all ranks), root (-1: none)."""

    def join(self) -> None:
        """Get ready with all ranks, once all have loaded: communicators, and what must be tried before the first step.

        Raises:
            Refused: the same on all ranks.
        """

    def run(self, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """This rank's outputs for this rank's inputs, which are not written to.

        Outputs last until the next call but one where they are fed back as caches, else until the next.
        """
