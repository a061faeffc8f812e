"""Which checks there are, how each is run within its own time, and the table of what came of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

from environment import facts, why_no_torch_gpu

ALL_S, EACH_S = 430.0, 75.0
"""Time for everything, and for one check."""
ALLOWED = {"float32": 1e-4, "float16": 2e-2}
SHARED_GPU = "NCCL_MULTI_RANK_GPU_ENABLE"
FOR_ONE_GPU = {SHARED_GPU: "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "1"}
"""Lets NCCL 2.30 and newer work between two ranks on one GPU, with little of it for each."""
Reason = Callable[[], str | None]


@dataclass(frozen=True)
class Check:
    """One row: `words` are the arguments of one_check.py, `why_not` says why it cannot run here.

    `ends_with`: what the ranks must say where the check is that they end with an error. Where the first word is
    "engine", the words are those of `tpcompile` instead, and that it builds them is the check.
    """

    name: str
    backend: str
    tp: int
    words: tuple[str, ...]
    why_not: Reason
    allowed: float = 0.0
    ends_with: str = ""


@dataclass
class Row:
    """What came of a check: `state` is "passed", "FAILED" or "could not run"."""

    check: Check
    state: str
    found: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def cells(self) -> list[str]:
        error = f"{self.found['error']:.1e} (of {self.check.allowed:.0e})" if "error" in self.found else ""
        ms = f"{self.found['ms']:.2f} a {self.found['per']}" if "ms" in self.found else ""
        note = self.note or self.found.get("note", "")
        return [self.check.name, self.check.backend, str(self.check.tp), self.state, error, ms,
                str(self.found.get("collectives", "")), note.replace("|", "/")]  # fmt: skip


HEAD = ["check", "computes with", "ranks", "", "error (allowed)", "ms", "collectives", "remark"]
BACKENDS = {
    "engine": "TensorRT engines + NCCL",
    "cuda": "ONNX Runtime CUDA + NCCL",
    "torch": "torch on the GPU + NCCL",
    "torch-host": "torch on the GPU, MPI through host memory",
    "torch-cpu": "torch on the CPU + MPI",
    "cpu": "ONNX Runtime on the CPU + MPI",
}


def why_no_mpi(tp: int) -> str | None:
    """Why ranks cannot meet here."""
    from tpcompile.errors import TpcompileError
    from tpcompile.run.mpirun import mpirun

    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    try:
        mpirun() if tp > 1 else None
    except TpcompileError as error:
        return error.faults[0].fact
    return None


def why_no_nccl(tp: int) -> str | None:
    """Why ranks on one GPU cannot use NCCL here."""
    from tpcompile.run import cuda, nccl

    lacking = cuda.why_no_gpu() or (nccl.why_no_nccl() if tp > 1 else None)
    if lacking or tp == 1 or len(cuda.devices()) >= tp:
        return lacking
    major, minor = map(int, nccl.version().split(".")[:2])
    if (major, minor) < nccl.SHARED_GPU_SINCE:
        return f"one GPU, and NCCL {nccl.version()} lets no two ranks share it (2.30 does)"
    return None


def why_not(backend: str, tp: int, bundle: Path | None) -> str | None:
    """What stands in the way of a backend for a bundle."""
    if backend == "cpu":
        return why_no_mpi(tp)
    if backend == "torch-cpu":
        return why_no_mpi(tp) or (None if importlib.util.find_spec("torch") else "torch is not installed")
    if backend == "engine":
        from tpcompile.bundle.manifest import Manifest

        if bundle is not None and not any(entry.engines for entry in Manifest.read(bundle).ranks):
            installed = any(importlib.util.find_spec(name) for name in ("tensorrt", "tensorrt_rtx"))
            return "the bundle holds no engines" if installed else "no TensorRT is installed, and none could travel"
    if backend == "cuda":
        from tpcompile.run.cuda_segments import why_no_provider

        lacking = why_no_provider()
        if lacking:
            return lacking
    if backend.startswith("torch"):
        lacking = why_no_torch_gpu()
        if lacking:
            return lacking
    return why_no_mpi(tp) or why_no_nccl(1 if backend == "torch-host" else tp)


def checks(root: Path) -> Iterator[Check]:
    """All of them: what needs the GPU first, should time run out."""
    yield Check("NCCL alone, known numbers", "NCCL", 2, ("nccl",), lambda: why_no_mpi(2) or why_no_nccl(2))
    entries = json.loads((root / "models" / "models.json").read_text())
    yield from engine_builds(root, entries)
    stand_in = "torch" if why_no_torch_gpu() is None else "torch-cpu"
    for backend in ("engine", "cuda", "torch", "torch-host", "cpu", "torch-cpu"):
        if backend == "torch-cpu" != stand_in:
            continue  # what it would show, the GPU has shown
        for entry in entries:
            for degree, name in entry["bundles"].items():
                tp, bundle = int(degree), root / "models" / name
                if backend == "torch-host" and tp == 1:
                    continue
                words = (entry["kind"], "--backend", backend, *_files(root, entry, bundle))
                reason = _bound(backend, tp, bundle)
                yield Check(entry["name"], BACKENDS[backend], tp, words, reason, ALLOWED[entry["dtype"]])
        if backend == stand_in:
            bundle = root / "models" / entries[0]["bundles"]["2"]
            words = ("stall", "--backend", backend, *_files(root, entries[0], bundle))
            reason = _bound(backend, 2, bundle)
            yield Check("a rank that does not come", BACKENDS[backend], 2, words, reason, ends_with="TP610")


def engine_builds(root: Path, entries: Sequence[dict[str, Any]]) -> Iterator[Check]:
    """Engines for this machine's GPU, with each library that is there."""
    for library in ("tensorrt", "tensorrt_rtx"):
        if importlib.util.find_spec(library) is not None:
            option = library.replace("_", "-")
            for entry in entries:
                for degree, name in entry["bundles"].items():
                    words = ("engine", str(root / "models" / name), "--engine", option)
                    yield Check(f"engines of {entry['name']}", library, int(degree), words, lambda: None)


