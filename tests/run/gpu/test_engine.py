"""Engines on stand-ins: the numbers of one device, the order of calls, and caches that only change places."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.run import every_collective, handmade
from tests.run.gpu import fixed_cache
from tests.run.gpu.runs import Done, Machine, add_engines
from tests.run.test_ranks import greedy
from tpcompile.bundle.manifest import ShapeRange
from tpcompile.run import engine, self_test

PROMPTS = {"ids": ShapeRange((1, 1), (2, 4), (2, 8)), "past_k": ShapeRange((1, 2, 0, 6), (2, 2, 1, 6), (2, 2, 4, 6))}
STEPS = {"ids": ShapeRange((1, 1), (2, 1), (2, 1)), "past_k": ShapeRange((1, 2, 0, 6), (2, 2, 8, 6), (2, 2, 32, 6))}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_numbers_are_those_of_one_device(tmp_path: Path, machine: Machine, ranks: int) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", ranks)
    x = np.random.default_rng(5).standard_normal((3, 12)).astype(np.float32)
    done = machine.run(add_engines(bundle), {"x": x}, ranks, "--backend", "engine")
    np.testing.assert_allclose(done.outputs["y"], handmade.run_whole(whole, {"x": x})["y"], rtol=1e-5, atol=1e-6)


@pytest.fixture
def mlp_run(tmp_path: Path, machine: Machine) -> Done:
    bundle, _ = handmade.mlp(tmp_path / "b", 4)
    return machine.run(add_engines(bundle), {"x": np.ones((3, 12), np.float32)}, 4, "--backend", "engine")


def test_the_device_comes_first_and_the_self_test_before_the_model(mlp_run: Done) -> None:
    assert mlp_run.order(0) == [
        "look for devices", "device", "stream", *["read", "build"] * 3, "read", "unique id", "communicator",
        "set_communicator", "enqueue",
    ]  # fmt: skip
    enqueued = [found["engine"] for found in mlp_run.notes if found["what"] == "enqueue" and found["rank"] == 0]
    assert enqueued == ["self_test.onnx"] * 3 + ["model_tp4_rank0.onnx"]  # sums, gathers, both


def test_all_ranks_are_ready_before_any_enqueues(mlp_run: Done) -> None:
    assert len(mlp_run.times("set_communicator")) == 16
    assert max(mlp_run.times("set_communicator")) < min(mlp_run.times("enqueue"))
    assert sorted(found["index"] for found in mlp_run.notes if found["what"] == "device") == [0, 1, 2, 3]


def test_decoding_changes_the_places_of_caches(tmp_path: Path, machine: Machine) -> None:
    """Two places for each cache, by turns; nothing is copied, and the profile of single steps takes over."""
    bundle, whole = handmade.decoder(tmp_path / "b", 2)
    ids = np.array([[3, 7, 1], [5, 2, 9]])
    tokens, last = greedy(whole, ids, 9)
    add_engines(bundle, [PROMPTS, STEPS])
    faults = {rank: {"largest": 4096} for rank in range(2)}
    done = machine.run(bundle, {"ids": ids}, 2, "--backend", "engine", "--steps", 9, faults=faults)
    assert np.array_equal(done.outputs["tokens"], tokens)
    np.testing.assert_allclose(done.outputs["logits"], last["logits"], rtol=1e-4, atol=1e-4)
    steps = [found for found in done.notes if found["what"] == "enqueue" and found["rank"] == 0][
        1:
    ]  # the first is the self-test's
    assert len(steps) == 9
    for before, after in itertools.pairwise(steps):
        for cache in "kv":
            assert after["places"][f"past_{cache}"] == before["places"][f"present_{cache}"]
            assert after["places"][f"present_{cache}"] != before["places"][f"present_{cache}"]
    assert len({step["places"]["present_k"] for step in steps}) == 2
    assert [found["index"] for found in done.notes if found["what"] == "profile" and found["rank"] == 0][-1] == 1


def test_caches_of_no_known_size_grow(tmp_path: Path, machine: Machine) -> None:
    bundle, whole = handmade.decoder(tmp_path / "b", 2)
    ids = np.array([[3, 7, 1]])
    tokens, _ = greedy(whole, ids, 20)
    done = machine.run(add_engines(bundle), {"ids": ids}, 2, "--backend", "engine", "--steps", 20)
    assert np.array_equal(done.outputs["tokens"], tokens)
    places = {found["places"]["present_k"] for found in done.notes if found["what"] == "enqueue"
              and found["rank"] == 0 and "present_k" in found["places"]}  # fmt: skip
    assert len(places) < 10


def test_a_cache_written_where_it_lies(tmp_path: Path, machine: Machine) -> None:
    """What the engine says is one tensor gets one address."""
    bundle, whole = fixed_cache.write(tmp_path / "b", 2)
    tokens = fixed_cache.greedy(whole, np.array([[3], [5]]), 5)
    faults = {rank: {"aliased": {"present": "past"}} for rank in range(2)}
    done = machine.run(
        add_engines(bundle), {"ids": np.array([[3], [5]])}, 2, "--backend", "engine", "--steps", 5, faults=faults
    )
    assert np.array_equal(done.outputs["tokens"], tokens)
    steps = [found["places"] for found in done.notes if found["what"] == "enqueue" and "past" in found["places"]]
    assert all(places["past"] == places["present"] for places in steps)


def test_values_that_the_engine_reads_on_the_host(tmp_path: Path, machine: Machine) -> None:
    bundle, whole = handmade.decoder(tmp_path / "b", 2)
    ids = np.array([[3, 7, 1]])
    tokens, _ = greedy(whole, ids, 3)
    faults = {rank: {"on_host": ["positions", "logits"]} for rank in range(2)}
    done = machine.run(add_engines(bundle), {"ids": ids}, 2, "--backend", "engine", "--steps", 3, faults=faults)
    assert np.array_equal(done.outputs["tokens"], tokens)


@pytest.mark.parametrize(("capturable", "replayed"), [(True, 6), (False, 0)])
def test_steps_of_equal_shapes_are_replayed(tmp_path: Path, machine: Machine, capturable: bool, replayed: int) -> None:
    """A cache of fixed size takes two places by turns: from the second time in each, the step is a CUDA graph."""
    bundle, whole = fixed_cache.write(tmp_path / "b", 2)
    tokens = fixed_cache.greedy(whole, np.array([[3], [5]]), 9)
    options = ["--backend", "engine", "--steps", 9, "--cuda-graphs"]
    faults = {rank: {"capturable": capturable} for rank in range(2)}
    done = machine.run(add_engines(bundle), {"ids": np.array([[3], [5]])}, 2, *options, faults=faults)
    assert np.array_equal(done.outputs["tokens"], tokens)
    assert len([found for found in done.notes if found["what"] == "graph" and found["rank"] == 0]) == replayed


def test_self_test_tries_each_kind_of_collective_once(tmp_path: Path, machine: Machine) -> None:
    bundle, x, wanted = every_collective.bundle(tmp_path / "b", "float32")
    done = machine.run(add_engines(bundle), {"x": x}, 4, "--backend", "engine")
    for name, array in wanted.items():
        np.testing.assert_allclose(done.outputs[name], array, err_msg=name)


def test_what_a_self_test_expects() -> None:
    """Rank 2 of 4, in groups that are not in order: numbers by hand."""
    pairs = ((2, 0), (3, 1))
    assert self_test.given(2, 4)[0].tolist() == [3000, 3001, 3002]
    one = {op: self_test.expected(self_test.Kind(op, pairs, ""), 2, 4) for op in
           ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")}  # fmt: skip
    assert one["all_reduce"][0].tolist() == [4000, 4002, 4004]
    assert one["all_gather"][:, 0].tolist() == [3000, 3003, 3006, 3009, 1000, 1003, 1006, 1009]
    assert one["reduce_scatter"][:, 0].tolist() == [4000, 4006]
    assert one["all_to_all"][:, 0].tolist() == [3000, 3003, 1000, 1003]
    assert one["broadcast"][0].tolist() == [3000, 3001, 3002]


def test_numbers_of_two_ranks_are_alike_or_not() -> None:
    ours = np.array([1.0, -40.0, np.inf, 0.5])
    assert engine.alike(ours, np.array([1.5, -41.0, np.inf, 0.1]))  # other kernels, in half precision
    assert not engine.alike(ours, np.array([1.0, -20.0, np.inf, 0.5]))
    assert not engine.alike(ours, np.array([1.0, -40.0, 8.0, 0.5]))
    assert not engine.alike(ours, ours[:3])
