"""Sizes written into the graph, and shapes that no longer hold after cutting (docs/faults.md, section G)."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.faults.ranks import Ranks, model, stored

HEADS = """(float[B, S, 5] x) => (float[B, S, 7] y)
<float[5, 8] w, float[8, 7] w_2, int64[4] split = {SPLIT}, int64[3] flat = {FLAT}>
{ m = MatMul(x, w) h = Reshape(m, split) p = Softmax <axis = -1> (h) f = Reshape(p, flat) y = MatMul(f, w_2) }"""
"""Eight columns are 4 heads of 2."""


def spelled(split: str, flat: str) -> str:
    return HEADS.replace("SPLIT", split).replace("FLAT", flat)


def test_g1_head_counts_in_reshapes_become_local(tmp_path: Path) -> None:
    ranks = Ranks(model(spelled("0, 0, 4, 2", "0, 0, 8")), 2, tmp_path)
    for rank, proto in enumerate(ranks.models):
        first, second = ranks.nodes(rank, "Reshape")
        assert stored(proto, first.input[1]).tolist() == [0, 0, 2, 2]
        assert stored(proto, second.input[1]).tolist() == [0, 0, 4]


@pytest.mark.parametrize("split", ["0, 0, 4, 2", "0, -1, 4, 2", "0, 0, -1, 2", "0, 0, 4, -1"])
@pytest.mark.parametrize("flat", ["0, 0, 8", "0, 0, -1", "0, -1, 8"])
@pytest.mark.parametrize("tp", [2, 3, 4, 5])
def test_g2_minus_one_means_the_same_axis_before_and_after(split: str, flat: str, tp: int, tmp_path: Path) -> None:
    """[1, −1, 4, 2] of a local [1, 8, 4] would silently halve the sequence."""
    Ranks(model(spelled(split, flat)), tp, tmp_path)


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_g2_a_target_computed_from_a_cut_value(tp: int, tmp_path: Path) -> None:
    """Shape of the cut value, from which exporters take the batch, the length and the width."""
    text = """(float[B, S, 5] x) => (float[B, S, 7] y)
<float[5, 8] w, float[8, 7] w_2, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
 int64[1] four = {4}>
{ m = MatMul(x, w) s = Shape(m) bs = Slice(s, zero, two) width = Slice(s, two, three) size = Div(width, four)
 split = Concat <axis = 0> (bs, four, size) h = Reshape(m, split) p = Softmax <axis = -1> (h)
 flat = Concat <axis = 0> (bs, width) f = Reshape(p, flat) y = MatMul(f, w_2) }"""
    Ranks(model(text), tp, tmp_path)


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_g4_a_cut_outer_factor_of_a_reshape(tp: int, tmp_path: Path) -> None:
    """[12, 8] → [3, 4, 8] → [12, 8], the first axis cut; and [B·heads, …], whose size depends on the input."""
    text = """(float[B, 5] x) => (float[B, 12, 8] z)
<float[5, 12] w, float[12, 8] table, int64[3] three = {3, 4, 8}, int64[2] two = {12, 8}, int64[3] one = {-1, 12, 1}>
{ t = Reshape(table, three) e = Exp(t) r = Reshape(e, two) m = MatMul(x, w) h = Reshape(m, one) z = Mul(h, r) }"""
    Ranks(model(text), tp, tmp_path)
    merged = """(float[B, S, 5] x) => (float[B, S, 7] y)
<float[5, 12] w, float[12, 7] w_2, int64[4] split = {0, 0, 4, 3}, int64[3] merge = {-1, SIZE, 3}, int64[1] zero = {0},
 int64[1] two = {2}, int64[2] heads = {4, 3}, int64[3] flat = {0, 0, 12}, int64[1] one = {1}, int64[1] four = {4},
 int64[1] three = {3}>
{ m = MatMul(x, w) h = Reshape(m, split) t = Transpose <perm = [0, 2, 1, 3]> (h)
 s = Shape(x) b = Slice(s, zero, one) length = Slice(s, one, two) bh = Mul(b, four)
 merged = Concat <axis = 0> (bh, length, three) g = Reshape(t, merged) p = Softmax <axis = -1> (g)
 apart = Concat <axis = 0> (b, four, length, three) u = Reshape(p, apart) v = Transpose <perm = [0, 2, 1, 3]> (u)
 f = Reshape(v, flat) y = MatMul(f, w_2) }""".replace("SIZE", "1")
    Ranks(model(merged), tp, tmp_path)


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_g7_no_shape_of_the_uncut_graph_is_left_behind(tp: int, tmp_path: Path) -> None:
    proto = onnx.shape_inference.infer_shapes(model(spelled("0, 0, 4, 2", "0, 0, 8")))
    assert len(proto.graph.value_info) >= 4
    ranks = Ranks(proto, tp, tmp_path)
    for rank in ranks.models:
        onnx.shape_inference.infer_shapes(rank, check_type=True, strict_mode=True, data_prop=True)
        onnx.checker.check_model(rank, full_check=True)
