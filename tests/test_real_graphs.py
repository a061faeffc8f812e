"""Real exporter graphs, compiled from the command line and run, against onnxruntime's run of the source.

Two AllReduce per layer (one where attention and FFN stand side by side), one for the embedding, one AllGather for the
logits: the counts below follow from the architectures alone; no graph, node or operator is known by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests import zoo
from tests.one_graph import Array, OneGraph, difference, session
from tpcompile.cli import main


@dataclass(frozen=True)
class Bar:
    """What a sound plan for two layers reaches: collectives of one run, and the largest rank's part of the weights.

    `share` is for tp 2, 3, 4. At tp 3, where no vocabulary here divides, one more collective is allowed.
    """

    collectives: int = 6
    share: tuple[float, float, float] = (0.54, 0.42, 0.31)


GRAPHS = {
    "albert__dynamo": Bar(collectives=7, share=(0.57, 0.44, 0.35)),
    "bert__dynamo": Bar(),
    "bert__legacy-eager": Bar(),
    "bloom__optimum": Bar(),  # fused query, key, value: heads, then the three
    "distilbert__optimum": Bar(),
    "falcon40b__dynamo__kv": Bar(collectives=4),  # attention and FFN are summed once; grouped q, k, v in one weight
    "gemma2__legacy__kv": Bar(),  # tied embedding
    "gpt-neox__optimum": Bar(collectives=4),
    "gpt2__legacy__kv": Bar(),  # fused query, key, value: the three, then heads
    "llama-mha-tied__dynamo": Bar(),
    "llama-odd__legacy": Bar(),  # vocabulary 503, FFN 170, 2 kv heads
    "llama__dynamo__kv": Bar(),
    "llama__hf__kv": Bar(),
    "phi3__optimum__kv": Bar(),  # fused q, k, v and fused gate, up
    "qwen2__optimum__kv": Bar(),  # biases on q, k, v; 2 kv heads
    "qwen3__dynamo23__kv": Bar(),  # ONNX Attention-23 and a norm per head
    "vit__dynamo": Bar(collectives=5, share=(0.56, 0.44, 0.34)),
}
LIMIT = 3e-5
"""Relative error that float32 sums in another order may make."""


def test_each_graph_of_the_folder_has_a_bar() -> None:
    assert sorted(GRAPHS) == zoo.names()


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("name", GRAPHS)
def test_compiled_graph_gives_the_sources_numbers(name: str, tp: int, tmp_path: Path) -> None:
    source, bundle, bar = zoo.save(name, tmp_path / "model.onnx"), tmp_path / "bundle", GRAPHS[name]
    assert main([str(source), "--tp", str(tp), "-o", str(bundle)]) == 0
    reference, ranks = session(str(source)), OneGraph(bundle)
    names = [output.name for output in reference.get_outputs()]
    for trial, feeds in trials(zoo.model(name), zoo.feeds(name)):
        wanted = dict(zip(names, reference.run(names, feeds), strict=True))
        got = ranks.run(feeds)
        assert list(got) == names
        errors = {key: difference(wanted[key], got[key]) for key in names}
        assert max(errors.values()) <= LIMIT, f"{trial}: {errors}"

    total = sum(len(tensor.raw_data) for tensor in zoo.model(name).graph.initializer)
    assert max(ranks.weight_bytes) / total <= bar.share[tp - 2]
    assert ranks.collectives.total() <= bar.collectives + (tp == 3)


def trials(model: onnx.ModelProto, feeds: dict[str, Array]) -> Iterator[tuple[str, dict[str, Array]]]:
    """The sample inputs, and inputs that no analysis has seen."""
    yield "sample", feeds
    batch = next(iter(feeds.values())).shape[0]
    yield "batch 1", {key: value[:1] if value.shape[:1] == (batch,) else value for key, value in feeds.items()}
    ids = feeds.get("input_ids")
    if ids is None:
        return
    length, past = ids.shape[1], past_length(feeds)
    if past:
        yield "past 1", {key: shorter_past(key, value, past) for key, value in feeds.items()}
    else:
        cut = {key: value[:, : length - 3] if value.shape[1:2] == (length,) else value for key, value in feeds.items()}
        yield "shorter", cut
    vocabulary = rows_read(model)
    spread = np.linspace(0, vocabulary - 1, ids.size).astype(np.int64).reshape(ids.shape)
    odd = np.arange(ids.size).reshape(ids.shape) % 2 == 1
    yield "every other id counts from the end", feeds | {"input_ids": np.where(odd, spread - vocabulary, spread)}


def past_length(feeds: dict[str, Array]) -> int:
    return next((value.shape[2] for key, value in feeds.items() if key.startswith("past")), 0)


def shorter_past(key: str, value: Array, past: int) -> Array:
    """The input `key` as it would be had the caches held one position only."""
    if key.startswith("past"):
        return value[:, :, past - 1 :]
    if key == "attention_mask":
        return value[:, past - 1 :]
    return value - (past - 1) if key == "position_ids" else value


def rows_read(model: onnx.ModelProto) -> int:
    """How many rows the table has that the token ids look up."""
    rows = {tensor.name: int(tensor.dims[0]) for tensor in model.graph.initializer if len(tensor.dims) == 2}
    made: dict[str, Any] = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0] in rows:
            ids = node.input[1]
            while ids in made and made[ids].op_type in ("Cast", "Reshape", "Identity"):
                ids = made[ids].input[0]
            if ids == "input_ids":
                return rows[node.input[0]]
    raise AssertionError("no table is read by input_ids")
