"""Engines of all ranks of a bundle: all of them or none, and bundle.json names only what is there.

Where ranks hand on a timing cache they are built one after another, for builds that share a warm one crash (fault K10).
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tpcompile.bundle.manifest import DIALECTS, FILE_NAME, EngineEntry, Manifest, ShapeRange
from tpcompile.bundle.write import sync
from tpcompile.errors import Fault, Refused
from tpcompile.targets.build_engine import Job
from tpcompile.targets.profiles import ROOMS, Wishes, check_wishes
from tpcompile.targets.rank_builds import CHILD, Made, Progress, builds_at_a_time, run_builds
from tpcompile.targets.tensorrt import Library

HIDDEN = ".engine-"
"""How names of everything begin that a build leaves in the folder until it is done."""


@dataclass(frozen=True)
class BuildRequest:
    """What to build.

    Attributes:
        wishes: sizes and profiles.
        boundary: let nothing be fused across collectives.
        timeout_s: how long a rank's build may take.
    """

    library: Library
    wishes: Wishes
    boundary: bool = False
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class Engines:
    """The engines of a bundle: its new manifest, what came of each rank, and what is worth telling."""

    manifest: Manifest
    made: tuple[Made, ...]
    notes: tuple[str, ...]


def build_engines(
    folder: Path,
    manifest: Manifest,
    request: BuildRequest,
    progress: Progress | None = None,
    child: Sequence[str] = CHILD,
) -> Engines:
    """Build an engine per rank into a bundle and write it down.

    Engines of the same library are replaced, those of the other stay. A failure leaves the bundle as it was.

    Args:
        folder: the bundle, whose lock the caller holds.
        progress: told per rank of its stage.
        child: the command that builds one engine (tests give others).

    Raises:
        Refused: TP706 to TP711, and what lowering refuses: of all ranks at once; TP714 collectives of another dialect.
    """
    require_dialect(manifest.dialect)
    check_wishes(manifest, request.wishes)
    folder = folder.absolute()
    remove_abandoned(folder)
    hidden = f"{HIDDEN}{secrets.token_hex(4)}"
    try:
        jobs = [_job(folder, manifest, request, rank, hidden) for rank in range(manifest.world_size)]
        at_a_time = builds_at_a_time(manifest, request.library)
        made = run_builds(jobs, request.timeout_s, at_a_time, progress, child)
        _check_alike(made)
        complete = _publish(folder, manifest, jobs, [found.entry for found in made])
        return Engines(complete, tuple(made), tuple(_notes(made)))
    finally:
        remove_abandoned(folder)


def require_dialect(dialect: str) -> None:
    """Refuse (TP714) collectives that TensorRT does not read."""
    if dialect != DIALECTS[0]:
        fact = "its collectives are those of ONNX Runtime, which TensorRT does not read"
        raise Refused(Fault("TP714", f"--dialect {dialect}", fact, "Compile without --dialect to build engines"))


def remove_abandoned(folder: Path) -> None:
    """Remove what a build left in the folder, this one or one that was killed."""
    for path in folder.glob(f"{HIDDEN}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _job(folder: Path, manifest: Manifest, request: BuildRequest, rank: int, hidden: str) -> Job:
    profiles = [{name: _lists(sizes) for name, sizes in profile.items()} for profile in request.wishes.profiles]
    return Job(
        str(folder), rank, request.library.option, f"{hidden}-{rank}", f"{hidden}-{rank}.engine",
        f"{hidden}.timing" if request.library.has_timing_cache else "",
        dict(request.wishes.sizes), profiles, request.boundary, os.getpid(),
    )  # fmt: skip


def _lists(sizes: ShapeRange) -> dict[str, list[int]]:
    return {end: list(shape) for end, shape in asdict(sizes).items()}


def _check_alike(made: Sequence[Made]) -> None:
    """Refuse (TP712) ranks whose engines are for different lengths, hold other collectives, or differ in version."""
    for what, found in (
        ("collectives", [rank.entry.collectives for rank in made]),
        ("lengths", [rank.room for rank in made]),
        ("versions", [rank.entry.version for rank in made]),
    ):
        if len(set(found)) > 1:
            fact = f"ranks differ in {what}: {', '.join(map(str, found))}"
            raise Refused(Fault("TP712", "engines", fact, "Give --profile or --sizes that fit all; else report this"))


def _notes(made: Sequence[Made]) -> Iterator[str]:
    """What a user should know of engines that were built."""
    profiles = made[0].entry.profiles
    if made[0].room < ROOMS[0] and profiles:
        name, sizes = next(iter(profiles[0].items()))
        most = f"{name} {list(sizes.max)}"
        yield f"the model has no room for longer inputs: engines take at most {most} (see --profile)"
    for misfit in dict.fromkeys(text for rank in made for text in rank.misfits):
        yield f"shapes at the ends of a profile do not go together: {misfit}"


def _publish(folder: Path, manifest: Manifest, jobs: Sequence[Job], entries: Sequence[EngineEntry]) -> Manifest:
    """Put finished engines in their places. bundle.json never names an engine that is not there as it says."""
    without = [tuple(held for held in rank.engines if held.library != entry.library)
               for rank, entry in zip(manifest.ranks, entries, strict=True)]  # fmt: skip
    kept = replace(
        manifest, ranks=tuple(replace(rank, engines=held) for rank, held in zip(manifest.ranks, without, strict=True))
    )
    complete = replace(
        manifest,
        ranks=tuple(
            replace(rank, engines=(*held, entry))
            for rank, held, entry in zip(manifest.ranks, without, entries, strict=True)
        ),
    )
    for job in jobs:
        sync(folder / job.engine)
    if kept != manifest:
        _replace_manifest(folder, kept)
    for job, entry in zip(jobs, entries, strict=True):
        (folder / job.engine).replace(folder / entry.file)
    _replace_manifest(folder, complete)
    return complete


def _replace_manifest(folder: Path, manifest: Manifest) -> None:
    """Write bundle.json so that it is the old one or the new one at any time."""
    with tempfile.TemporaryDirectory(prefix=HIDDEN, dir=folder) as beside:
        written = manifest.write(beside)
        sync(written)
        written.replace(folder / FILE_NAME)
    sync(folder)
