"""`tpcompile doctor` on a machine with GPUs: what there is, and whether NCCL works without a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.run.gpu import fake_cuda
from tpcompile.run.mpirun import environment

FAKES = "from tests.run.gpu import fake_cuda\nfake_cuda.install()\n"
DOCTOR = f"""{FAKES}
import sys
from tpcompile.run import doctor
doctor.TRIAL = {FAKES!r} + doctor.TRIAL
sys.exit(doctor.doctor_command(None))
"""


def doctor(folder: Path, **settings: Any) -> tuple[int, list[str]]:
    given = {fake_cuda.SETTINGS: json.dumps({"folder": str(folder), **settings})}
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR], env=environment() | given, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout.splitlines()


def test_gpus_that_work(tmp_path: Path) -> None:
    code, said = doctor(tmp_path, gpus=3)
    assert code == 0
    assert said[-4:] == [
        "ok       GPUs                    Fake GPU (8.9), Fake GPU (8.9), Fake GPU (8.9); the driver knows CUDA 13.0",
        "ok       NCCL                    2.32.3",
        "ok       NCCL over 3 ranks       works" + (" (as root)" if said[-2].endswith("(as root)") else ""),
        "All is well.",
    ]


@pytest.mark.parametrize(("gpus", "shared", "ranks"), [(1, False, "1 rank"), (1, True, "two ranks")])
def test_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, shared: bool, ranks: str) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1" if shared else "0")
    code, said = doctor(tmp_path, gpus=gpus)
    assert code == 0
    assert said[-2].startswith(f"ok       {f'NCCL over {ranks}':<22}  works")


def test_nccl_that_fails_without_a_model(tmp_path: Path) -> None:
    code, said = doctor(tmp_path, gpus=2, faults={"1": {"nccl_broken": True}})
    assert code == 2
    assert said[-2].startswith("MISSING  NCCL over two ranks     mpirun ended with ")
    assert said[-2].endswith(" (no model is involved: see NCCL_DEBUG=INFO)")


def test_no_gpu_is_no_fault(tmp_path: Path) -> None:
    code, said = doctor(tmp_path, gpus=0)
    assert code == 0
    assert said[-2] == "ok       GPUs                    CUDA shows no GPU (not needed to run)"
