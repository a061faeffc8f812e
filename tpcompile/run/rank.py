"""One rank of a bundle: loads its part, agrees with the others that all parts belong together, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tpcompile.bundle.manifest import FILE_NAME, Manifest
from tpcompile.errors import refuse
from tpcompile.run import decode, parts
from tpcompile.run.agreement import check_same, identity, together
from tpcompile.run.backends import AUTO, Backend, Chosen, choose
from tpcompile.run.cpu import CpuExecutor
from tpcompile.run.dump import Dump
from tpcompile.run.executor import Executor, RankModel, Value
from tpcompile.run.launch import wrong_rank_count
from tpcompile.run.mpi import World, start
from tpcompile.run.segments import SegmentRunner
from tpcompile.run.sequences import Sequences
from tpcompile.run.tensors import Array
from tpcompile.run.watchdog import Board, Watchdog


def load(
    folder: Path,
    *,
    timeout_s: float,
    load_timeout_s: float,
    prepack: bool,
    world: World | None = None,
    dump: str | None = None,
    backend: str = AUTO,
    cuda_graphs: bool = False,
    executor: Callable[[Path, World, Watchdog], Executor] | None = None,
) -> RankRunner:
    """Load this rank's part of the bundle; all ranks call it together, and all return or all raise the same.

    `dump` is a pattern of names: the runner keeps copies of these values (`RankModel.dump`). `backend` is one of
    `backends.BACKENDS`; `cuda_graphs` lets engines replay steps of equal shapes. `executor` makes what computes the
    segments, from the bundle's folder: no backend is looked for then.

    Raises:
        Refused: TP607 another number of ranks than the bundle is for; TP608 files of different compiles; TP650, TP651,
            TP652 no such backend here; what any rank refused while loading.
    """
    world = world or start()
    watchdog = Watchdog(world, timeout_s, load_timeout_s)
    watchdog.waits("the start", loading=True)
    watchdog.board = Board(world)
    watchdog.goes_on()
    manifest, _ = together(world, watchdog, "the start", lambda: _manifest(folder, world), lambda _: None)
    if executor is None:
        chosen = choose(backend, manifest, world, watchdog, dumps=dump is not None)
    else:
        chosen = Chosen(Backend("given"))
    if cuda_graphs and chosen.engine is None:
        raise refuse("TP615", "--cuda-graphs", f"is for engines, and this run has the backend {chosen.backend}",
                     "Leave it out, or build engines")  # fmt: skip

    def model_of_rank() -> RankModel:
        if chosen.engine is not None and chosen.gpu is not None:
            from tpcompile.run.engine import EngineRunner

            return EngineRunner(folder, chosen.engine, manifest, world, watchdog, chosen.gpu, cuda_graphs=cuda_graphs)
        if executor is not None:
            computes = executor(folder, world, watchdog)
        elif chosen.gpu is not None:
            from tpcompile.run.cuda_segments import CudaExecutor

            computes = CudaExecutor(folder, world, chosen.gpu, prepack=prepack)
        else:
            computes = CpuExecutor(folder, world, prepack=prepack)
        asked = None if dump is None else Dump(dump, manifest)
        return SegmentRunner(folder, manifest.ranks[world.rank], world, watchdog, computes, dump=asked)

    def fitting() -> RankModel:
        made = model_of_rank()
        differs = made.contradiction(manifest, world.rank)
        if differs:
            raise refuse("TP608", str(folder / FILE_NAME), differs,
                         "It was changed, or belongs to another compile: copy the whole bundle again")  # fmt: skip
        return made

    model, said = together(world, watchdog, "loading", fitting, lambda made: identity(folder, made))
    check_same(said)
    model.join()
    return RankRunner(manifest, model, world, watchdog, chosen.backend)


def _manifest(folder: Path, world: World) -> Manifest:
    manifest = Manifest.read(folder, ranks=[])
    if manifest.world_size != world.size:
        raise wrong_rank_count(folder, manifest.world_size, world.size)
    return Manifest.read(folder, ranks=[world.rank])


class RankRunner:
    """A loaded rank. Every call is made by all ranks together, with the same whole inputs."""

    def __init__(
        self, manifest: Manifest, model: RankModel, world: World, watchdog: Watchdog, backend: Backend
    ) -> None:
        self.manifest, self.model, self.world, self.watchdog, self.backend = manifest, model, world, watchdog, backend
        self.sequences = Sequences(self)

    def run(self, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Whole outputs by name, on every rank, for whole inputs."""
        parts.check_feeds(self.manifest, feeds)
        self.check_outputs(output_names)
        self.sequences.put_aside()
        found = self.step({name: self.local(name, array) for name, array in feeds.items()})
        return {name: self.whole(name, found[name]) for name in output_names}

    def decode(self, feeds: Mapping[str, Array], steps: int) -> dict[str, Array]:
        """Greedy decoding; see `decode.greedy`."""
        self.sequences.put_aside()
        return decode.greedy(self, feeds, steps)

    def extend(self, sequence: int, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The next tokens of a sequence; see `Sequences.extend`."""
        return self.sequences.extend(sequence, output_names, feeds)

    def forget(self, sequence: int) -> None:
        """End a sequence; see `Sequences.forget`."""
        self.sequences.forget(sequence)

    def check_outputs(self, names: Sequence[str]) -> None:
        """Refuse (TP621) names that are no outputs."""
        unknown = [name for name in names if name not in self.manifest.outputs]
        if unknown:
            raise refuse("TP621", "outputs", f"{', '.join(unknown)} is no output of this model",
                         f"It has {', '.join(self.manifest.outputs)}")  # fmt: skip

    def close(self) -> None:
        """Nothing to end: the ranks belong to who started them."""

    def step(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """One pass of this rank's model over its own parts."""
        self.watchdog.begin_step()
        return self.model.run(values)

    def local(self, name: str, array: Array) -> Value:
        """This rank's part of the whole input `name`."""
        place = self.manifest.inputs[name].placement
        return self.model.memory.from_numpy(array if place is None else parts.cut(array, place, self.world.rank))

    def whole(self, name: str, value: Value) -> Array:
        """The whole output `name` from the parts of all ranks."""
        place = self.manifest.outputs[name].placement
        if place is None:
            return self.model.memory.to_numpy(value)
        mine = self.model.memory.view(value)
        self.watchdog.waits(f"gathering output '{name}'")
        made = parts.join(self.world, mine, place)
        self.watchdog.goes_on()
        return made

    def same(self, array: Array) -> Array:
        """Rank 0's `array`, so that no rank goes its own way over a rounding difference."""
        self.watchdog.waits("the choice of the next tokens")
        self.world.broadcast(array)
        self.watchdog.goes_on()
        return array
