"""Real ranks under mpirun give the numbers of one device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.run import every_collective, handmade
from tests.run.handmade import Array
from tpcompile.run import arrays
from tpcompile.run.launch import run_ranks


def tprun(*arguments: object, ranks: int) -> int:
    return run_ranks([sys.executable, "-m", "tpcompile.run.tprun", *map(str, arguments)], ranks)


def run(bundle: Path, feeds: dict[str, Array], ranks: int, *options: object) -> dict[str, Array]:
    inputs, outputs = bundle.parent / "in.npz", bundle.parent / "out.npz"
    arrays.write(inputs, feeds)
    assert tprun(bundle, "--inputs", inputs, "--outputs", outputs, *options, ranks=ranks) == 0
    return arrays.read(outputs, {})


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_mlp(tmp_path: Path, ranks: int) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", ranks)
    x = np.random.default_rng(5).standard_normal((3, 12)).astype(np.float32)
    found = run(bundle, {"x": x}, ranks)["y"]
    np.testing.assert_allclose(found, handmade.run_whole(whole, {"x": x})["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("asked", "sign"), [(True, 1), (False, 1), (False, -1)])
def test_branches_with_collectives(tmp_path: Path, ranks: int, asked: bool, sign: int) -> None:
    bundle, whole = handmade.branching(tmp_path / "b", ranks)
    x = sign * np.abs(np.random.default_rng(5).standard_normal((3, 10))).astype(np.float32)
    feeds: dict[str, Array] = {"x": x, "asked": np.array([asked])}
    found = run(bundle, feeds, ranks)
    for name, wanted in handmade.run_whole(whole, feeds).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5)


def test_ranks_that_would_take_different_branches(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bundle, _ = handmade.branching(tmp_path / "b", 3, asks_its_rank=True)
    arrays.write(tmp_path / "in.npz", {"x": np.ones((3, 10), np.float32), "asked": np.array([True])})
    assert tprun(bundle, "--inputs", tmp_path / "in.npz", ranks=3) == 4
    assert (
        "TP614 If choice: its branches hold collectives, but rank 0 takes the then_branch and rank 1, 2 the "
        "else_branch. Compile the model again; if it stays, report it with the model\n"
    ) in capfd.readouterr().err


def greedy(whole: onnx.ModelProto, ids: Array, steps: int) -> tuple[Array, dict[str, Array]]:
    """What one device decodes, caches passed by hand."""
    batch, seq = ids.shape
    past: Array = np.zeros((batch, 4, 0, 6), np.float32)
    feeds = {
        "ids": ids,
        "mask": np.ones_like(ids),
        "positions": np.tile(np.arange(seq), (batch, 1)),
        "past_k": past,
        "past_v": past,
    }
    tokens, found = [], {}
    for step in range(steps):
        found = handmade.run_whole(whole, feeds)
        tokens.append(found["logits"][:, -1].argmax(-1)[:, None])
        feeds = {
            "ids": tokens[-1], "mask": np.ones((batch, seq + step + 1), np.int64),
            "positions": feeds["positions"][:, -1:] + 1, "past_k": found["present_k"], "past_v": found["present_v"],
        }  # fmt: skip
    return np.concatenate(tokens, axis=1), found


@pytest.mark.parametrize("ranks", [2, 4])
def test_decoder_token_for_token(tmp_path: Path, ranks: int) -> None:
    bundle, whole = handmade.decoder(tmp_path / "b", ranks)
    ids = np.array([[3, 7, 1], [5, 2, 9]])
    tokens, last = greedy(whole, ids, 12)
    assert len(set(tokens.ravel().tolist())) > 4  # it does not only repeat itself
    found = run(bundle, {"ids": ids}, ranks, "--steps", 12)
    assert np.array_equal(found["tokens"], tokens)
    assert found.keys() == {"tokens", "logits"}
    np.testing.assert_allclose(found["logits"], last["logits"], rtol=1e-4, atol=1e-4)


def test_caches_are_cut_and_gathered(tmp_path: Path) -> None:
    bundle, whole = handmade.decoder(tmp_path / "b", 2)
    rng = np.random.default_rng(2)
    feeds: dict[str, Array] = {
        "ids": np.array([[3, 7]]), "mask": np.array([[0, 1, 1, 1, 1]]), "positions": np.array([[2, 3]]),
        **{name: rng.standard_normal((1, 4, 3, 6)).astype(np.float32) for name in ("past_k", "past_v")},
    }  # fmt: skip
    found = run(bundle, feeds, 2)
    for name, wanted in handmade.run_whole(whole, feeds).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool", "float16", "bfloat16"])
def test_every_collective(tmp_path: Path, dtype: str) -> None:
    """All collectives over all ranks and over groups that differ by rank, in one graph whose input they share."""
    bundle, x, wanted = every_collective.bundle(tmp_path / "b", dtype)
    arrays.write(tmp_path / "in.npz", {"x": x})
    assert tprun(bundle, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz", ranks=4) == 0
    found = arrays.read(tmp_path / "out.npz", dict.fromkeys(wanted, dtype))
    for name in wanted:
        tolerance = {"bfloat16": 1e-2, "float16": 1e-3}.get(dtype, 0)
        assert found[name].dtype == x.dtype
        np.testing.assert_allclose(
            found[name].astype(np.float64), wanted[name].astype(np.float64), rtol=tolerance, err_msg=name
        )


ELSEWHERE = """
import os, sys
from tpcompile.run import tprun
os.chdir(sys.argv[1 + int(os.environ["OMPI_COMM_WORLD_RANK"])])
sys.exit(tprun.main(sys.argv[3:]))
"""


def test_inputs_that_only_rank_0_has(tmp_path: Path) -> None:
    """As on several machines: the file is read once and sent on, of whatever type, and cut as always."""
    bundle, whole = handmade.decoder(tmp_path / "b", 2)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    arrays.write(first / "in.npz", {"ids": np.asfortranarray([[3, 7, 1], [5, 2, 9]])})
    command = [sys.executable, "-c", ELSEWHERE, str(first), str(second), str(bundle), "--inputs", "in.npz", "--outputs",
               "out.npz", "--steps", "4"]  # fmt: skip
    assert run_ranks(command, 2) == 0
    tokens, _ = greedy(whole, np.array([[3, 7, 1], [5, 2, 9]]), 4)
    assert np.array_equal(arrays.read(first / "out.npz", {})["tokens"], tokens)


def test_check_says_what_differs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", 2)
    x = np.ones((1, 12), np.float32)
    wanted = handmade.run_whole(whole, {"x": x})
    arrays.write(tmp_path / "in.npz", {"x": x})
    arrays.write(tmp_path / "ref.npz", wanted)
    arrays.write(tmp_path / "bad.npz", {"y": wanted["y"] * 2})
    assert tprun(bundle, "--inputs", tmp_path / "in.npz", "--check", tmp_path / "ref.npz", ranks=2) == 0
    assert tprun(bundle, "--inputs", tmp_path / "in.npz", "--check", tmp_path / "bad.npz", ranks=2) == 3
    assert (
        "[rank 0] TP624 y: differs by 5.0e-01 from the reference, 1e-04 is allowed. `tpcompile verify BUNDLE` "
        "names the "
        "first value that departs\n"
    ) in capfd.readouterr().err


def test_tprun_alone_serves_a_bundle_for_one(tmp_path: Path) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", 1)
    x = np.ones((2, 12), np.float32)
    arrays.write(tmp_path / "in.npz", {"x": x})
    command = [
        sys.executable,
        "-m",
        "tpcompile.run.tprun",
        bundle,
        "--inputs",
        tmp_path / "in.npz",
        "--outputs",
        tmp_path / "o.npz",
    ]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        arrays.read(tmp_path / "o.npz", {})["y"], handmade.run_whole(whole, {"x": x})["y"], rtol=1e-5
    )
