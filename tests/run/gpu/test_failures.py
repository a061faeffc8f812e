"""What goes wrong with GPUs is said by every rank alike, at once, with what would work; nothing hangs or is silent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run import handmade
from tests.run.gpu.runs import Machine, add_engines
from tpcompile.bundle.manifest import ShapeRange
from tpcompile.run.tensors import Array

X: dict[str, Array] = {"x": np.ones((3, 12), np.float32)}
DOCTOR = "`tpcompile doctor` shows what is installed"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return add_engines(handmade.mlp(tmp_path / "b", 2)[0])


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What ranks said of faults."""
    return re.findall(r"^\[rank \d\] .*$", capfd.readouterr().err, re.MULTILINE)


Faults = dict[int, dict[str, Any]]


@pytest.mark.parametrize(
    ("faults", "code", "text"),
    [
        ({1: {"tensorrt": "1.7.2"}}, 2,
         "TP650 rank 1: --backend engine: the engines are for tensorrt_rtx 1.7.1, and 1.7.2 is installed. Engines run "
         "on the version that built them: install that one, or build them again"),
        ({0: {"capability": [9, 0]}, 1: {"capability": [9, 0]}}, 2,
         "TP650 --backend engine: the engines are for compute capability 8.6, 8.9, and Fake GPU has 9.0. Build the "
         "engines for this GPU"),
        ({0: {"uuid": "one"}, 1: {"uuid": "one"}}, 2,
         "TP651 rank 1: has the same GPU as rank 0: Fake GPU, 0000:02:00.0. Give each rank a GPU of its own "
         "(CUDA_VISIBLE_DEVICES, --gpus-per-task); to try several on one, set NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL "
         "2.30 or newer"),
        ({1: {"nccl": 22803}}, 2,
         "TP652 rank 1: runs NCCL 2.28.3, and rank 0 2.32.3. Install the same versions on all machines"),
        ({1: {"driver": 12080}}, 2,
         "TP652 rank 1: runs the CUDA driver 12.8, and rank 0 13.0. Install the same versions on all machines"),
        ({1: {"reads": False}}, 2,
         "TP653 rank 1: engine rank1.engine: tensorrt_rtx 1.7.1 cannot read it (Serialization assertion header == "
         "kHEADER failed). Build the engines with this version of the library, for this GPU"),
        ({1: {"set_communicator": False}}, 2,
         "TP654 rank 1: engine rank1.engine: did not take NCCL's communicator (The engine is not a multi-device "
         "engine). Its collectives would do nothing: build the engines again, or use --backend cuda"),
        ({0: {"builds": False}, 1: {"builds": False}}, 2,
         "TP655 the self-test: tensorrt_rtx 1.7.1 cannot build its engine (no such layer). Use --backend cuda, or "
         "another version of the library"),
        ({0: {"silent": "self"}, 1: {"silent": "self"}}, 2,
         "TP655 rank 0: the self-test: all_reduce of ranks [0, 1] gave [1000.0, 1001.0, 1002.0] where [3000.0, 3002.0, "
         "3004.0] is right. Collectives do not work in engines here: use --backend cuda; `tpcompile doctor` tries "
         "NCCL"),
        ({0: {"dtypes": {"y": 10}}, 1: {"dtypes": {"y": 10}}}, 2,
         "lists y as float32, and the engine of rank 0 has float16. It was changed, or belongs to another compile: "
         "copy the whole bundle again"),
        ({0: {"silent": "model"}, 1: {"silent": "model"}}, 4,
         "TP659 engine rank0.engine: rank 1 has other numbers in output 'y' than rank 0 after the first step. Its "
         "collectives did not do their work: use --backend cuda, and report it with the bundle"),
        ({0: {"nccl_error": 6}, 1: {"stuck": True}}, 4,
         "[rank 0] TP658 at step 0, before collective 5: NCCL between ranks 0, 1 failed: RemoteError of NCCL (a cable "
         "was pulled). See NCCL's own words with NCCL_DEBUG=INFO; `tpcompile doctor` tries NCCL without a model"),
        ({1: {"execute": False}}, 4,
         "TP657 the self-test: the engine does not run (it does not say why). See what the library says above; all "
         "ranks end with this one"),
    ],
)  # fmt: skip
def test_engines(
    bundle: Path, machine: Machine, capfd: pytest.CaptureFixture[str], faults: Faults, code: int, text: str
) -> None:
    done = machine.run(bundle, X, 2, "--backend", "engine", faults=faults)
    lines = said(capfd)
    assert done.code == code
    assert any(line.endswith(text) or text in line for line in lines), lines


