"""Engines of all ranks of a bundle: a process each, all their faults together, all of the engines or none.

A process that dies takes nothing along: its end is reported with its code, and with the node it was at. Processes end
with this one, however it ends. As many run at a time as cores and memory allow; where ranks hand on a timing cache,
one after another, for builds that share a warm one crash (FAULTS K10).
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tpcompile.bundle.manifest import DIALECTS, FILE_NAME, EngineEntry, Manifest, ShapeRange
from tpcompile.bundle.write import sync
from tpcompile.errors import Fault, Refused
from tpcompile.targets.build_engine import STAGES, Job
from tpcompile.targets.profiles import ENDS, ROOMS, Wishes, check_wishes
from tpcompile.targets.tensorrt import Library

CHILD = (sys.executable, "-m", "tpcompile.targets.build_engine")
HIDDEN = ".engine-"
"""How names of everything begin that a build leaves in the folder until it is done."""
LIBRARY_BYTES = 1 << 30
"""What a build takes beside the weights."""
COPIES = 4
"""How many times a build may hold the weights: mapped, read, rearranged, serialised."""
LAST_WORDS = 300
Progress = Callable[[str, int, int], None]


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
class Made:
    """What came of one rank's build.

    Attributes:
        entry: what bundle.json says of it.
        layers: how many layers the parsed network has.
        num_ranks: over how many ranks its collectives go, each number once.
        lowered: nodes that were lowered, by operator.
        room: how many tokens its profiles were made for; see `Candidate`.
        misfits: what the greatest shapes of its profiles lack, in the library's words.
        seconds: how long it took.
    """

    entry: EngineEntry
    layers: int
    num_ranks: tuple[int, ...]
    lowered: Mapping[str, int]
    room: int
    misfits: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Engines:
    """The engines of a bundle: its new manifest, what came of each rank, and what is worth telling."""

    manifest: Manifest
    made: tuple[Made, ...]
    notes: tuple[str, ...]


@dataclass
class Build:
    """A rank's build under way: what it said last, and in the end what it made or what was wrong."""

    rank: int
    process: subprocess.Popen[bytes]
    line: IO[bytes]
    words: Path
    started: float = field(default_factory=time.monotonic)
    stage: str = "starting"
    node: str = ""
    heard: bytes = b""
    made: Made | None = None
    faults: list[Fault] = field(default_factory=list)
    late: bool = False

    def hear(self, data: bytes) -> None:
        """Take in what came over the line."""
        *lines, self.heard = (self.heard + data).split(b"\n")
        for message in map(json.loads, lines):
            self.stage = message.get("stage", self.stage)
            self.node = "" if "stage" in message else message.get("node", self.node)
            self.made = _made(message["made"]) if "made" in message else self.made
            self.faults += [Fault(**fault) for fault in message.get("faults", ())]

    def end(self, timeout_s: float) -> list[Fault]:
        """Collect the process; what was wrong, its own end included."""
        code = self.process.wait()
        self.line.close()
        said = " ".join(self.words.read_text(errors="replace").split())[-LAST_WORDS:]
        where = f"node {self.node}" if self.node else ""
        at = f"while {self.stage}"
        if self.late:
            remedy = "Give it more with --engine-timeout SECONDS, or find out what it does"
            return [Fault("TP711", where, f"building took more than {timeout_s:g} s, {at}", remedy)]
        if self.faults or (self.made is not None and code == 0):
            return self.faults
        return [_death(code, where, at, said)]


def _death(code: int, where: str, at: str, said: str) -> Fault:
    """What it means that a build's process ended without a result."""
    known = {number.value: number.name for number in signal.Signals}
    last = f"; its last words: {said}" if said else ""
    if -code == signal.SIGKILL:
        fact = f"the process that built it was killed by SIGKILL, {at}"
        return Fault(
            "TP710", where, fact, "The system does so when memory runs out: free some, or build on another machine"
        )
    if code >= 0:
        fact = f"the process that built it ended with exit code {code}, {at}{last}"
        return Fault("TP710", where, fact, "Please report this, with the model")
    fact = f"the process that built it was ended by {known.get(-code, f'signal {-code}')}, {at}{last}"
    remedy = "This is a crash inside TensorRT: try another version of it, or run the bundle without an engine"
    return Fault("TP710", where, fact, remedy)


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
        made = _run_all(jobs, request, _parallel(manifest, request.library), progress, child)
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


