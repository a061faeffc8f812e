"""CUDA segments and NCCL on stand-ins: the numbers of one device, and the calls in the order that GPUs need."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.run import every_collective, handmade
from tests.run.gpu.runs import Machine
from tests.run.handmade import Array
from tests.run.test_ranks import greedy


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_numbers_are_those_of_one_device(tmp_path: Path, machine: Machine, ranks: int) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", ranks)
    x = np.random.default_rng(5).standard_normal((3, 12)).astype(np.float32)
    done = machine.run(bundle, {"x": x}, ranks, "--backend", "cuda")
    np.testing.assert_allclose(done.outputs["y"], handmade.run_whole(whole, {"x": x})["y"], rtol=1e-5, atol=1e-6)


def test_the_device_comes_first_and_segments_wait_for_nothing(tmp_path: Path, machine: Machine) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    done = machine.run(bundle, {"x": np.ones((3, 12), np.float32)}, 2, "--backend", "cuda")
    assert done.order(0) == [
        "look for devices", "device", "stream", "unique id", "communicator", "segment", "nccl", "segment", "nccl",
        "segment", "nccl", "segment",
    ]  # fmt: skip
    assert done.order(1) == [what for what in done.order(0) if what != "unique id"]
    assert [found["index"] for found in done.notes if found["what"] == "device"] in ([0, 1], [1, 0])


@pytest.mark.parametrize("asked", [True, False])
def test_branches_with_collectives(tmp_path: Path, machine: Machine, asked: bool) -> None:
    bundle, whole = handmade.branching(tmp_path / "b", 2)
    feeds: dict[str, Array] = {"x": np.ones((3, 10), np.float32), "asked": np.array([asked])}
    done = machine.run(bundle, feeds, 2, "--backend", "cuda")
    for name, wanted in handmade.run_whole(whole, feeds).items():
        np.testing.assert_allclose(done.outputs[name], wanted, rtol=1e-5, atol=1e-5)


def test_decoding_keeps_caches_on_the_gpu(tmp_path: Path, machine: Machine) -> None:
    bundle, whole = handmade.decoder(tmp_path / "b", 2)
    ids = np.array([[3, 7, 1], [5, 2, 9]])
    tokens, last = greedy(whole, ids, 8)
    done = machine.run(bundle, {"ids": ids}, 2, "--backend", "cuda", "--steps", 8)
    assert np.array_equal(done.outputs["tokens"], tokens)
    np.testing.assert_allclose(done.outputs["logits"], last["logits"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bool", "bfloat16"])
def test_every_collective_in_groups(tmp_path: Path, machine: Machine, dtype: str) -> None:
    bundle, x, wanted = every_collective.bundle(tmp_path / "b", dtype)
    done = machine.run(bundle, {"x": x}, 4, "--backend", "cuda")
    for name, array in wanted.items():
        tolerance = {"bfloat16": 2e-2, "float16": 2e-3}.get(dtype, 0)
        assert done.outputs[name].dtype == x.dtype
        np.testing.assert_allclose(
            done.outputs[name].astype(np.float64), array.astype(np.float64), rtol=tolerance, err_msg=name
        )
