"""Build the engine of one rank, in a process of its own: `python -m tpcompile.targets.build_engine FD < JOB`.

Parsers and builders are large native libraries: what is wrong in a model may end the process they run in. So each rank
has its own, which says line by line on the file descriptor FD what it is at, and last what came of it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tpcompile.bundle.manifest import EngineEntry, Manifest, RankEntry, ShapeRange
from tpcompile.errors import Fault, Refused
from tpcompile.targets.collectives import is_collective, read_collective
from tpcompile.targets.known_sizes import leave_out_single, settle_sizes, weights_precision
from tpcompile.targets.lowering import lower
from tpcompile.targets.network import Network, Said, TimingCache, listen, require_types
from tpcompile.targets.profiles import Wishes, candidates
from tpcompile.targets.tensorrt import LIBRARIES, gpu_capability, require_collectives
from tpcompile.verify.branches import walk
from tpcompile.verify.files import open_rank

PR_SET_PDEATHSIG = 1
STAGES = ("reading", "lowering", "parsing", "building", "writing")
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """One rank's engine: what to build, with what, and under which names. `folder` is absolute; files are flat names.

    Attributes:
        hidden: how names of temporary files begin.
        engine: the file to write the engine to.
        timing_cache: a file that ranks hand on, "" where the library has no use for one.
        sizes, profiles: the user's wishes; shapes as in bundle.json.
    """

    folder: str
    rank: int
    option: str
    hidden: str
    engine: str
    timing_cache: str
    sizes: dict[str, int]
    profiles: list[dict[str, dict[str, list[int]]]]
    boundary: bool
    parent: int


def main(argv: list[str]) -> int:
    """Do the job that stands on stdin; faults are told, not raised."""
    job = Job(**json.load(sys.stdin))
    _end_with(job.parent)
    with os.fdopen(int(argv[0]), "w", buffering=1) as line:

        def tell(message: dict[str, Any]) -> None:
            line.write(json.dumps(message) + "\n")

        try:
            tell({"made": build(job, tell)})
        except Refused as refused:
            tell({"faults": [asdict(fault) for fault in refused.faults]})
        except OSError as error:
            name = Path(error.filename or job.folder).name
            fault = Fault("TP715", name, f"cannot be read or written: {error.strerror}", "Free space, or mend the disk")
            tell({"faults": [asdict(fault)]})
    return 0


def _end_with(parent: int) -> None:
    """Let this process be killed when the one that started it ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def build(job: Job, tell: Tell) -> dict[str, Any]:
    """Build and write the engine; returns what bundle.json says of it, and what else is worth telling.

    Raises:
        Refused: TP70x.
    """
    started = time.monotonic()
    folder = Path(job.folder)
    library = next(library for library in LIBRARIES if library.option == job.option)
    tell({"stage": "reading"})
    manifest = Manifest.read(folder, ranks=[job.rank])
    entry: RankEntry = manifest.ranks[job.rank]
    file = open_rank(folder / entry.model, job.rank)
    require_types(file.graph)
    settle_sizes(file)
    leave_out_single(file.graph)
    given = tuple({name: _range(shape) for name, shape in profile.items()} for profile in job.profiles)
    tell({"stage": "lowering"})
    lowered = lower(file.proto, folder, f"{job.hidden}.bin")
    model = folder / f"{job.hidden}.onnx"
    model.write_bytes(lowered.model.SerializeToString(deterministic=True))
    expected = [read_collective(node) for node in walk(lowered.model.graph) if is_collective(node)]
    precision = weights_precision(file.tensors.values())

    tell({"stage": "parsing"})
    trt = import_module(library.module)
    if expected:
        require_collectives(trt)
    said = Said()
    log = listen(trt, said, lambda name, operator: tell({"node": f"{name} ({operator})"}))
    network = Network(trt, log, said, model, lowered.left)
    network.check_collectives(expected)
    if job.boundary:
        network.keep_collectives_apart()
    tell({"stage": "building", "layers": network.layers})
    cache = TimingCache(folder / job.timing_cache) if job.timing_cache else None
    built = network.build(candidates(file, manifest, job.rank, Wishes(job.sizes, given)), cache)

    tell({"stage": "writing"})
    content = memoryview(built.engine)
    (folder / job.engine).write_bytes(content)
    made = EngineEntry(
        f"{Path(entry.model).stem}.{library.module}.engine", content.nbytes, hashlib.sha256(content).hexdigest(),
        library.module, trt.__version__, library.capabilities or gpu_capability() or "", precision, built.profiles,
        len(expected),
    )  # fmt: skip
    return {
        "entry": asdict(made),
        "layers": network.layers,
        "num_ranks": sorted({call.nb_rank for call in expected}),
        "lowered": dict(lowered.changes),
        "room": built.room,
        "misfits": list(built.misfits),
        "seconds": round(time.monotonic() - started, 2),
    }


def _range(shape: dict[str, list[int]]) -> ShapeRange:
    return ShapeRange(*(tuple(shape[end]) for end in ("min", "opt", "max")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
