"""Real ranks under mpirun on stand-ins for a GPU's libraries."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.run.gpu import fake_cuda, fake_tensorrt
from tpcompile.bundle.manifest import EngineEntry, Manifest, Profile
from tpcompile.run import arrays
from tpcompile.run.launch import run_ranks
from tpcompile.run.tensors import Array

FAKE_RANK = Path(__file__).with_name("fake_rank.py")


@dataclass
class Done:
    """How a run ended: its outputs where there are any, and what the ranks noted in the order of time."""

    code: int
    outputs: dict[str, Array]
    notes: list[dict[str, Any]]

    def order(self, rank: int = 0) -> list[str]:
        """What one rank noted, doubles in a row once."""
        told = [found["what"] for found in self.notes if found["rank"] == rank]
        return [what for at, what in enumerate(told) if not at or told[at - 1] != what]

    def times(self, what: str) -> list[int]:
        return [found["at"] for found in self.notes if found["what"] == what]


class Machine:
    """Runs bundles on `gpus` pretended GPUs, in a folder of its own for each run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch, self.runs = folder, monkeypatch, 0

    def run(
        self,
        bundle: Path,
        feeds: Mapping[str, Array],
        ranks: int,
        *options: object,
        stand_ins: str = "cuda,ort,trt",
        gpus: int = 8,
        faults: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> Done:
        """`faults` are by rank: see `fake_cuda.fault`."""
        self.runs += 1
        folder = self.folder / f"run{self.runs}"
        folder.mkdir()
        settings = {"folder": str(folder), "gpus": gpus, "faults": {str(k): v for k, v in (faults or {}).items()}}
        self.monkeypatch.setenv(fake_cuda.SETTINGS, json.dumps(settings))
        arrays.write(folder / "in.npz", feeds)
        command = [sys.executable, str(FAKE_RANK), stand_ins, str(bundle), "--inputs", str(folder / "in.npz"),
                   "--outputs", str(folder / "out.npz"), *map(str, options)]  # fmt: skip
        code = run_ranks(command, ranks)
        manifest = Manifest.read(bundle)
        dtypes = {name: entry.dtype for name, entry in manifest.outputs.items()}
        outputs = arrays.read(folder / "out.npz", dtypes) if code == 0 else {}
        return Done(code, outputs, fake_cuda.notes(folder))


def add_engines(
    bundle: Path,
    profiles: Sequence[Profile] = (),
    *,
    capability: str = "8.6, 8.9",
    version: str = fake_tensorrt.VERSION,
    library: str = "tensorrt_rtx",
) -> Path:
    """Give each rank of a bundle an engine of the stand-in, which runs the rank's own model."""
    manifest = Manifest.read(bundle)
    entries = []
    for entry in manifest.ranks:
        plan = fake_tensorrt.HEADER + str((bundle / entry.model).resolve()).encode()
        name = f"rank{entry.rank}.engine"
        (bundle / name).write_bytes(plan)
        engine = EngineEntry(
            name, len(plan), hashlib.sha256(plan).hexdigest(), library, version, capability, "float32",
            tuple(profiles), len(manifest.collectives),
        )  # fmt: skip
        entries.append(replace(entry, engines=(engine,)))
    replace(manifest, ranks=tuple(entries)).write(bundle)
    return bundle
