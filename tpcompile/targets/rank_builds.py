"""Builds of ranks' engines, each in a process of its own.

A process that dies takes nothing along: its end is reported with its code, and with the node it was at. Processes end
with this one, however it ends. As many run at a time as cores and memory allow.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tpcompile.bundle.manifest import EngineEntry, Manifest, ShapeRange
from tpcompile.errors import Fault, Refused
from tpcompile.targets.build_engine import STAGES, Job
from tpcompile.targets.profiles import ENDS
from tpcompile.targets.tensorrt import Library

CHILD = (sys.executable, "-m", "tpcompile.targets.build_engine")
LIBRARY_BYTES = 1 << 30
"""What a build takes beside the weights."""
COPIES = 4
"""How many times a build may hold the weights: mapped, read, rearranged, serialised."""
LAST_WORDS = 300
Progress = Callable[[str, int, int], None]


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


def builds_at_a_time(manifest: Manifest, library: Library) -> int:
    """How many builds may run at one time."""
    if library.has_timing_cache:
        return 1
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    largest = max(sum(data.bytes for data in entry.data) for entry in manifest.ranks)
    return max(1, min(cores, manifest.world_size, free_memory() // (LIBRARY_BYTES + COPIES * largest)))


def free_memory() -> int:
    """Bytes of memory that can be had without swapping, here and in the container that this may be."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024
    with suppress(OSError, ValueError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        found = min(found, max(0, limit - used))
    return found


def run_builds(
    jobs: Sequence[Job], timeout_s: float, at_a_time: int, progress: Progress | None, child: Sequence[str]
) -> list[Made]:
    """Run all jobs, some at a time; what each made, by rank.

    Raises:
        Refused: all faults of all ranks together: TP710, TP711, and those that children tell.
    """
    waiting, running = deque(jobs), dict[int, Build]()
    made: dict[int, Made] = {}
    faults: dict[int, list[Fault]] = {}
    with selectors.DefaultSelector() as lines:
        try:
            while waiting or running:
                while waiting and len(running) < at_a_time:
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
                        found = build.end(timeout_s)
                        build.stage = "failed" if found else "done"
                        if found:
                            faults[build.rank] = found
                        elif build.made is not None:
                            made[build.rank] = build.made
                    if progress is not None and build.stage != before:
                        progress(f"engine of rank {build.rank}: {build.stage}", _step(build.stage), len(STAGES))
                _end_late(running.values(), timeout_s)
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
    try:
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(asdict(job)).encode())
    except BaseException:  # interrupted before anybody knows of it
        process.kill()
        process.wait()
        raise
    return Build(job.rank, process, os.fdopen(ours, "rb", buffering=0), words)


def _environment() -> dict[str, str]:
    """This environment; a checkout that is not installed is found by children, too."""
    root = Path(__file__).parents[2]
    if "site-packages" in root.parts:
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))}


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


def _together(faults: dict[int, list[Fault]]) -> Iterator[Fault]:
    """Faults of all ranks, those that several ranks have said once."""
    ranks: dict[Fault, list[int]] = {}
    for rank, found in sorted(faults.items()):
        for fault in found:
            ranks.setdefault(fault, []).append(rank)
    for fault, holders in ranks.items():
        who = f"rank{'s' if len(holders) > 1 else ''} {', '.join(map(str, holders))}"
        yield replace(fault, where=f"{who}, {fault.where}" if fault.where else who)
