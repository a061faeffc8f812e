"""The repository for Triton's Python backend, run as Triton runs it: real ranks, a stand-in for Triton's module."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.run import handmade
from tests.run.test_session import ranks_of
from tests.targets import triton_stub
from tests.targets.triton_stub import END, START, Request, read_config
from tpcompile.targets.triton import write_repository

IDS = np.random.default_rng(4).integers(0, 40, (2, 2, 7))


def load(written: Path) -> Any:
    """What Triton does: import model.py, make the class, give it the configuration."""
    spec = importlib.util.spec_from_file_location("model", written / "1" / "model.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    model = found.TritonPythonModel()
    said = read_config(written / "config.pbtxt").parameters
    parameters = {key: {"string_value": value.string_value} for key, value in said.items()}
    model.initialize(
        {
            "model_config": json.dumps({"parameters": parameters}),
            "model_repository": str(written),
            "model_version": "1",
        }
    )
    return model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, onnx.ModelProto, Path]]:
    sys.modules["triton_python_backend_utils"] = triton_stub.module()
    folder = tmp_path_factory.mktemp("t")
    bundle, whole = handmade.decoder(folder / "chat.tp2", 2)
    written = write_repository(bundle, folder / "models", backend="python")
    model = load(written)
    yield model, whole, written
    model.finalize()
    del sys.modules["triton_python_backend_utils"], sys.modules["tpcompile.run.triton"]


Served = tuple[Any, onnx.ModelProto, Path]


def logits(whole: onnx.ModelProto, ids: np.ndarray) -> np.ndarray:
    batch, count = ids.shape
    empty = np.zeros((batch, 4, 0, 6), np.float32)
    positions = np.tile(np.arange(count), (batch, 1))
    fed = {"ids": ids, "mask": np.ones_like(ids), "positions": positions, "past_k": empty, "past_v": empty}
    return handmade.run_whole(whole, fed)["logits"]


def test_the_configuration_hides_the_caches(served: Served) -> None:
    found = read_config(served[2] / "config.pbtxt")
    assert (found.name, found.backend, found.max_batch_size) == ("chat.tp2", "python", 0)
    doors = [(i.name, i.data_type, list(i.dims), i.optional) for i in found.input]
    assert doors == [("ids", 9, [-1, -1], False), ("mask", 9, [-1, -1], True), ("positions", 9, [-1, -1], True)]
    assert [(o.name, o.data_type) for o in found.output] == [("logits", 11), ("tokens", 9)]
    assert found.instance_group[0].Kind.Name(found.instance_group[0].kind) == "KIND_CPU"
    inside = sorted(path.name for path in (served[2] / "1").iterdir())
    assert [name for name in inside if name != "__pycache__"] == ["bundle", "model.py"]
    source = served[2].parent.parent / "chat.tp2"
    assert (served[2] / "1" / "bundle" / "rank0.bin").samefile(source / "rank0.bin")


def test_sequences_that_come_in_turns(served: Served) -> None:
    """Two conversations in one call of Triton each, one of them with a name for an id."""
    model, whole, _ = served
    names = (5, "anna")
    said: dict[Any, list[np.ndarray]] = {name: [] for name in names}
    for low, high in ((0, 3), (3, 4), (4, 7)):
        flags = (START if low == 0 else 0) | (END if high == 7 else 0)
        requests = [
            Request({"ids": IDS[k][:, low:high]}, ["logits", "tokens"], name, flags) for k, name in enumerate(names)
        ]
        for name, answer in zip(names, model.execute(requests), strict=True):
            assert answer.error is None and list(answer.outputs) == ["logits"]
            said[name].append(answer.outputs["logits"])
    for k, name in enumerate(names):
        np.testing.assert_allclose(np.concatenate(said[name], axis=1), logits(whole, IDS[k]), rtol=1e-4, atol=1e-4)
    (answer,) = model.execute([Request({"ids": IDS[0][:, :1]}, ["logits"], 5)])
    assert str(answer.error) == (
        "TP747 sequence 5: is not known: it never began, ended, or was silent for more than 600 s. "
        "Begin it with sequence_start, and all of its tokens"
    )


def test_a_request_of_its_own_and_decoding(served: Served) -> None:
    model, whole, _ = served
    alone, decoded, wrong, mixed, short = model.execute(
        [
            Request({"ids": IDS[0]}, ["logits"]),
            Request({"ids": IDS[0][:, :3]}, ["tokens"], parameters={"steps": 4}),
            Request({"ids": IDS[0]}, ["tokens"], parameters={"steps": "many"}),
            Request({"ids": IDS[0]}, ["tokens"], sequence=3, flags=START, parameters={"steps": 2}),
            Request({"ids": IDS[0].astype(np.int32)}, ["logits"]),
        ]
    )
    np.testing.assert_allclose(alone.outputs["logits"], logits(whole, IDS[0]), rtol=1e-4, atol=1e-4)
    ids = IDS[0][:, :3]
    for _ in range(4):
        ids = np.concatenate([ids, logits(whole, ids)[:, -1].argmax(-1)[:, None]], axis=1)
    np.testing.assert_array_equal(decoded.outputs["tokens"], ids[:, 3:])
    assert str(wrong.error) == (
        "TP746 parameter steps=many: is no number of steps. Give a whole number, without a sequence's id"
    )
    assert str(mixed.error) == (
        "TP746 parameter steps=2: a sequence goes on by the tokens that its requests bring. "
        "Give a whole number, without a sequence's id"
    )
    assert str(short.error) == "TP621 input ids: is of type int32. Give int64 ['batch', 'seq']"


def test_a_sequence_may_begin_again_and_silent_ones_are_forgotten(served: Served) -> None:
    model, whole, _ = served
    for _ in range(2):
        (answer,) = model.execute([Request({"ids": IDS[1][:, :2]}, ["logits"], 8, START)])
        np.testing.assert_allclose(answer.outputs["logits"], logits(whole, IDS[1][:, :2]), rtol=1e-4, atol=1e-4)
    model.used[8] -= 601
    (answer,) = model.execute([Request({"ids": IDS[1][:, 2:3]}, ["logits"], 8)])
    assert str(answer.error).startswith("TP747 sequence 8: is not known")
    assert not model.numbers and not model.used


def test_after_a_failed_rank_others_take_over(served: Served) -> None:
    model, whole, written = served
    model.execute([Request({"ids": IDS[1][:, :2]}, ["logits"], 9, START)])
    os.kill(ranks_of((written / "1" / "bundle").resolve())[1], signal.SIGKILL)
    lost, again = model.execute(
        [Request({"ids": IDS[1][:, 2:3]}, ["logits"], 9), Request({"ids": IDS[1]}, ["logits"], 9, START | END)]
    )
    assert str(lost.error).startswith("TP612 session: a rank failed")
    np.testing.assert_allclose(again.outputs["logits"], logits(whole, IDS[1]), rtol=1e-4, atol=1e-4)


def test_a_model_without_caches(served: Served, tmp_path: Path) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", 2)
    model = load(write_repository(bundle, tmp_path / "models", backend="python"))
    x = np.random.default_rng(1).standard_normal((3, 12)).astype(np.float32)
    (answer,) = model.execute([Request({"x": x}, ["y"])])
    model.finalize()
    np.testing.assert_allclose(answer.outputs["y"], handmade.run_whole(whole, {"x": x})["y"], rtol=1e-4, atol=1e-4)
