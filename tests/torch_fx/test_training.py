"""Training on ranks equals training on one device: three steps of AdamW, parameter by parameter, after merging.

In float64, but for what the models compute in float32 all the same (RMS norms, logits). The steps move parameters by up
to 3e-2.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def trained(
    name: str, dropout: float, tp: int, dp: int, folder: Path, *options: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """(merged parameters, those of one device, collectives per step) of a family."""
    step = models.training_step(name, dropout).double()
    rows = batch()
    dynamic = {key: {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")} for key in rows}
    tpcompile_torch.parallelize(step, rows, dynamic=dynamic, tp=tp).save(folder / "bundle")
    save_file(rows, folder / "batch.safetensors")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(tp * dp), "--master-port", "0",
           "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]  # fmt: skip
    done = subprocess.run(
        [*run, str(SCRIPT), str(folder / "bundle"), str(folder / "batch.safetensors"), str(folder), *options],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    states = [folder / f"rank{rank}.safetensors" for rank in range(tp)]
    tpcompile_torch.merge(folder / "bundle", folder / "merged.safetensors", states)
    calls = json.loads((folder / "calls.json").read_text())
    return load_file(folder / "merged.safetensors"), one_device(step, rows), calls


def assert_alike(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() >= want.keys()
    for name, parameter in want.items():
        torch.testing.assert_close(got[name], parameter, rtol=0, atol=1e-6, msg=lambda said, n=name: f"{n}: {said}")


def test_llama_on_two_ranks_with_dropout(tmp_path: Path) -> None:
    got, want, calls = trained("llama", 0.2, 2, 1, tmp_path)
    assert_alike(got, want)
    # forward: two for each of two layers, the embedding, the loss's sums and its maximum; backward: two for each layer
    # and one where the head begins
    assert calls == {"forward all_reduce": 2 * 2 + 1 + 2, "backward all_reduce": 2 * 2 + 1}


def test_tied_gpt2_on_two_ranks_with_dropout_everywhere(tmp_path: Path) -> None:
    got, want, calls = trained("gpt2", 0.1, 2, 1, tmp_path)
    assert_alike(got, want)
    assert calls == {"forward all_reduce": 2 * 2 + 1 + 2, "backward all_reduce": 2 * 2 + 1}


def test_llama_on_two_ranks_of_two_replicas(tmp_path: Path) -> None:
    assert_alike(*trained("llama-tied", 0.0, 2, 2, tmp_path)[:2])


def test_a_compiled_module_trains_alike(tmp_path: Path) -> None:
    got, want, calls = trained("llama", 0.0, 2, 1, tmp_path, "--compile")
    assert_alike(got, want)
    assert calls == {"forward all_reduce": 2 * 2 + 1 + 2, "backward all_reduce": 2 * 2 + 1}
