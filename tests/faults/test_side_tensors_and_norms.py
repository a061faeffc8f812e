"""Tables with an entry per head, and norms over what is cut (docs/faults.md, section F)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.faults.ranks import Ranks, model, stored

ALIBI = """(float[B, S, 5] x, float[S] positions) => (float[B, S, 7] y)
<float[5, {width}] w_q, float[5, {width}] w_k, float[5, {width}] w_v, float[{width}, 7] w_o,
 float[{heads}, 1, 1] slopes, int64[4] split = {{0, 0, {heads}, 2}}, int64[3] flat = {{0, 0, {width}}}>
{{ qm = MatMul(x, w_q) qr = Reshape(qm, split) q = Transpose <perm = [0, 2, 1, 3]> (qr)
 km = MatMul(x, w_k) kr = Reshape(km, split) k = Transpose <perm = [0, 2, 3, 1]> (kr)
 vm = MatMul(x, w_v) vr = Reshape(vm, split) v = Transpose <perm = [0, 2, 1, 3]> (vr)
 s = MatMul(q, k) bias = Mul(slopes, positions) biased = Add(s, bias) p = Softmax <axis = -1> (biased)
 o = MatMul(p, v) ot = Transpose <perm = [0, 2, 1, 3]> (o) joined = Reshape(ot, flat) y = MatMul(joined, w_o) }}"""


@pytest.mark.parametrize("heads", [4, 6])
@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6])
def test_f1_alibi_slopes_belong_to_each_ranks_heads(heads: int, tp: int, tmp_path: Path) -> None:
    slopes = np.array([0.7, -1.3, 0.21, 2.9, -0.4, 1.1])[:heads]
    proto = model(ALIBI.format(heads=heads, width=2 * heads), slopes=slopes)
    Ranks(proto, tp, tmp_path)
    if heads % tp == 0:
        ranks = Ranks(proto, tp, tmp_path, objective="balanced", pins={"w_o": "row", "w_q": "column"})
        held = [stored(each, "slopes").reshape(-1).tolist() for each in ranks.models]
        assert [slope for mine in held for slope in mine] == pytest.approx(slopes.tolist())


ROOT_MEAN_SQUARE = """(float[B, S, 5] x) => (float[B, S, 7] y)
<float[5, 8] w, float[8, 7] w_2, float[8] scale, float two = {2}, float little = {0.001}, int64[1] last = {-1}>
{ m = MatMul(x, w) q = Pow(m, two) a = ReduceMean(q, last) e = Add(a, little) r = Sqrt(e) n = Div(m, r)
 s = Mul(n, scale) y = MatMul(s, w_2) }"""


@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6, 7, 8])
def test_f3_a_mean_of_squares_over_a_cut_axis_is_summed_over_ranks(tp: int, tmp_path: Path) -> None:
    ranks = Ranks(model(ROOT_MEAN_SQUARE), tp, tmp_path)
    if tp in (2, 4, 8):
        assert ranks.shapes("scale") == [(8 // tp,)] * tp
        assert ranks.collectives == {"all_reduce": 2}  # the mean, which is [B, S, 1], and the second product


@pytest.mark.parametrize("tp", [2, 3, 4, 7])
@pytest.mark.parametrize("opset, op", [(20, "LayerNormalization"), (23, "RMSNormalization")])
def test_f3_a_norm_as_one_operator_gets_its_axis_whole(opset: int, op: str, tp: int, tmp_path: Path) -> None:
    text = f"""(float[B, S, 5] x) => (float[B, S, 7] y) <float[5, 8] w, float[8, 7] w_2, float[8] scale>
{{ m = MatMul(x, w) n = {op} <axis = -1> (m, scale) y = MatMul(n, w_2) }}"""
    proto = model(text, opset)
    Ranks(proto, tp, tmp_path)
    ranks = Ranks(proto, tp, tmp_path, objective="balanced", pins={"w": "column", "w_2": "whole"})
    assert ranks.collectives == {"all_gather": 1}


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_f5_a_norm_within_heads_needs_nothing_and_one_across_them_does(tp: int, tmp_path: Path) -> None:
    within = """(float[B, S, 5] x) => (float[B, S, 7] y)
<float[5, 12] w, float[12, 7] w_2, float[3] scale, float[3] b, int64[4] heads = {0, 0, 4, 3},
 int64[3] flat = {0, 0, 12}>
{ m = MatMul(x, w) h = Reshape(m, heads) n = LayerNormalization <axis = -1> (h, scale, b) f = Reshape(n, flat)
 y = MatMul(f, w_2) }"""
    across = """(float[B, S, 5] x) => (float[B, S, 7] y)
<float[5, 12] w, float[12, 7] w_2, float[12] scale, float[12] b, int64[4] heads = {0, 0, 4, 3},
 int64[3] flat = {0, 0, 12}>
{ m = MatMul(x, w) n = LayerNormalization <axis = -1> (m, scale, b) h = Reshape(n, heads) f = Reshape(h, flat)
 y = MatMul(f, w_2) }"""
    row, whole = ({"objective": "balanced", "pins": {"w": "column", "w_2": kind}} for kind in ("row", "whole"))
    assert Ranks(model(within), tp, tmp_path, **row).collectives == {"all_reduce": 1}
    assert Ranks(model(across), tp, tmp_path, **whole).collectives == {"all_gather": 1}
