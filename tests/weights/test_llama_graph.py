"""The benchmark's model is a real decoder: it runs, its caches work, its data is dense."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tools.llama_graph import LlamaShape, llama_graph, write_llama

ort = pytest.importorskip("onnxruntime")
SMALL = LlamaShape(layers=2, hidden=32, ffn=48, heads=4, kv_heads=2, vocabulary=67, dtype="float32")
IDS = np.random.default_rng(1).integers(0, 67, (2, 7))


def cached(shape: LlamaShape) -> LlamaShape:
    return LlamaShape(**{**shape.__dict__, "caches": True})


def run(model: Path, ids: NDArray[Any], past: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    length = next((value.shape[2] for value in past.values()), 0)
    feeds = {"input_ids": ids, "attention_mask": np.ones((2, length + ids.shape[1]), np.int64), **past}
    if past:
        feeds["position_ids"] = np.tile(np.arange(length, length + ids.shape[1]), (2, 1))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_step_with_caches_continues_the_whole_sequence(kv_heads: int, tmp_path: Path) -> None:
    shape = LlamaShape(**{**SMALL.__dict__, "kv_heads": kv_heads})
    for folder in ("plain", "caches"):
        (tmp_path / folder).mkdir()
    whole = run(write_llama(shape, tmp_path / "plain"), IDS, {})["logits"]
    model = write_llama(cached(shape), tmp_path / "caches")
    onnx.checker.check_model(str(model), full_check=True)
    names = [f"{layer}.{side}" for layer in range(2) for side in ("key", "value")]
    empty = {f"past_key_values.{name}": np.zeros((2, kv_heads, 0, 8), np.float32) for name in names}
    first = run(model, IDS[:, :4], empty)
    second = run(model, IDS[:, 4:], {f"past_key_values.{name}": first[f"present.{name}"] for name in names})
    assert np.abs(whole).mean() > 0.1
    np.testing.assert_allclose(np.concatenate([first["logits"], second["logits"]], 1), whole, atol=2e-5)


def test_half_precision_is_finite(tmp_path: Path) -> None:
    logits = run(write_llama(LlamaShape(**{**SMALL.__dict__, "dtype": "float16"}), tmp_path), IDS, {})["logits"]
    assert logits.dtype == np.float16
    assert np.isfinite(logits).all()


def test_the_data_is_dense_and_seeded(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_llama(SMALL, tmp_path / folder)
    data = (tmp_path / "a" / "model.onnx.data").read_bytes()
    assert data == (tmp_path / "b" / "model.onnx.data").read_bytes()
    assert len(set(np.frombuffer(data, "u4")[: 67 * 32].tolist())) > 2000


def test_eighty_layers_are_some_eighteen_thousand_nodes_without_data() -> None:
    model = llama_graph(LlamaShape(80, 8192, 28672, 64, 8, caches=True))
    assert 17_000 < len(model.graph.node) < 20_000
    assert max(Counter(output for node in model.graph.node for output in node.output).values()) == 1
    assert model.ByteSize() < 10_000_000
