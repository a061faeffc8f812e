"""Starting ranks: the command that is run, how its end is read, .npz files, and doctor."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.run import handmade
from tpcompile.errors import Refused
from tpcompile.run import arrays, doctor, launch, mpi, mpirun
from tpcompile.run.session import InferenceSession


def parse(*words: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    launch.add_launch_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_run_command_starts_the_bundles_ranks(tmp_path: Path) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", 2)
    x = np.ones((2, 12), np.float32)
    arrays.write(tmp_path / "x.npz", {"x": x})
    arguments = parse(bundle, "--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz", "--prepack")
    assert launch.run_command(arguments) == 0
    found = arrays.read(tmp_path / "y.npz", {})["y"]
    np.testing.assert_allclose(found, handmade.run_whole(whole, {"x": x})["y"], rtol=1e-5, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "x.npz", "y.npz"]


def test_run_command_refuses_another_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    assert launch.run_command(parse(bundle, "-n", 4)) == 2
    assert capsys.readouterr().err == (
        f"TP607 {bundle}: this bundle is for 2 ranks, and 4 were started. Start it as `mpirun -n 2 tprun {bundle}` "
        f"or as `tpcompile run {bundle} -n 2`\n"
    )


def test_run_needs_inputs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    assert launch.run_command(parse(bundle)) == 2
    assert "[rank 0] TP621 inputs: no --inputs were given. Give an .npz with x\n" in capfd.readouterr().err


def test_all_options_reach_tprun() -> None:
    words = [
        "b",
        "--backend",
        "cpu",
        "--timeout",
        "7.0",
        "--inputs",
        "x",
        "--outputs",
        "y",
        "--steps",
        "3",
        "--check",
        "r",
        "--prepack",
    ]
    assert launch.tprun_arguments(parse(*words)) == words


def test_no_mpirun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mpirun.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(mpirun.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refused) as caught:
        mpirun.mpirun()
    assert str(caught.value) == (
        "TP603 mpirun: is neither in this Python environment nor on PATH. Run `pip install 'tpcompile[run]'`, "
        "or install Open MPI"
    )


@pytest.mark.parametrize(
    ("code", "told", "start"),
    [
        (1, [], "TP612 run: mpirun ended with exit code 1. "),
        (139, ["prterun noticed that process rank 0 with PID 1 on node a exited on", "signal 11 (Segmentation fault)."],
         "TP612 rank 0, at step 3, before collective 9: was killed by SIGSEGV. "),
        (5, ["   Process name: [prterun-a-1@1,1]", "   Exit code:    5"],
         "TP612 rank 1, while loading: ended without a word. "),
    ],
)  # fmt: skip
def test_how_a_run_ended(code: int, told: list[str], start: str) -> None:
    text = str(mpirun.failure(code, told, ["at step 3, before collective 9", "while loading"]))
    assert text == start + "Out of memory or a crash in a library looks like this; see what mpirun says above"


def test_crowded_ranks_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "cores", lambda: [0, 1])
    assert mpirun.mpirun_command(["x"], 2)[1:] == ["--bind-to", "none", "-n", "2", "x"]
    assert mpirun.mpirun_command(["x"], 3)[1:] == ["--oversubscribe", "--bind-to", "none", "-n", "3", "x"]


@pytest.mark.parametrize(
    ("failures", "code", "said"), [(2, 0, ""), (3, 4, "TP612 run: mpirun ended with exit code 213")]
)
def test_mpirun_that_starts_nothing_is_started_again(
    failures: int,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Open MPI's own server fails now and then where several runs start at one moment."""
    seen, stubborn = tmp_path / "seen", tmp_path / "mpirun"
    stubborn.write_text(f"#!/bin/sh\necho x >> {seen}\n[ $(wc -l < {seen}) -gt {failures} ] || exit 213\n")
    stubborn.chmod(0o755)
    monkeypatch.setattr(mpirun, "mpirun", lambda: str(stubborn))
    assert launch.run_ranks(["anything"], 2) == code
    assert len(seen.read_text().splitlines()) == 3
    assert said in capsys.readouterr().err


def test_a_session_starts_mpirun_again_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, failed, stubborn = mpirun.mpirun(), tmp_path / "failed", tmp_path / "mpirun"
    stubborn.write_text(f'#!/bin/sh\n[ -e {failed} ] || {{ touch {failed}; exit 213; }}\nexec {real} "$@"\n')
    stubborn.chmod(0o755)
    monkeypatch.setattr(mpirun, "mpirun", lambda: str(stubborn))
    handmade.mlp(tmp_path / "bundle", 2)
    with InferenceSession(tmp_path / "bundle") as session:
        assert len(session.get_inputs()) == 1
    assert failed.exists()


def test_npz_refuses_pickles_and_junk(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", a=np.array([object()]))
    with pytest.raises(Refused, match=r"^TP609 .*p\.npz: cannot be read as \.npz \(Object arrays cannot be loaded"):
        arrays.read(tmp_path / "p.npz", {})
    (tmp_path / "j.npz").write_bytes(b"junk")
    with pytest.raises(Refused, match=r"^TP609 .*j\.npz: cannot be read as \.npz"):
        arrays.read(tmp_path / "j.npz", {})
    with pytest.raises(Refused, match=r"Write it with numpy\.savez\(FILE, name=array, \.\.\.\)$"):
        arrays.read(tmp_path / "absent.npz", {})
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(Refused, match="it holds one array, not several with names"):
        arrays.read(tmp_path / "one.npy", {})


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"^TP609 .*y\.npz: cannot be written .*Choose another place for --outputs$"):
        arrays.write(tmp_path / "absent" / "y.npz", {"y": np.ones(2)})


def test_doctor_finds_all_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.doctor_command(argparse.Namespace()) == 0
    said = capsys.readouterr().out
    assert "ok       sum over two ranks      works" in said
    assert said.endswith("All is well.\n")


def test_doctor_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = tmp_path / "mpirun"
    broken.write_text("#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'mpirun 0'; else echo sorry >&2; exit 9; fi\n")
    broken.chmod(0o755)
    monkeypatch.setattr(mpirun, "mpirun", lambda: str(broken))
    assert doctor.doctor_command(argparse.Namespace()) == 2
    said = capsys.readouterr().out.splitlines()
    assert "MISSING  sum over two ranks      mpirun ended with 9: sorry" in said
    assert said[-1] == "Mend what is marked MISSING: `pip install 'tpcompile[run]'` brings all of it."


def test_a_rank_starts_without_the_compiler() -> None:
    code = "import sys, tpcompile.run.tprun; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=mpirun.environment(), capture_output=True, text=True, timeout=30
    )
    assert not {"onnx_ir", "scipy", "torch"} & {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    ("started", "btl"),
    [
        ({}, "self"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "self,sm"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, None),
        ({"PMIX_RANK": "0"}, None),
    ],
)
def test_only_ranks_of_one_machine_are_kept_from_the_network(
    monkeypatch: pytest.MonkeyPatch, started: dict[str, str], btl: str | None
) -> None:
    for name in ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert mpi._settings().get("OMPI_MCA_btl") == btl
