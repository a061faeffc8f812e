"""tools/gpu_check: what it packs fits, and the folder runs by itself, offline; rows say what came of each check."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests import zoo

ROOT = Path(__file__).parent.parent
NO_NETWORK = """
import socket
def refused(self, address):
    raise AssertionError(f"a connection to {address}")
inner = socket.socket.connect
socket.socket.connect = lambda self, to: inner(self, to) if self.family == socket.AF_UNIX else refused(self, to)
"""


def gpu_check(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The tool in `folder`, by a Python that knows nothing of this checkout."""
    quiet = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), **more}
    command = [sys.executable, str(folder / "tools" / "gpu_check"), *words]
    return subprocess.run(command, cwd="/", env=quiet, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("g") / "packed"
    none = tmp_path_factory.mktemp("none")
    done = gpu_check(ROOT, "pack", str(folder), "--wheels", str(none))
    assert done.returncode == 0, done.stderr
    assert "MiB. There: python3 packed/tools/gpu_check run" in done.stdout
    (folder / "offline").mkdir()
    (folder / "offline" / "sitecustomize.py").write_text(NO_NETWORK)
    return folder


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The tool's own modules, importable; gives `checks`."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "gpu_check.d"))
    import checks

    yield checks
    for name in ("checks", "environment", "torch_ops", "torch_segment", "torch_executors"):
        sys.modules.pop(name, None)


def test_it_fits_and_holds_no_links(packed: Path) -> None:
    files = [path for path in packed.rglob("*") if path.is_file()]
    wheels = 12 * 2**20  # Open MPI and nccl4py, as they are today
    assert sum(path.stat().st_size for path in files) + wheels < 60 * 2**20
    assert not any(path.is_symlink() for path in packed.rglob("*"))
    assert (packed / "tpcompile" / "passes" / "cut_graph.py").exists()
    entries = json.loads((packed / "models" / "models.json").read_text())
    assert [(entry["kind"], entry["dtype"]) for entry in entries] == [
        ("run", "float32"), ("decode", "float32"), ("decode", "float32"), ("decode", "float16"),
    ]  # fmt: skip
    assert all(set(entry["bundles"]) == {"1", "2"} for entry in entries)


def test_a_folder_that_is_there_and_one_that_was_not_packed(packed: Path) -> None:
    done = gpu_check(ROOT, "pack", str(packed))
    assert (done.returncode, done.stderr) == (2, f"gpu_check: {packed} exists already. Give a new folder\n")
    done = gpu_check(ROOT, "run")
    assert done.returncode == 2
    assert done.stderr == (
        f"gpu_check: {ROOT} was not packed. Run `tools/gpu_check pack DIR`, then DIR/tools/gpu_check run\n"
    )


def test_it_runs_by_itself_and_a_failing_row_stops_no_other(packed: Path, tmp_path: Path) -> None:
    """The reference of the first model is damaged: its rows fail, the next model's pass, GPU rows say what lacks."""
    with np.load(packed / "models" / "bert-float32.npz") as held:
        reference = dict(held)
    damaged = tmp_path / "packed"
    shutil.copytree(packed, damaged)
    name = next(name for name in reference if name.startswith("out."))
    reference[name] = reference[name] + 1
    np.savez(damaged / "models" / "bert-float32.npz", **reference)
    only = "[BL]*[TA], float32 * 2"  # BERT and LLaMA, two ranks
    page = tmp_path / "page.md"
    done = gpu_check(damaged, "run", "--only", only, "--into", str(page), PYTHONPATH=str(damaged / "offline"))
    assert done.returncode == 1, done.stderr
    text = page.read_text()
    assert done.stdout.endswith(text) and "**Nothing of this ran on a GPU.**" in text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    told = {(cells[0], cells[1], cells[2]): cells for cells in rows if len(cells) == 8}
    bert = told["BERT, float32", "ONNX Runtime on the CPU + MPI", "2"]
    assert bert[3] == "FAILED" and float(bert[4].split()[0]) > 1e-2
    llama = told["LLaMA, float32", "ONNX Runtime on the CPU + MPI", "2"]
    assert (llama[3], llama[6], llama[7]) == ("passed", "6", "8 of 8 greedy tokens as on one device")
    engine = told["BERT, LLaMA", "TensorRT engines + NCCL", "2"]
    assert (engine[3], engine[7]) in [
        ("could not run", "no TensorRT is installed, and none could travel"),
        ("could not run", "the bundle holds no engines"),
    ]
    cuda = told["BERT, LLaMA", "ONNX Runtime CUDA + NCCL", "2"]
    assert cuda[3] == "could not run" and "CUDAExecutionProvider" in cuda[7]


def test_what_hangs_is_ended_and_what_crashes_is_told(modules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = modules
    code, said = checks.ranks([sys.executable, "-c", "import time; time.sleep(60)"], 2, 2.0)
    assert checks._words(code, said, 2.0) == "did not end within 2 s"
    code, said = checks.ranks([sys.executable, "-c", "raise SystemExit('no such thing')"], 1, 20.0)
    assert checks._words(code, said, 20.0) == "exit code 1: no such thing"
    check = checks.Check("a check", "nothing", 1, ("run",), lambda: None)
    row = checks.outcome(check, left_s=2.0)
    assert (row.state, row.note) == ("could not run", "the 430 s for all checks are over")


def test_engines_are_built_by_the_command_of_users(modules: ModuleType, packed: Path) -> None:
    checks = modules
    bundle = str(packed / "models" / "bert-float32.tp2")
    check = checks.Check("engines", "none", 2, ("engine", bundle, "--engine", "tensorrt-of-none"), lambda: None)
    row = checks.outcome(check, left_s=60.0)
    assert row.state == "FAILED"
    assert row.note.startswith("exit code 2: TP704 --engine tensorrt-of-none: there is no such library")


def wheel_of_nothing(folder: Path) -> Path:
    """A wheel of a package that no Python has: a module, a program and a library."""
    wheel = folder / "thing_that_is_nowhere-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as held:
        held.writestr("thing/__init__.py", "ANSWER = 42\n")
        held.writestr("tensorrt-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tensorrt\nVersion: 1.0\n")
        program = zipfile.ZipInfo("thing-1.0.data/data/bin/thing")
        program.external_attr = 0o755 << 16
        held.writestr(program, "#!/bin/sh\n")
        held.writestr("thing-1.0.data/data/lib/libthing.so", "x")
    return wheel


def test_packed_wheels_are_there_while_it_runs_and_gone_after(packed: Path, tmp_path: Path) -> None:
    """A wheel that calls itself TensorRT, to be seen among what is installed; this Python stays as it is."""
    wheel = wheel_of_nothing(packed / "wheels")
    try:
        done = gpu_check(packed, "run", "--only", "nothing", TMPDIR=str(tmp_path))
    finally:
        wheel.unlink()
    assert done.returncode == 0, done.stderr
    assert re.search(r"^tensorrt +1\.0$", done.stdout, re.MULTILINE)
    assert re.search(r"^onnxruntime +\d", done.stdout, re.MULTILINE)
    assert list(tmp_path.glob("gpu_check-*")) == []


def test_wheels_are_put_where_programs_and_libraries_are_found(modules: ModuleType, tmp_path: Path) -> None:
    import environment

    wheel = wheel_of_nothing(tmp_path)
    assert environment._is_wanted(wheel)
    assert not environment._is_wanted(Path("numpy-1.0-py3-none-any.whl"))
    assert not environment._is_wanted(Path("thing-1.0-cp27-cp27-any.whl"))
    environment.unpack(wheel, tmp_path / "env", tmp_path / "env" / "site")
    assert (tmp_path / "env" / "site" / "thing" / "__init__.py").exists()
    assert (tmp_path / "env" / "bin" / "thing").stat().st_mode & 0o111
    assert (tmp_path / "env" / "lib" / "libthing.so").exists()


def test_the_page_of_results_claims_nothing_that_did_not_run() -> None:
    text = (ROOT / "docs" / "gpu_results.md").read_text(encoding="utf-8")
    assert "**Not yet run.**" in text or "Written by `tools/gpu_check run`" in text


@pytest.mark.parametrize("name", zoo.names())
def test_torch_computes_what_onnx_runtime_computes(modules: ModuleType, name: str) -> None:
    torch = pytest.importorskip("torch", reason="the stand-in for a runtime is torch")
    import onnx
    import onnxruntime as ort
    from torch_segment import TorchSegment, Weights, from_bits

    model, feeds = zoo.model(name), dict(zoo.feeds(name))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for given in session.get_inputs():
        if given.name not in feeds:  # a cache that starts empty
            batch = len(next(iter(feeds.values())))
            shape = [size if isinstance(size, int) else 0 if at else batch for at, size in enumerate(given.shape)]
            feeds[given.name] = np.zeros(shape, np.float32)
    feeds = {given.name: feeds[given.name] for given in session.get_inputs()}
    outputs = tuple(made.name for made in session.get_outputs())
    segment = TorchSegment(model, outputs, Weights(Path(), torch.device("cpu")))
    kinds = {n: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for n, array in feeds.items()}
    found = segment.run({n: from_bits(array, kinds[n]) for n, array in feeds.items()})
    for mine, wanted in zip(found, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max(initial=0))


def test_torch_computes_ranks_and_notices_one_that_does_not_come(packed: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the stand-in for a runtime is torch")
    page = tmp_path / "page.md"
    done = gpu_check(packed, "run", "--only", "[Ba]*torch on the CPU*2", "--into", str(page))
    assert done.returncode == 0, done.stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.read_text().splitlines()]
    told = {row[0]: row for row in rows if len(row) == 8}
    assert (told["BERT, float32"][3], told["BERT, float32"][6]) == ("passed", "6")
    assert told["a rank that does not come"][3] == "passed"
    assert "rank 1 has not come" in told["a rank that does not come"][7]


@pytest.mark.parametrize(("name", "backend"), [("bert-float32", "torch-host"), ("llama-float32", "torch")])
def test_the_stand_in_on_the_runner_s_own_gpu_code(
    packed: Path, modules: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, backend: str
) -> None:
    """Two ranks, the libraries of the GPU acted: values go from torch's memory to NCCL's calls and back."""
    pytest.importorskip("torch", reason="the stand-in for a runtime is torch")
    from tests.run.gpu import fake_cuda

    monkeypatch.setenv(fake_cuda.SETTINGS, json.dumps({"folder": str(tmp_path), "gpus": 1}))
    kind, into = ("run" if name.startswith("bert") else "decode"), tmp_path / "found.json"
    models, script = packed / "models", ROOT / "tests" / "run" / "gpu" / "torch_rank.py"
    words = [kind, str(into), "--bundle", str(models / f"{name}.tp2"), "--reference", str(models / f"{name}.npz")]
    code, said = modules.ranks([sys.executable, str(script), *words, "--backend", backend], 2, 120.0)
    assert code == 0, said
    assert json.loads(into.read_text())["error"] < 1e-4
    calls = [found["what"] for found in fake_cuda.notes(tmp_path)]
    assert ("nccl" in calls) == (backend == "torch")