def test_shapes_outside_of_all_profiles(tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    profiles = [{"x": ShapeRange((1, 12), (1, 12), (2, 12))}, {"x": ShapeRange((4, 12), (8, 12), (8, 12))}]
    bundle = add_engines(handmade.mlp(tmp_path / "b", 2)[0], profiles)
    assert machine.run(bundle, X, 2, "--backend", "engine").code == 2
    assert said(capfd) == [
        "[rank 0] TP656 input x: is [3, 12] on this rank, and the engine takes [1, 12] to [2, 12] or [4, 12] to "
        "[8, 12]. Give shapes within, build the engines with --profile for these, or use --backend cuda or cpu"
    ]


def test_an_engine_of_another_build(bundle: Path, machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    plan = bundle / "rank1.engine"
    plan.write_bytes(plan.read_bytes()[::-1])
    assert machine.run(bundle, X, 2, "--backend", "engine").code == 2
    assert said(capfd) == [
        f"[rank 0] TP608 rank 1: {plan}: is not the file that bundle.json was written with. Files of different builds "
        "are mixed: copy the whole bundle again"
    ]


def test_several_ranks_on_one_gpu_where_nccl_can(
    bundle: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    done = machine.run(bundle, X, 2, "--backend", "engine", gpus=1)
    assert done.code == 0
    assert "backend: engine (tensorrt_rtx) (2 ranks share 1 GPU)\n" in capfd.readouterr().out
    older = {rank: {"nccl": 22902} for rank in range(2)}
    assert machine.run(bundle, X, 2, "--backend", "engine", gpus=1, faults=older).code == 2
    assert "TP651 rank 1: has the same GPU as rank 0" in capfd.readouterr().err


@pytest.mark.parametrize("backend", ["engine", "cuda"])
def test_a_gpu_that_does_not_come_back(
    bundle: Path, machine: Machine, capfd: pytest.CaptureFixture[str], backend: str
) -> None:
    """Both ranks wait for their GPUs: the watchdog names what the GPU has not ended."""
    stuck = {rank: {"stuck": True} for rank in range(2)}
    assert machine.run(bundle, X, 2, "--backend", backend, "--timeout", 2, faults=stuck).code == 4
    what = {"engine": "the 3 collectives of engine rank", "cuda": "collective 0 of 3, all_reduce(sum) of 'p0'"}
    lines = said(capfd)
    assert any(f"TP610 waited 2 s at step 0 in {what[backend]}" in line for line in lines), lines


@pytest.mark.parametrize(
    ("backend", "where", "text"),
    [
        ("engine", "second model",
         "[rank 1] TP610 waited 2 s at step 1 in asking for the step of engine rank1.engine. A rank"),
        ("cuda", "segment",
         "[rank 0] TP610 waited 2 s at step 0 in collective 0 of 1, all_reduce(sum) of 'po'; rank 1 has not come, it "
         "is at step 0, before collective 0. A rank"),
    ],
)  # fmt: skip
def test_a_rank_that_stops_in_the_middle(
    tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str], backend: str, where: str, text: str
) -> None:
    bundle = add_engines(handmade.decoder(tmp_path / "b", 2)[0])
    options = ["--backend", backend, "--timeout", 2, "--steps", 3]
    feeds: dict[str, Array] = {"ids": np.array([[3, 7, 1]])}
    assert machine.run(bundle, feeds, 2, *options, faults={1: {"sleeps_in": where}}).code == 4
    lines = said(capfd)
    assert any(line.startswith(text) for line in lines), lines


@pytest.mark.parametrize(("backend", "stand_ins", "gpus", "text"), [
    ("engine", "cuda,ort", 8, "TP650 --backend engine: the bundle holds no engines. `tpcompile engine BUNDLE` builds "
     "them from the bundle as it is"),
    ("cuda", "cuda", 8, " comes without CUDAExecutionProvider: pip install onnxruntime-gpu instead. " + DOCTOR),
    ("cuda", "cuda,ort", 0, "TP650 --backend cuda: CUDA shows no GPU. " + DOCTOR),
])  # fmt: skip
def test_a_backend_that_is_not_here(
    tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str], backend: str, stand_ins: str, gpus: int,
    text: str,
) -> None:  # fmt: skip
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    assert machine.run(bundle, X, 2, "--backend", backend, stand_ins=stand_ins, gpus=gpus).code == 2
    lines = said(capfd)
    assert len(lines) == 1
    assert lines[0].endswith(text)


def test_a_provider_that_does_not_start(tmp_path: Path, machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    faults = {1: {"provider_starts": False}}
    assert machine.run(bundle, X, 2, "--backend", "cuda", faults=faults).code == 2
    (line,) = said(capfd)
    assert line.startswith("[rank 0] TP650 rank 1: --backend cuda: CUDAExecutionProvider of onnxruntime ")
    assert line.endswith(" does not start: it says above which library it misses. Install what onnxruntime-gpu needs "
                         "(CUDA and cuDNN of its major versions)")  # fmt: skip


@pytest.mark.parametrize(("stand_ins", "gpus", "text"), [
    ("cuda,ort,trt", 8, r"engine \(tensorrt_rtx\)"),
    ("cuda,ort,trt", 0, r"cpu \(no engine \(tensorrt_rtx\): CUDA shows no GPU; no cuda: CUDA shows no GPU\)"),
    ("cuda,ort", 8, r"cuda \(no engine \(tensorrt_rtx\): .*\)"),
    ("cuda,ort,trt", 1, r"cpu \(no engine \(tensorrt_rtx\): rank 1 has the same GPU as rank 0: Fake GPU, .*\)"),
])  # fmt: skip
def test_auto_takes_the_best_and_says_why_no_better(
    bundle: Path, machine: Machine, capfd: pytest.CaptureFixture[str], stand_ins: str, gpus: int, text: str
) -> None:
    assert machine.run(bundle, X, 2, stand_ins=stand_ins, gpus=gpus).code == 0
    assert re.search(f"^backend: {text}$", capfd.readouterr().out, re.MULTILINE)


def test_a_gpu_that_does_not_work(bundle: Path, machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    faults = {1: {"device_broken": True}}
    assert machine.run(bundle, X, 2, "--backend", "engine", faults=faults).code == 2
    assert said(capfd) == [
        "[rank 0] TP657 rank 1: the GPU of this rank: RuntimeError: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC "
        "error encountered. `tpcompile doctor` tries the GPU and NCCL without a model; all ranks end with this one"
    ]
    assert machine.run(bundle, X, 2, faults=faults).code == 0
    assert "backend: cpu (no engine (tensorrt_rtx): rank 1 RuntimeError: CUDA_ERROR_ECC" in capfd.readouterr().out


def test_dumping_is_for_segments(bundle: Path, machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    assert machine.run(bundle, X, 2, "--dump", "*", "--backend", "engine").code == 2
    assert said(capfd) == [
        "[rank 0] TP650 --backend engine: an engine shows no values from within. Use --dump with --backend cuda or cpu"
    ]
    assert machine.run(bundle, X, 2, "--dump", "p0").code == 0
    assert "backend: cuda (no engine (tensorrt_rtx): an engine shows no values" in capfd.readouterr().out
