"""One rank of a bundle: loads its part, agrees with the others that all parts belong together, and runs it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort  # type: ignore[import-untyped]

from tpcompile.bundle.manifest import FILE_NAME, Manifest
from tpcompile.errors import Fault, Refused, TpcompileError, refuse
from tpcompile.run import decode, parts, tensors
from tpcompile.run.dump import Dump
from tpcompile.run.launch import wrong_rank_count
from tpcompile.run.mpi import World, start
from tpcompile.run.segments import SegmentRunner
from tpcompile.run.split import Choice, Exchange, Stage, collectives
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
) -> RankRunner:
    """Load this rank's part of the bundle; all ranks call it together, and all return or all raise the same.

    `dump` is a pattern of names: the runner keeps copies of these values (`RankRunner.dump`).

    Raises:
        Refused: TP607 another number of ranks than the bundle is for; TP608 files of different compiles; what any
            rank refused while loading.
    """
    world = world or start()
    watchdog = Watchdog(world, timeout_s, load_timeout_s)
    watchdog.waits("the start", loading=True)
    watchdog.board = Board(world)
    watchdog.goes_on()
    loaded: tuple[Manifest, SegmentRunner] | None = None
    failure: TpcompileError | None = None
    try:
        loaded = _load_part(folder, world, watchdog, prepack, dump)
    except TpcompileError as error:
        failure = error
    faults = [] if failure is None else [[f.code, f.where, f.fact, f.remedy] for f in failure.faults]
    identity = None if loaded is None else _identity(folder, loaded[1].stages)
    watchdog.waits("loading", loading=True)
    said = world.exchange([faults, identity])
    if any(found for found, _ in said):
        raise Refused(*_gathered([found for found, _ in said]))
    _check_same([found for _, found in said])
    assert loaded is not None
    world.join_groups(list(collectives(loaded[1].stages)))
    watchdog.goes_on()
    return RankRunner(loaded[0], loaded[1], world, watchdog)


def _load_part(
    folder: Path, world: World, watchdog: Watchdog, prepack: bool, dump: str | None
) -> tuple[Manifest, SegmentRunner]:
    manifest = Manifest.read(folder, ranks=[])
    if manifest.world_size != world.size:
        raise wrong_rank_count(folder, manifest.world_size, world.size)
    manifest = Manifest.read(folder, ranks=[world.rank])
    entry = manifest.ranks[world.rank]
    digest = hashlib.sha256((folder / entry.model).read_bytes()).hexdigest()
    if digest != entry.model_sha256:
        raise refuse("TP608", str(folder / entry.model), "is not the file that bundle.json was written with",
                     "Files of different compiles are mixed: copy the whole bundle again")  # fmt: skip
    asked = None if dump is None else Dump(dump, manifest)
    segments = SegmentRunner(folder, entry, world, watchdog, prepack=prepack, dump=asked)
    differs = _contradiction(manifest, segments, world.rank)
    if differs:
        raise refuse("TP608", str(folder / FILE_NAME), differs,
                     "It was changed, or belongs to another compile: copy the whole bundle again")  # fmt: skip
    return manifest, segments


def _contradiction(manifest: Manifest, segments: SegmentRunner, rank: int) -> str | None:
    """Where bundle.json says something else than the model of this rank."""
    for side, listed, found in (
        ("inputs", manifest.inputs, segments.inputs),
        ("outputs", manifest.outputs, segments.outputs),
    ):
        if list(listed) != list(found):
            return f"lists {side} {', '.join(listed)}, and the model of rank {rank} has {', '.join(found)}"
    calls = list(collectives(segments.stages))
    entries = manifest.collectives
    if len(calls) != len(entries):
        return f"lists {len(entries)} collectives, and the model of rank {rank} runs {len(calls)}"
    for call, entry in zip(calls, entries, strict=True):
        if call.op != entry.op or (call.groups or ()) not in (entry.groups or ((),)):
            theirs = f"{call} in group {list(call.groups) or 'of all'}"
            return f"lists collective {entry.index} as {entry.op} in groups {_shown(entry.groups)}; it is {theirs}"
    return None


def _shown(groups: Sequence[Sequence[int]]) -> str:
    return " ".join(str(list(group)) for group in groups) or "of all"


def _identity(folder: Path, stages: Sequence[Stage]) -> dict[str, Any]:
    """What must fit between ranks: the compile they come from, and the collectives they will run in order."""
    compiled = hashlib.sha256((folder / FILE_NAME).read_bytes()).hexdigest()
    return {"compile": compiled, "collectives": list(_calls(stages))}


def _calls(stages: Sequence[Stage]) -> Iterator[tuple[str, list[int], int]]:
    """What the ranks do together, as name, group and root; each branch of an If between marks of its own."""
    for stage in stages:
        if isinstance(stage, Exchange):
            yield str(stage.collective), list(stage.collective.groups), stage.collective.root
        elif isinstance(stage, Choice):
            yield f"the then_branch of If {stage.name}", [], -1
            yield from _calls(stage.then_branch.stages)
            yield f"the else_branch of If {stage.name}", [], -1
            yield from _calls(stage.else_branch.stages)
            yield f"the end of If {stage.name}", [], -1


def _gathered(said: list[list[list[str]]]) -> list[Fault]:
    """The faults of all ranks, each once, with the ranks that have it (none named where all do)."""
    owners: dict[tuple[str, ...], list[int]] = {}
    for rank, faults in enumerate(said):
        for fault in faults:
            owners.setdefault(tuple(fault), []).append(rank)
    found = []
    for (code, where, fact, remedy), ranks in owners.items():
        name = f"rank {', '.join(map(str, ranks))}: "
        found.append(Fault(code, where if len(ranks) == len(said) else name + where, fact, remedy))
    return found


def _check_same(said: list[dict[str, Any]]) -> None:
    """Refuse (TP608) ranks that come from different compiles or would meet in different collectives."""
    remedy = "All ranks need files of one compile: copy the whole bundle to every machine again"
    for rank, other in enumerate(said):
        ours, theirs = said[0]["collectives"], other["collectives"]
        kinds = [[name for name, *_ in found] for found in (ours, theirs)]
        if kinds[0] != kinds[1]:
            at = next((i for i, (a, b) in enumerate(zip(*kinds, strict=False)) if a != b), min(map(len, kinds)))
            a, b = ((found[at] if at < len(found) else "no more") for found in kinds)
            raise refuse("TP608", f"rank {rank}", f"collective {at} is {b}, on rank 0 {a}", remedy)
        if other["compile"] != said[0]["compile"]:
            raise refuse("TP608", f"rank {rank}", "its bundle.json is of another compile than that of rank 0", remedy)
    for rank, other in enumerate(said):
        theirs = other["collectives"]
        for index, (name, group, _) in enumerate(theirs):
            members = group or range(len(said))
            known = [said[member]["collectives"][index] for member in members if 0 <= member < len(said)]
            if rank not in members or len(known) < len(members) or any(call != theirs[index] for call in known):
                fact = f"collective {index}, {name}: the ranks of its group {list(members)} do not agree on it"
                raise refuse("TP608", f"rank {rank}", fact, remedy)


class RankRunner:
    """A loaded rank. Every call is made by all ranks together, with the same whole inputs."""

    def __init__(self, manifest: Manifest, segments: SegmentRunner, world: World, watchdog: Watchdog) -> None:
        self.manifest, self.segments, self.world, self.watchdog = manifest, segments, world, watchdog

    def run(self, output_names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Whole outputs by name, on every rank, for whole inputs."""
        parts.check_feeds(self.manifest, feeds)
        unknown = [name for name in output_names if name not in self.manifest.outputs]
        if unknown:
            raise refuse("TP621", "outputs", f"{', '.join(unknown)} is no output of this model",
                         f"It has {', '.join(self.manifest.outputs)}")  # fmt: skip
        found = self.step({name: self.local(name, array) for name, array in feeds.items()})
        return {name: self.whole(name, found[name]) for name in output_names}

    def decode(self, feeds: Mapping[str, Array], steps: int) -> dict[str, Array]:
        """Greedy decoding; see `decode.greedy`."""
        return decode.greedy(self, feeds, steps)

    def close(self) -> None:
        """Nothing to end: the ranks belong to who started them."""

    def step(self, values: Mapping[str, ort.OrtValue]) -> dict[str, ort.OrtValue]:
        """One pass of this rank's model over its own parts."""
        self.watchdog.begin_step()
        return self.segments.run(values)

    def local(self, name: str, array: Array) -> ort.OrtValue:
        """This rank's part of the whole input `name`."""
        place = self.manifest.inputs[name].placement
        return tensors.from_numpy(array if place is None else parts.cut(array, place, self.world.rank))

    def whole(self, name: str, value: ort.OrtValue) -> Array:
        """The whole output `name` from the parts of all ranks."""
        place = self.manifest.outputs[name].placement
        if place is None:
            return tensors.to_numpy(value)
        self.watchdog.waits(f"gathering output '{name}'")
        made = parts.join(self.world, tensors.view(value), place)
        self.watchdog.goes_on()
        return made

    def same(self, array: Array) -> Array:
        """Rank 0's `array`, so that no rank goes its own way over a rounding difference."""
        self.watchdog.waits("the choice of the next tokens")
        self.world.broadcast(array)
        self.watchdog.goes_on()
        return array
