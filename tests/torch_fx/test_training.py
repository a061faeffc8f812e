"""Training on ranks equals training on one device: three steps of AdamW, parameter by parameter, after merging.

In float64, but for what the models compute in float32 all the same (RMS norms, logits). The steps move parameters by up
to 3e-2.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402

import tpcompile.torch as tpcompile_torch  # noqa: E402
from tests.torch_fx import models  # noqa: E402
from tests.torch_fx.training_ranks import EPSILON, RATE, SEED, STEPS  # noqa: E402

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "training_ranks.py"


def batch() -> dict[str, Any]:
    """Four rows; each pair of rows has as many labels that count, so that replicas' means weigh alike."""
    ids = models.tokens(4, 7)
    labels = ids.clone()
    labels[0, 5:] = labels[2, 3:5] = -100
    return {"input_ids": ids, "labels": labels}


def one_device(step: Any, rows: dict[str, Any]) -> dict[str, Any]:
    """The parameters after training without ranks."""
    optimizer = torch.optim.AdamW(step.parameters(), lr=RATE, weight_decay=0.1, eps=EPSILON)
    torch.manual_seed(SEED)
    for _ in range(STEPS):
        optimizer.zero_grad()
        step(**rows).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in step.named_parameters(remove_duplicate=False)}


@dataclass(frozen=True)
class Case:
    """A family to train on `tp` ranks of each replica."""

    name: str
    dropout: float = 0.0
    tp: int = 2
    compiled: bool = False

    @cached_property
    def step(self) -> Any:
        return models.training_step(self.name, self.dropout).double()

    def write(self, folder: Path) -> None:
        """What the processes need."""
        rows = batch()
        dynamic = {key: {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")} for key in rows}
        tpcompile_torch.parallelize(self.step, rows, dynamic=dynamic, tp=self.tp).save(folder / "bundle")
        save_file(rows, folder / "batch.safetensors")
        if self.compiled:
            (folder / "compile").touch()

    def check(self, folder: Path) -> dict[str, float]:
        """Compare what the ranks have after training with one device; gives the collectives of a step."""
        states = [folder / f"rank{rank}.safetensors" for rank in range(self.tp)]
        tpcompile_torch.merge(folder / "bundle", folder / "merged.safetensors", states)
        got = load_file(folder / "merged.safetensors")
        for name, want in one_device(self.step, batch()).items():
            torch.testing.assert_close(got[name], want, rtol=0, atol=1e-6, msg=lambda said, n=name: f"{n}: {said}")
        calls: dict[str, float] = json.loads((folder / "calls.json").read_text())
        return calls


def train(processes: int, cases: Mapping[Path, Case]) -> None:
    """Train all in one start of processes."""
    for folder, case in cases.items():
        folder.mkdir(exist_ok=True)
        case.write(folder)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", "0",
           "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # fmt: skip
    done = subprocess.run(
        [*run, str(SCRIPT), *map(str, cases)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


ON_TWO = {
    "llama with dropout": Case("llama", 0.2),
    "tied gpt2 with dropout everywhere": Case("gpt2", 0.1),
    "compiled llama": Case("llama", compiled=True),
}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A folder of what each case came to."""
    folders = {name: tmp_path_factory.mktemp("case") for name in ON_TWO}
    train(2, {folders[name]: case for name, case in ON_TWO.items()})
    return folders


@pytest.mark.parametrize("name", ON_TWO)
def test_on_two_ranks(two_ranks: Mapping[str, Path], name: str) -> None:
    # forward: two for each of two layers, the embedding, the loss's sums and its maximum; backward: two for each layer
    # and one where the head begins
    calls = ON_TWO[name].check(two_ranks[name])
    assert calls == {"forward all_reduce": 2 * 2 + 1 + 2, "backward all_reduce": 2 * 2 + 1}


def test_on_two_ranks_of_two_replicas(tmp_path: Path) -> None:
    case = Case("llama-tied")
    train(4, {tmp_path: case})
    case.check(tmp_path)
