"""Outputs left cut (`--outputs shard`): where they are, what covers them, and that the numbers stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpcompile
from tests import zoo
from tests.plan.models import LIMIT, error_of, model
from tpcompile.run.session import InferenceSession

Ranges = list[list[list[int]]]


def placements(bundle: tpcompile.Bundle) -> dict[str, tuple[int, Ranges] | None]:
    """Axis and ranges of each input and output, None where it is whole."""
    doors = {**bundle.manifest.inputs, **bundle.manifest.outputs}
    found: dict[str, tuple[int, Ranges] | None] = {}
    for name, entry in doors.items():
        place = entry.placement
        found[name] = place and (place.axis, [[list(span) for span in mine] for mine in place.ranges])
    return found


@pytest.mark.parametrize(
    ("name", "tp"), [("llama-odd__legacy", 3), ("gpt-neox__optimum", 2), ("gemma2__legacy__kv", 4)]
)
def test_logits_of_real_graphs_stay_cut(name: str, tp: int, tmp_path: Path) -> None:
    source = zoo.model(name)
    whole = tpcompile.compile(source, tp, tmp_path / "whole")
    bundle = tpcompile.compile(source, tp, tmp_path / "shard", outputs="shard", verify=tp == 3)
    assert error_of(source, tmp_path / "shard", zoo.feeds(name)) <= LIMIT
    entry = bundle.manifest.outputs["logits"]
    rows = entry.shape[-1]
    assert entry.placement is not None and isinstance(rows, int)
    assert entry.placement.axis == 2
    edges = [mine[0] for mine in entry.placement.ranges]
    assert [stop for _, stop in edges[:-1]] == [start for start, _ in edges[1:]]
    assert (edges[0][0], edges[-1][1]) == (0, rows)
    assert [call.op for call in whole.manifest.collectives].count("all_gather") == 1
    assert [call.op for call in bundle.manifest.collectives].count("all_gather") == 0


HALVES = [[[0, 12]], [[12, 24]]]
GRAPHS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "column": (
        "(float[batch, 8] x) => (float[batch, 24] y) <float[8, 24] w> { y = MatMul(x, w) }",
        2,
        {"y": (1, HALVES)},
    ),
    "also read inside": (
        """(float[batch, 8] x) => (float[batch, 24] h, float[batch, 8] y) <float[8, 24] w, float[24, 8] v>
        { h = MatMul(x, w) y = MatMul(h, v) }""",
        2,
        {"h": (1, HALVES), "y": None},
    ),
    "several runs": (
        """(float[batch, 8] x) => (float[batch, 40] y) <float[8, 24] w, float[8, 16] v>
        { h = MatMul(x, w) k = MatMul(x, v) y = Concat<axis = 1>(h, k) }""",
        2,
        {"y": (1, [[[0, 12], [24, 32]], [[12, 24], [32, 40]]])},
    ),
    "two axes could be": (
        """(float[24, 8] x) => (float[24, 16] y) <float[8, 16] w, float[24, 8] u>
        { h = Add(x, u) y = MatMul(h, w) }""",
        4,
        {},
    ),
    "mixed with a dynamic size": (
        """(float[batch, 8] x) => (float[rest, 4] y) <float[8, 24] w, int64[2] s = {-1, 4}>
        { h = MatMul(x, w) y = Reshape(h, s) }""",
        3,
        {},
    ),
    "mixed with two dynamic sizes": (
        """(float[batch, seq, 8] x) => (float[rest, 2] y) <float[8, 24] w, int64[2] s = {-1, 2}>
        { h = MatMul(x, w) y = Reshape(h, s) }""",
        3,
        {},
    ),
    "a weight": (
        "(float[batch, 8] x) => (float[batch, 24] y, float[8, 24] w) <float[8, 24] w> { y = MatMul(x, w) }",
        2,
        {"y": (1, HALVES), "w": None},
    ),
    "an input": (
        """(float[batch, 24] a, float[batch, 8] x) => (float[batch, 24] y, float[batch, 24] a) <float[8, 24] w>
        { m = MatMul(x, w) y = Add(m, a) }""",
        2,
        {"y": (1, HALVES), "a": None},
    ),
    "nothing cut": (
        "(float[batch, 8] x) => (float[batch, 8] y) { y = Relu(x) }",
        2,
        {"y": None},
    ),
}


@pytest.mark.parametrize("objective", ["balanced", "memory"])
@pytest.mark.parametrize("outputs", ["shard", "whole"])
@pytest.mark.parametrize("name", GRAPHS)
def test_small_graphs(name: str, outputs: str, objective: str, tmp_path: Path) -> None:
    text, tp, expected = GRAPHS[name]
    source = model(text)
    bundle = tpcompile.compile(source, tp, tmp_path / "b", outputs=outputs, objective=objective, verify=True)
    assert error_of(source, tmp_path / "b") <= LIMIT
    found = placements(bundle)
    assert all(found[value.name] is None for value in source.graph.input), "only caches come in cut"
    if outputs == "whole":
        assert not any(found.values())
    elif objective == "balanced":
        assert {key: found[key] for key in expected} == expected


def test_sessions_put_cut_outputs_together(tmp_path: Path) -> None:
    name = "llama__dynamo__kv"
    source, feeds = zoo.model(name), zoo.feeds(name)
    for outputs in ("whole", "shard"):
        tpcompile.compile(source, 2, tmp_path / outputs, outputs=outputs)
    with InferenceSession(tmp_path / "whole") as whole, InferenceSession(tmp_path / "shard") as shard:
        names = [value.name for value in whole.get_outputs()]
        for a, b in zip(whole.run(names, feeds), shard.run(names, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert np.array_equal(whole.decode(feeds, 3)["tokens"], shard.decode(feeds, 3)["tokens"])


def test_pixel_values_are_no_cache(tmp_path: Path) -> None:
    """ "value" in a name makes no cache of what a stored weight is applied to; keys that come in are one."""
    pixels = model(
        """(float[batch, 6, 8, 8] pixel_values) => (float[batch, 8, 8, 8] y)
        <float[64, 6, 1, 1] w, float[8, 64, 1, 1] v> { a = Conv(pixel_values, w) b = Relu(a) y = Conv(b, v) }"""
    )
    bundle = tpcompile.compile(pixels, 2, tmp_path / "pixels", objective="memory")
    assert placements(bundle) == {"pixel_values": None, "y": None}
    keys = model(
        """(float[batch, seq, 8] x, float[batch, 6, past, 4] encoder_key) => (float[batch, 6, seq, past] y)
        <float[8, 24] q, int64[4] heads = {0, 0, 6, 4}>
        { a = MatMul(x, q) b = Reshape(a, heads) c = Transpose<perm = [0, 2, 1, 3]>(b)
          d = Transpose<perm = [0, 1, 3, 2]>(encoder_key) y = MatMul(c, d) }"""
    )
    bundle = tpcompile.compile(keys, 2, tmp_path / "keys", objective="memory")
    assert placements(bundle) == {"x": None, "encoder_key": (1, [[[0, 3]], [[3, 6]]]), "y": None}


def test_an_if_that_sizes_decide(tmp_path: Path) -> None:
    """torch's tracer writes squeeze as an If over a size: the branch it takes is cut as if it stood there."""
    source = model(
        """(float[batch, seq, 8] x) => (float[batch, seq, 8] y)
        <float[8, 32] up, float[32, 8] down, int64 width = {32}>
        {
         a = MatMul(x, up)
         s = Shape<start = 2, end = 3>(a)  same = Equal(s, width)
         b = If (same) <then_branch = yes () => (float[batch, seq, 32] p) { p = Relu(a) },
                        else_branch = no () => (float[batch, seq, 32] q) { q = Neg(a) }>
         y = MatMul(b, down)
        }"""
    )
    bundle = tpcompile.compile(source, 2, tmp_path / "b")
    assert [call.op for call in bundle.manifest.collectives] == ["all_reduce"]
    assert error_of(source, tmp_path / "b") <= LIMIT
