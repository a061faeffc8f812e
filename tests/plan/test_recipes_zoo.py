"""Recipes of families on the graphs of their exporters: weights and collectives within the bars. Needs the zoo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tpcompile
from tests import zoo
from tpcompile.plan_summary import estimate_of

FOLDER = Path(__file__).parents[3] / "shared" / "zoo"
GRAPHS = [
    *(("llama", name) for name in (
        "llama__legacy__kv", "llama__optimum__kv", "llama__genai__kv", "llama__genai__int4", "mistral__genai__kv",
        "qwen2__genai__int4", "qwen3__optimum__kv", "gemma2__optimum__kv", "smollm3__genai__kv",
    )),
    *(("phi3", name) for name in ("phi3__legacy__kv", "phi3__optimum", "phi3__genai__int4")),
    *(("gpt2", name) for name in ("gpt2__dynamo", "gpt2__optimum__kv", "gpt2__ortopt")),
    *(("bert", name) for name in ("bert__dynamo", "bert__optimum", "bert__ortopt", "roberta__legacy")),
    *(("t5", name) for name in ("t5__legacy", "t5__optimum-decoder__kv", "t5__optimum-encoder")),
    *(("mixtral", name) for name in ("mixtral__legacy__kv", "mixtral__dynamo")),
    *(("vit", name) for name in ("vit__legacy", "vit__optimum", "vit__dynamo23")),
    *(("gpt-neox", name) for name in ("gpt-neox__legacy__kv", "bloom__legacy", "falcon40b__legacy")),
]  # fmt: skip


@pytest.mark.parametrize(("recipe", "name"), GRAPHS)
def test_families_meet_the_bars(recipe: str, name: str) -> None:
    if not (FOLDER / f"{name}.onnx").exists():
        pytest.skip("the zoo is not beside the checkout (../shared/zoo), or lacks this graph")
    bars = json.loads((FOLDER / "expect.json").read_text())[name]
    work = tpcompile.plan(zoo.model(name, FOLDER), 4, recipe=recipe)
    found = estimate_of(work)
    assert sum(found.collectives.values()) <= bars["collectives"]["4"]
    assert found.rank.weights / found.whole.weights <= bars["share"]["4"] + 0.004
