"""What a rank computes with, an engine, CUDA segments or the CPU: the best that all ranks can, or the one asked for.

What stands in the way of a backend is found before anything is loaded, in the order of what it costs to look: a bundle
without engines on a machine without GPUs is told apart without importing a GPU library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tpcompile.bundle.manifest import EngineEntry, Manifest
from tpcompile.errors import Fault, RankFailed, Refused
from tpcompile.run.agreement import gathered, together
from tpcompile.run.mpi import World
from tpcompile.run.watchdog import Watchdog
from tpcompile.targets.tensorrt import LIBRARIES

if TYPE_CHECKING:
    from tpcompile.run.cuda import Gpu

AUTO, ENGINE, CUDA, CPU = "auto", "engine", "cuda", "cpu"
BACKENDS = (AUTO, ENGINE, CUDA, CPU)
INSTALL = {library.module: library.install for library in LIBRARIES}
SAME_VERSIONS = "Install the same versions on all machines"


@dataclass(frozen=True)
class Backend:
    """What computes. `library` is the module of the engines; `remarks` say why it is no better one, and what is odd."""

    name: str
    library: str = ""
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """For people: cpu (no engine: …; no cuda: …)."""
        what = f"{self.name} ({self.library})" if self.library else self.name
        return f"{what} ({'; '.join(self.remarks)})" if self.remarks else what


@dataclass(frozen=True)
class Chosen:
    """The backend that all ranks use, and what this rank has for it: its GPU, its engine."""

    backend: Backend
    gpu: Gpu | None = None
    engine: EngineEntry | None = None


def choose(wanted: str, manifest: Manifest, world: World, watchdog: Watchdog, *, dumps: bool) -> Chosen:
    """Find out together with all ranks; `dumps`: values from within the model are asked for.

    Raises:
        Refused: TP650 the one that is `wanted` cannot run here; TP651 two ranks have one GPU; TP652 ranks differ in the
            versions of what they run.
    """
    looks = _Look(manifest, world, watchdog, dumps)
    libraries = list(dict.fromkeys(engine.library for entry in manifest.ranks for engine in entry.engines))
    candidates = [(ENGINE, library) for library in libraries or [""]] + [(CUDA, ""), (CPU, "")]
    asked = [found for found in candidates if wanted in (AUTO, found[0])]
    remarks: list[str] = []
    faults: list[Fault] = []
    for name, library in asked:
        look = partial(looks.at, name, library)
        _, answers = together(world, watchdog, f"looking for backend {name}", look, lambda found: found)
        found = gathered([answer["faults"] for answer in answers]) or list(_disagreement(answers))
        if not found:
            used = {answer["gpu"]["uuid"] for answer in answers if answer["gpu"] is not None}
            if used and len(used) < world.size:
                remarks.append(f"{world.size} ranks share {len(used)} GPU{'s' if len(used) > 1 else ''}")
            backend = Backend(name, library, tuple(remarks))
            return Chosen(backend, looks.gpu if name != CPU else None, looks.engine(library))
        remarks.append(f"no {Backend(name, library)}: {'; '.join(map(_reason, found))}")
        faults += found
    raise Refused(*faults)


def _reason(fault: Fault) -> str:
    """A fault as a reason among others: the place only where it names ranks."""
    return f"{fault.where.partition(':')[0]} {fault.fact}" if fault.where.startswith("rank") else fault.fact


def _disagreement(answers: Sequence[dict[str, Any]]) -> Iterator[Fault]:
    """What stands in the way between ranks that could each run alone: TP651, TP652."""
    first = answers[0]
    for rank, answer in enumerate(answers):
        for name, version in first["versions"].items():
            if answer["versions"].get(name) != version:
                theirs = answer["versions"].get(name)
                yield Fault("TP652", f"rank {rank}", f"runs {name} {theirs}, and rank 0 {version}", SAME_VERSIONS)
    if first["gpu"] is not None and "NCCL" in first["versions"]:  # without, ranks may share what they like
        from tpcompile.run.cuda import check_distinct
        from tpcompile.run.nccl import shares_gpus

        yield from check_distinct([answer["gpu"] for answer in answers], shares_gpus())


class _Look:
    """What this rank finds; `gpu` is there once a backend needed one and nothing cheaper stood in its way."""

    def __init__(self, manifest: Manifest, world: World, watchdog: Watchdog, dumps: bool) -> None:
        self.manifest, self.world, self.watchdog, self.dumps = manifest, world, watchdog, dumps
        self.gpu: Gpu | None = None
        self.versions: dict[str, str] = {}

    def engine(self, library: str) -> EngineEntry | None:
        """This rank's engine of `library`."""
        engines = self.manifest.ranks[self.world.rank].engines
        return next((engine for engine in engines if engine.library == library), None)

    def at(self, name: str, library: str) -> dict[str, Any]:
        """What stands in the way of a backend here, as JSON, and what must fit between ranks."""
        if name == CPU:
            return {"faults": [], "versions": {}, "gpu": None}
        self.versions = {}
        try:
            obstacle = next(self._engine(library) if name == ENGINE else self._cuda(), None)
            faults = [] if obstacle is None else [["TP650", f"--backend {name}", *obstacle]]
        except RankFailed as error:  # a GPU that is there and does not work
            faults = [[fault.code, fault.where, fault.fact, fault.remedy] for fault in error.faults]
        gpu = None if faults or self.gpu is None else self.gpu.identity()
        return {"faults": faults, "versions": {} if faults else self.versions, "gpu": gpu}

    def _engine(self, library: str) -> Iterator[tuple[str, str]]:
        """What stands in the way of an engine, as fact and remedy."""
        entry = self.engine(library)
        if entry is None:
            yield "the bundle holds no engines", "`tpcompile engine BUNDLE` builds them from the bundle as it is"
            return
        if self.dumps:
            yield "an engine shows no values from within", "Use --dump with --backend cuda or cpu"
        try:
            version = str(importlib.import_module(library).__version__)
        except Exception as error:  # its libraries may be missing or broken
            yield f"the Python module {library} cannot be loaded ({error})", f"Run `{INSTALL[library]}`"
            return
        if version != entry.version:
            yield (
                f"the engines are for {library} {entry.version}, and {version} is installed",
                "Engines run on the version that built them: install that one, or build them again",
            )
        self.versions[library] = version
        yield from self._gpu(needs_nccl=entry.collectives > 0)
        if self.gpu is not None:
            mine, made_for = self.gpu.identity(), [part.strip() for part in entry.compute_capability.split(",")]
            if mine["capability"] not in made_for:
                yield (
                    f"the engines are for compute capability {entry.compute_capability}, and {mine['name']} has "
                    f"{mine['capability']}", "Build the engines for this GPU"
                )  # fmt: skip

    def _cuda(self) -> Iterator[tuple[str, str]]:
        """What stands in the way of CUDA segments."""
        from tpcompile.run import cuda_segments

        lacking = cuda_segments.why_no_provider()
        if lacking is not None:
            yield lacking, "`tpcompile doctor` shows what is installed"
        yield from self._gpu(needs_nccl=bool(self.manifest.collectives))
        lacking = None if self.gpu is None else cuda_segments.why_not_started(self.gpu)
        if lacking is not None:
            yield lacking, "Install what onnxruntime-gpu needs (CUDA and cuDNN of its major versions)"

    def _gpu(self, needs_nccl: bool) -> Iterator[tuple[str, str]]:
        """What stands in the way of a GPU and NCCL; chooses the GPU where nothing does."""
        from tpcompile.run import cuda, nccl

        checks: list[Callable[[], str | None]] = [cuda.why_no_gpu]
        checks += [nccl.why_no_nccl] if needs_nccl and self.world.size > 1 else []
        for check in checks:
            lacking = check()
            if lacking is not None:
                yield lacking, "`tpcompile doctor` shows what is installed"
        self.gpu = self.gpu or cuda.Gpu(self.world.local_rank, self.watchdog)
        self.versions["the CUDA driver"] = cuda.driver_version()
        if needs_nccl and self.world.size > 1:
            self.versions["NCCL"] = nccl.version()
