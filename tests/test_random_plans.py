"""Plans and graphs that nobody chose: exporter graphs and random ones, cut at random, give the source's numbers.

A small fixed set; `tools/fuzz_plans` draws any number.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests import zoo
from tests.randomly.graphs import SAMPLES, RandomGraph
from tests.randomly.plans import KINDS, Draw, Subject, known_trials

GRAPHS = [
    "albert__dynamo", "bert__legacy-eager", "bloom__optimum", "falcon40b__dynamo__kv", "gemma2__legacy__kv",
    "gpt-neox__optimum", "gpt2__legacy__kv", "llama-odd__legacy", "llama__hf__kv", "phi3__optimum__kv",
    "qwen2__optimum__kv", "qwen3__dynamo23__kv", "vit__dynamo",
]  # fmt: skip
DEGREES = (2, 3, 4, 6)
RANDOM_LIMIT = 2e-4
"""Random graphs subtract nearly equal numbers more often than models do."""


@cache
def exported(name: str) -> Subject:
    return Subject(zoo.model(name), known_trials(zoo.model(name), zoo.feeds(name)))


@pytest.mark.parametrize("tp", DEGREES)
@pytest.mark.parametrize("name", GRAPHS)
def test_exported_graph_under_a_random_plan(name: str, tp: int) -> None:
    seed = 10 * GRAPHS.index(name) + tp
    draw = Draw(tp, seed, KINDS[seed // 2 % 2], outputs="shard" if seed % 5 == 0 else "whole")
    errors = exported(name).errors(draw)
    assert max(errors.values()) <= exported(name).limit, (draw, errors)


@pytest.mark.parametrize("seed", range(48))
def test_random_graph_under_random_plans(seed: int) -> None:
    graph = RandomGraph(seed, 18)
    subject = Subject(graph.model, [(str(sizes), graph.feeds(sizes)) for sizes in SAMPLES])
    for tp, kind in ((2, "listed"), (3, "solved"), (4 + seed % 3, KINDS[seed % 2])):
        draw = Draw(tp, seed, kind, outputs="shard" if seed % 4 == 0 else "whole")
        errors = subject.errors(draw)
        assert max(errors.values()) <= RANDOM_LIMIT, (draw, errors)