def _parallel(manifest: Manifest, library: Library) -> int:
    """How many builds may run at one time."""
    if library.has_timing_cache:
        return 1
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    largest = max(sum(data.bytes for data in entry.data) for entry in manifest.ranks)
    return max(1, min(cores, manifest.world_size, free_memory() // (LIBRARY_BYTES + COPIES * largest)))


def free_memory() -> int:
    """Bytes of memory that can be had without swapping."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _run_all(
    jobs: Sequence[Job], request: BuildRequest, parallel: int, progress: Progress | None, child: Sequence[str]
) -> list[Made]:
    """Run all jobs, some at a time; what each made, by rank. Raises all faults of all ranks together."""
    waiting, running = deque(jobs), dict[int, Build]()
    made: dict[int, Made] = {}
    faults: dict[int, list[Fault]] = {}
    with selectors.DefaultSelector() as lines:
        try:
            while waiting or running:
                while waiting and len(running) < parallel:
                    job = waiting.popleft()
                    running[job.rank] = build = _start(job, child)
                    lines.register(build.line, selectors.EVENT_READ, build)
                for key, _ in lines.select(timeout=0.2):
                    build = key.data
                    data = os.read(build.line.fileno(), 1 << 16)
                    before = build.stage
                    build.hear(data)
                    if not data:
                        lines.unregister(build.line)
                        del running[build.rank]
                        found = build.end(request.timeout_s)
                        build.stage = "failed" if found else "done"
                        if found:
                            faults[build.rank] = found
                        elif build.made is not None:
                            made[build.rank] = build.made
                    if progress is not None and build.stage != before:
                        progress(f"engine of rank {build.rank}: {build.stage}", _step(build.stage), len(STAGES))
                _end_late(running.values(), request.timeout_s)
        finally:
            for build in running.values():
                build.process.kill()
                build.process.wait()
                build.line.close()
    if faults:
        raise Refused(*_together(faults))
    return [made[rank] for rank in range(len(jobs))]


def _step(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def _end_late(running: Any, timeout_s: float) -> None:
    for build in running:
        if time.monotonic() - build.started > timeout_s and not build.late:
            build.late = True
            build.process.kill()  # its line ends, and it is collected as others are


def _start(job: Job, child: Sequence[str]) -> Build:
    """Start a build; interrupts are ours to pass on, so it stands in a session of its own."""
    ours, theirs = os.pipe()
    words = Path(job.folder) / f"{job.hidden}.words"
    try:
        with words.open("wb") as stderr:
            process = subprocess.Popen(
                [*child, str(theirs)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr,
                pass_fds=[theirs], start_new_session=True, env=_environment(),
            )  # fmt: skip
    finally:
        os.close(theirs)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(asdict(job)).encode())
    return Build(job.rank, process, os.fdopen(ours, "rb", buffering=0), words)


def _environment() -> dict[str, str]:
    """This environment; children find this very package, also where it is used from a checkout."""
    root = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def _together(faults: dict[int, list[Fault]]) -> Iterator[Fault]:
    """Faults of all ranks, those that several ranks have said once."""
    ranks: dict[Fault, list[int]] = {}
    for rank, found in sorted(faults.items()):
        for fault in found:
            ranks.setdefault(fault, []).append(rank)
    for fault, holders in ranks.items():
        who = f"rank{'s' if len(holders) > 1 else ''} {', '.join(map(str, holders))}"
        yield replace(fault, where=f"{who}, {fault.where}" if fault.where else who)


def _made(told: dict[str, Any]) -> Made:
    """What a child told of the engine it made."""
    entry = dict(told["entry"])
    profiles = tuple(
        {name: ShapeRange(*(tuple(shape[end]) for end in ENDS)) for name, shape in profile.items()}
        for profile in entry.pop("profiles")
    )
    return Made(
        EngineEntry(**entry, profiles=profiles), told["layers"], tuple(told["num_ranks"]), told["lowered"],
        told["room"], tuple(told["misfits"]), told["seconds"],
    )  # fmt: skip


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
        yield f"the greatest shapes of a profile do not go together: {misfit}"


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
