"""Query, key and value in one weight, in every order that exporters and training codes have used.

Cutting such a weight in one piece gives wrong text and no error (docs/faults.md, section C). Here the parts follow from
the Split or Reshape downstream.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.faults.ranks import Ranks, blocks, core, model, stored

DEGREES = [2, 3, 4]
TRANSPOSED = """q = Transpose <perm = [0, 2, 1, 3]> (qs) k = Transpose <perm = [0, 2, 1, 3]> (ks)
 v = Transpose <perm = [0, 2, 1, 3]> (vs)"""

BLOCKS_OF_ALL = f"""(float[B, S, 6] x) => (float[B, S, 7] y)
<float[6, 24] w, float[24] b, float[8, 7] w_o, float[7] b_o, float scale = {{0.1}},
 int64[3] parts = {{8, 8, 8}}, int64[4] heads = {{0, 0, 4, 2}}, int64[3] flat = {{0, 0, 8}}>
{{ m = MatMul(x, w) f = Add(m, b) qf, kf, vf = Split <axis = -1> (f, parts)
 qs = Reshape(qf, heads) ks = Reshape(kf, heads) vs = Reshape(vf, heads) {TRANSPOSED}
 {core("flat")} z = MatMul(joined, w_o) y = Add(z, b_o) }}"""

PER_HEAD = f"""(float[B, S, 6] x) => (float[B, S, 7] y)
<float[6, 24] w, float[24] b, float[8, 7] w_o, float[7] b_o, float scale = {{0.1}},
 int64[5] heads = {{0, 0, 4, 3, 2}}, int64[3] flat = {{0, 0, 8}}, int64 zero = {{0}}, int64 one = {{1}},
 int64 two = {{2}}>
{{ m = MatMul(x, w) f = Add(m, b) r = Reshape(f, heads)
 qs = Gather <axis = 3> (r, zero) ks = Gather <axis = 3> (r, one) vs = Gather <axis = 3> (r, two) {TRANSPOSED}
 {core("flat")} z = MatMul(joined, w_o) y = Add(z, b_o) }}"""

BLOCKS_OF_TWO_HEADS = f"""(float[B, S, 6] x) => (float[B, S, 7] y)
<float[6, 24] w, float[24] b, float[8, 7] w_o, float[7] b_o, float scale = {{0.1}},
 int64[4] blocks = {{0, 0, 2, 12}}, int64[3] parts = {{4, 4, 4}}, int64[4] heads = {{0, 0, 4, 2}},
 int64[3] flat = {{0, 0, 8}}>
{{ m = MatMul(x, w) f = Add(m, b) r = Reshape(f, blocks) qf, vf, kf = Split <axis = -1> (r, parts)
 qs = Reshape(qf, heads) ks = Reshape(kf, heads) vs = Reshape(vf, heads) {TRANSPOSED}
 {core("flat")} z = MatMul(joined, w_o) y = Add(z, b_o) }}"""
"""As CodeGen has it: two blocks, in each the queries of two heads, then their values, then their keys."""


@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("text", [BLOCKS_OF_ALL, PER_HEAD, BLOCKS_OF_TWO_HEADS], ids=["all", "per head", "two heads"])
def test_c1_three_packings_of_query_key_value(text: str, tp: int, tmp_path: Path) -> None:
    Ranks(model(text), tp, tmp_path)


@pytest.mark.parametrize("text", [BLOCKS_OF_ALL, PER_HEAD], ids=["all", "per head"])
def test_c1_each_rank_holds_its_heads_of_all_three(text: str, tmp_path: Path) -> None:
    proto = model(text)
    ranks = Ranks(proto, 2, tmp_path, objective="balanced", pins={"w_o": "row"})
    columns = [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19] if text is BLOCKS_OF_ALL else range(12)
    whole = stored(proto, "w")
    for rank, held in enumerate(ranks.models):
        mine = np.array(columns) + (4 if text is BLOCKS_OF_ALL else 12) * rank
        assert np.array_equal(stored(held, "w"), whole[:, mine])
        assert np.array_equal(stored(held, "b"), stored(proto, "b")[mine])
    assert ranks.collectives == {"all_reduce": 1}


GROUPED = f"""(float[B, S, 6] x) => (float[B, S, 7] y)
<float[6, 16] w, float[16] b, float[8, 7] w_o, float[7] b_o, float scale = {{0.1}}, int64[3] parts = {{8, 4, 4}},
 int64[4] heads = {{0, 0, 4, 2}}, int64[4] few = {{0, 0, 2, 2}}, int64[1] two = {{2}},
 int64[5] repeat = {{1, 1, 2, 1, 1}}, int64[4] merged = {{0, 4, -1, 2}}, int64[3] flat = {{0, 0, 8}}>
{{ m = MatMul(x, w) f = Add(m, b) qf, kf, vf = Split <axis = -1> (f, parts)
 qs = Reshape(qf, heads) kr = Reshape(kf, few) vr = Reshape(vf, few) q = Transpose <perm = [0, 2, 1, 3]> (qs)
 kt = Transpose <perm = [0, 2, 1, 3]> (kr) ku = Unsqueeze(kt, two) ke = Expand(ku, repeat) k = Reshape(ke, merged)
 vt = Transpose <perm = [0, 2, 1, 3]> (vr) vu = Unsqueeze(vt, two) ve = Expand(vu, repeat) v = Reshape(ve, merged)
 {core("flat")} z = MatMul(joined, w_o) y = Add(z, b_o) }}"""


def test_c3_split_sizes_of_grouped_attention_become_local(tmp_path: Path) -> None:
    ranks = Ranks(model(GROUPED), 2, tmp_path, objective="balanced", pins={"w_o": "row"})
    for rank, proto in enumerate(ranks.models):
        (split,) = ranks.nodes(rank, "Split")
        assert stored(proto, split.input[1]).tolist() == [4, 2, 2]


@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6, 7])
def test_c4_a_fused_bias_is_cut_with_the_segments_of_its_weight(tp: int, tmp_path: Path) -> None:
    proto = model(GROUPED)
    ranks = Ranks(proto, tp, tmp_path)
    for held in ranks.models:
        weight, bias = stored(held, "w"), stored(held, "b")
        if weight.shape[0] == 6:
            mine = [int(np.flatnonzero((stored(proto, "w") == column[:, None]).all(axis=0))[0]) for column in weight.T]
            assert np.array_equal(bias, stored(proto, "b")[mine])


@pytest.mark.parametrize("outputs", ["whole", "shard"])
@pytest.mark.parametrize("tp", DEGREES)
def test_c6_a_fused_value_that_is_also_an_output_is_put_back_in_order(tp: int, outputs: str, tmp_path: Path) -> None:
    text = BLOCKS_OF_ALL.replace("float[B, S, 7] y)", "float[B, S, 7] y, float[B, S, 24] f)", 1)
    Ranks(model(text), tp, tmp_path, objective="balanced", pins={"w_o": "row"} if tp != 3 else {}, outputs=outputs)


@pytest.mark.parametrize("transposed", [False, True], ids=["stored [in, out]", "stored [out, in]"])
@pytest.mark.parametrize("tp", [2, 3, 4])
def test_c10_orientation_comes_from_the_operator_not_from_names(transposed: bool, tp: int, tmp_path: Path) -> None:
    """GPT-2 stores its `c_attn` as [in, 3·out], PyTorch's linear layers as [3·out, in]; here 5 in, 3 times 4 out."""
    w, w_o = ("float[12, 5]", "float[7, 4]") if transposed else ("float[5, 12]", "float[4, 7]")
    flag = f"transB = {int(transposed)}"
    text = f"""(float[B, 5] x) => (float[B, 7] y)
<{w} c_attn, float[12] b, {w_o} c_proj, float[7] b_o, int64[3] parts = {{4, 4, 4}}>
{{ f = Gemm <{flag}> (x, c_attn, b) q, k, v = Split <axis = 1> (f, parts)
 g = Sigmoid(q) kg = Mul(k, g) o = Add(kg, v) y = Gemm <{flag}> (o, c_proj, b_o) }}"""
    ranks = Ranks(model(text), tp, tmp_path, objective="balanced", pins={"c_proj": "row"})
    out = 0 if transposed else 1
    assert sum(shape[out] for shape in ranks.shapes("c_attn")) == 12
    assert {shape[1 - out] for shape in ranks.shapes("c_attn")} == {5}
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("tp", [2, 3, 4, 5])
@pytest.mark.parametrize("interleaved", [False, True], ids=["gate, then up", "in pairs"])
def test_h4_gate_and_up_in_one_weight_are_cut_alike(interleaved: bool, tp: int, tmp_path: Path) -> None:
    """One weight of two layers: each rank needs the same columns of both, however they lie."""
    apart = (
        """r = Reshape(m, pairs) g = Gather <axis = 2> (r, zero) u = Gather <axis = 2> (r, one)"""
        if interleaved
        else "g, u = Split <axis = 1> (m, halves)"
    )
    text = f"""(float[B, 5] x) => (float[B, 7] y) <float[5, 20] w, float[10, 7] w_o, float[7] b_o,
 int64[2] halves = {{10, 10}}, int64[3] pairs = {{0, 10, 2}}, int64 zero = {{0}}, int64 one = {{1}}>
{{ m = MatMul(x, w) {apart} s = Sigmoid(g) h = Mul(s, u) o = MatMul(h, w_o) y = Add(o, b_o) }}"""
    proto = model(text)
    ranks = Ranks(proto, tp, tmp_path, objective="balanced", pins={"w_o": "row"})
    assert ranks.collectives == {"all_reduce": 1}
    for rank, held in enumerate(ranks.models):
        start, size = sum(blocks(10, tp)[:rank]), blocks(10, tp)[rank]
        mine = np.arange(start, start + size)
        columns = (mine[:, None] * 2 + [0, 1]).ravel() if interleaved else np.concatenate([mine, mine + 10])
        assert np.array_equal(stored(held, "w"), stored(proto, "w")[:, columns])