def _bound(backend: str, tp: int, bundle: Path) -> Reason:
    return lambda: why_not(backend, tp, bundle)


def _files(root: Path, entry: dict[str, Any], bundle: Path) -> tuple[str, ...]:
    return ("--bundle", str(bundle), "--reference", str(root / "models" / entry["reference"]))


def outcome(check: Check, left_s: float) -> Row:
    """Run a check, in processes of its own, and end them when its time is up."""
    reason = check.why_not()
    if reason is not None:
        return Row(check, "could not run", note=reason)
    limit_s = min(EACH_S, left_s)
    if limit_s < 5:
        return Row(check, "could not run", note=f"the {ALL_S:g} s for all checks are over")
    if check.words[0] == "engine":
        started = time.monotonic()
        code, said = ranks([sys.executable, "-m", "tpcompile.cli", *check.words], 1, limit_s)
        note = f"built in {time.monotonic() - started:.0f} s" if code == 0 else _words(code, said, limit_s)
        return Row(check, "passed" if code == 0 else "FAILED", note=note)
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "found.json")
        command = [sys.executable, str(Path(__file__).with_name("one_check.py")), check.words[0], str(into)]
        code, said = ranks([*command, *check.words[1:]], check.tp, limit_s)
        found = json.loads(into.read_text()) if into.exists() else {}
    if check.ends_with:
        named = next((line for line in said if check.ends_with in line), "")
        good = bool(named) and code not in (0, None)
        return Row(check, "passed" if good else "FAILED", note=named or _words(code, said, limit_s))
    if code != 0 or not found:
        return Row(check, "FAILED", note=_words(code, said, limit_s))
    return Row(check, "passed" if found["error"] <= check.allowed else "FAILED", found)


def ranks(command: Sequence[str], tp: int, limit_s: float) -> tuple[int | None, list[str]]:
    """Exit code (None: time was up) and the lines said by `tp` processes of `command`."""
    from tpcompile.run.mpirun import Ranks, environment

    os.environ.update(FOR_ONE_GPU)
    if tp == 1:
        try:
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None, []
        return done.returncode, done.stderr.splitlines()
    started = Ranks(command, tp, aloud=False)
    until = time.monotonic() + limit_s
    try:
        while not started.ended() and time.monotonic() < until:
            time.sleep(0.05)
        code = started.mpirun.poll()
    finally:
        started.end()
    return code, [*started.messages.last_words(), *started.messages.said]


def _words(code: int | None, said: Sequence[str], limit_s: float) -> str:
    if code is None:
        return f"did not end within {limit_s:.0f} s"
    spoken = [line for line in said if line.startswith("[rank ")] or [line for line in said if line.strip()][-1:]
    return f"exit code {code}: {' '.join(spoken[:2])[:400]}"


def run(root: Path, into: Path | None, only: str) -> int:
    """Print what is installed and the table; returns the exit code."""
    started = time.monotonic()
    found = list(facts())
    for what, text in found:
        print(f"{what:<18} {text}", flush=True)
    print()
    rows = []
    for check in checks(root):
        if not fnmatchcase(f"{check.name} {check.backend} {check.tp}", only):
            continue
        row = outcome(check, ALL_S - (time.monotonic() - started))
        rows.append(row)
        print(f"{time.monotonic() - started:5.0f} s  {'  '.join(filter(None, row.cells()))}", flush=True)
    text = page(found, rows)
    print(f"\n{text}", end="")
    if into is not None:
        into.write_text(text, encoding="utf-8")
    return 1 if any(row.state == "FAILED" for row in rows) else 0


def page(found: Sequence[tuple[str, str]], rows: Sequence[Row]) -> str:
    """docs/gpu_results.md."""
    on_gpu = [row for row in rows if row.state == "passed" and row.check.backend in _ON_GPU]
    counts = ", ".join(
        f"{sum(row.state == state for row in rows)} {state}" for state in ("passed", "FAILED", "could not run")
    )
    lines = ["# What ran on a GPU", "", "Written by `tools/gpu_check run` (`tools/gpu_check pack DIR` makes the folder "
             "that it runs in). Models have random weights and a few megabytes, so times say what calls cost, not how "
             "fast a model is.", ""]  # fmt: skip
    if not on_gpu:
        lines += ["**Nothing of this ran on a GPU.** GPU code is written against the libraries' documented calls and "
                  "has not been executed.", ""]  # fmt: skip
    lines += ["| installed | |", "|---|---|", *(f"| {what} | {text.replace('|', '/')} |" for what, text in found), ""]
    lines += [f"{counts}.", "", f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    lines += [f"| {' | '.join(cells)} |" for cells in merged(rows)]
    return "\n".join(lines) + "\n"


def merged(rows: Sequence[Row]) -> Iterator[list[str]]:
    """The cells of all rows; neighbours that could not run for one reason are one row."""
    for (state, backend, note), group in groupby(rows, key=lambda row: (row.state, row.check.backend, row.note)):
        held = list(group)
        if state != "could not run":
            yield from (row.cells() for row in held)
            continue
        names = ", ".join(dict.fromkeys(row.check.name.partition(",")[0] for row in held))
        tps = ", ".join(sorted({str(row.check.tp) for row in held}))
        yield [names, backend, tps, state, "", "", "", note]


_ON_GPU = ("NCCL", *(BACKENDS[name] for name in ("engine", "cuda", "torch", "torch-host")))
