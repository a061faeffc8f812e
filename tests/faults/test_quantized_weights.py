"""Weights of whole numbers, their scales, and operators of ONNX Runtime (docs/faults.md, sections G and I)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.ranks import Ranks, blocks, model, stored
from tests.one_graph import Array

RANDOM = np.random.default_rng(5)


def packed(*shape: int) -> Array:
    """Bytes of two numbers of 4 bits each, all there are."""
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def scales(*shape: int) -> Array:
    """Mixed in size, as scales are."""
    return RANDOM.uniform(0.01, 0.1, shape).astype(np.float32)


IN_BLOCKS = """(float[B, 5] x) => (float[B, 7] y)
<float[5, {width}] w, float[{width}] b, uint8[7, {count}, 16] q, float[7, {count}] s, float[7] b_q>
{{ m = MatMul(x, w) a = Add(m, b) t = Tanh(a)
 y = com.microsoft.MatMulNBits <K = {width}, N = 7, bits = 4, block_size = 32> (t, q, s, , , b_q) }}"""


@pytest.mark.parametrize("tp", [2, 3, 4, 6])
@pytest.mark.parametrize("width", [96, 80], ids=["three blocks", "two and a half"])
def test_i1_blocks_of_rows_that_do_not_divide(width: int, tp: int, tmp_path: Path) -> None:
    """Three blocks of 32 on two ranks: two and one, each with its scales; never half a block."""
    proto = model(IN_BLOCKS.format(width=width, count=3), q=packed(7, 3, 16), s=scales(7, 3))
    ranks = Ranks(proto, tp, tmp_path)
    for q, s in zip(ranks.shapes("q"), ranks.shapes("s"), strict=True):
        assert q[:2] == s
    for rank, held in enumerate(ranks.models):
        (node,) = ranks.nodes(rank, "MatMulNBits")
        says = {attribute.name: attribute.i for attribute in node.attribute}
        assert (says["N"], says["block_size"]) == (stored(held, "q").shape[0], 32)
        assert -(-says["K"] // 32) == stored(held, "q").shape[1]


def test_i1_the_ranks_hold_whole_blocks_of_rows(tmp_path: Path) -> None:
    proto = model(IN_BLOCKS.format(width=96, count=3), q=packed(7, 3, 16), s=scales(7, 3))
    ranks = Ranks(proto, 2, tmp_path, objective="balanced", pins={"q": "row"})
    assert ranks.shapes("q") == [(7, 2, 16), (7, 1, 16)]
    assert ranks.shapes("w") == [(5, 64), (5, 32)]
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_i1_blocks_of_scales_of_a_weight_that_is_dequantized(tp: int, tmp_path: Path) -> None:
    text = """(float[B, 5] x) => (float[B, 7] y) <float[5, 24] w, int8[24, 7] q, float[6, 7] s>
{ m = MatMul(x, w) t = Tanh(m) d = DequantizeLinear <axis = 0, block_size = 4> (q, s) y = MatMul(t, d) }"""
    ranks = Ranks(model(text, opset=21, q=RANDOM.integers(-128, 128, (24, 7)), s=scales(6, 7)), tp, tmp_path)
    for q, s in zip(ranks.shapes("q"), ranks.shapes("s"), strict=True):
        assert q == (4 * s[0], s[1])


FUSED = """(float[B, S, 6] x) => (float[B, S, 7] y)
<int8[6, 24] w, float[24] s, int8[24] z, float[24] b, float[8, 7] w_o, float[7] b_o, int64[3] parts = {8, 8, 8}>
{ d = DequantizeLinear <axis = 1> (w, s, z) m = MatMul(x, d) f = Add(m, b) q, k, v = Split <axis = -1> (f, parts)
 g = Sigmoid(q) t = Tanh(k) gt = Mul(g, t) o = Mul(gt, v) p = MatMul(o, w_o) y = Add(p, b_o) }"""


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_i3_scales_and_zero_points_are_cut_by_the_segments_of_their_weight(tp: int, tmp_path: Path) -> None:
    given = {
        "w": RANDOM.integers(-128, 128, (6, 24)),
        "s": scales(24),
        "z": RANDOM.integers(-9, 10, 24),
    }
    proto = model(FUSED, **given)
    ranks = Ranks(proto, tp, tmp_path, objective="balanced", pins={"w_o": "row"})
    for rank, held in enumerate(ranks.models):
        start, size = sum(blocks(8, tp)[:rank]), blocks(8, tp)[rank]
        mine = np.concatenate([np.arange(start, start + size) + 8 * part for part in range(3)])
        for name in "szb":
            assert np.array_equal(stored(held, name), stored(proto, name)[mine])
        assert np.array_equal(stored(held, "w"), stored(proto, "w")[:, mine])
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("dtype, low, high", [("int4", -8, 8), ("uint4", 0, 16)])
def test_i4_numbers_of_half_a_byte_are_packed_anew(dtype: str, low: int, high: int, tmp_path: Path) -> None:
    """Three columns of six: the cut falls into the middle of a byte in every other row."""
    text = f"""(float[B, 5] x) => (float[B, 7] y) <{dtype}[5, 6] w, float[6] s, float[6, 7] v>
{{ d = DequantizeLinear <axis = 1> (w, s) m = MatMul(x, d) t = Tanh(m) y = MatMul(t, v) }}"""
    proto = model(text, opset=21, w=RANDOM.integers(low, high, (5, 6)), s=scales(6))
    ranks = Ranks(proto, 2, tmp_path, objective="balanced", pins={"v": "row"})
    for rank, held in enumerate(ranks.models):
        mine = stored(proto, "w")[:, 3 * rank : 3 * rank + 3]
        assert np.array_equal(stored(held, "w").astype(np.int8), mine.astype(np.int8))


@pytest.mark.parametrize("tp", [2, 4])
def test_i4_blocks_of_packed_rows_are_stored_as_they_lie(tp: int, tmp_path: Path) -> None:
    """q[:, 2:4] as bytes: two runs of each of seven rows, not a view of all of it."""
    proto = model(IN_BLOCKS.format(width=128, count=4), q=packed(7, 4, 16), s=scales(7, 4))
    ranks = Ranks(proto, tp, tmp_path, objective="balanced", pins={"q": "row"})
    for rank, held in enumerate(ranks.models):
        each = 4 // tp
        wanted = np.ascontiguousarray(stored(proto, "q")[:, each * rank : each * (rank + 1)])
        assert stored(held, "q").tobytes() == wanted.tobytes()


ATTENTION = """(float[B, S, 6] x, int32[B] last) => (float[B, S, 7] y)
<float[6, 32] w_q, float[6, 16] w_k, float[6, 16] w_v, float[32, 7] w_o, float[7] b_o, int32 total = {5}>
{ q = MatMul(x, w_q) k = MatMul(x, w_k) v = MatMul(x, w_v)
 a, nk, nv = com.microsoft.GroupQueryAttention <ATTRIBUTES> (q, k, v, , , last, total)
 o = MatMul(a, w_o) y = Add(o, b_o) }"""
ORDERS = {
    "heads first": "num_heads = 4, kv_num_heads = 2, scale = 0.3",
    "heads last": "scale = 0.3, kv_num_heads = 2, num_heads = 4",
    "heads between": "kv_num_heads = 2, local_window_size = 3, num_heads = 4, scale = 0.3",
}


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("order", ORDERS)
def test_g6_head_counts_are_found_by_name_in_any_order(order: str, tp: int, tmp_path: Path) -> None:
    proto = model(ATTENTION.replace("ATTRIBUTES", ORDERS[order]))
    ranks = Ranks(proto, tp, tmp_path, given=given_lengths(), objective="balanced", pins={"w_o": "row"})
    counts = []
    for rank in range(tp):
        (node,) = ranks.nodes(rank, "GroupQueryAttention")
        says: dict[str, Any] = {attribute.name: attribute for attribute in node.attribute}
        assert says["scale"].f == np.float32(0.3)
        counts.append((says["num_heads"].i, says["kv_num_heads"].i))
    assert counts == {2: [(2, 1)] * 2, 3: [(4, 2)] * 3, 4: [(1, 1)] * 4}[tp]  # three ranks suit neither kind of head


def given_lengths() -> dict[str, Any]:
    """A prompt of five tokens for each of two sequences."""
    return {"last": np.array([4, 4], np.int32)}
