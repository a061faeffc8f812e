"""Whole bundles of quantised models: planned, written, put together, verified. Weights are larger than a page."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tpcompile
from tests.faults.ranks import Ranks
from tests.rules.sample import Sample
from tpcompile.errors import Refused
from tpcompile.plan_summary import summarize
from tpcompile.verify.command import verify_bundle

SCALES = dict.fromkeys(("up_s", "down_s", "head_s"), (0.001, 0.004))
SYMBOLS = {"B": 2, "S": 5}


def of(text: str, domain: str = "com.microsoft") -> onnx.ModelProto:
    return Sample(f"{domain}.MatMulNBits", text, values=SCALES, sizes=SYMBOLS, opset=21).model()


INT4 = """(float[B, S, 96] x) => (float[B, S, 40] y)
<int4[96, 303] up, float[6, 303] up_s, uint4[303, 40] down, float[10, 40] down_s, uint4[10, 40] zero> {
    w = DequantizeLinear<axis = 0, block_size = 16>(up, up_s)
    v = DequantizeLinear<axis = 0, block_size = 32>(down, down_s, zero)
    a = MatMul(x, w)
    b = Relu(a)
    y = MatMul(b, v)
}"""
"""303 columns in rows of 4-bit numbers, cut within bytes; 303 rows in blocks of 32, of which the last is shorter."""

NBITS = """(float[B, S, 128] x) => (float[B, S, 40] y)
<uint8[344, 4, 16] up, float[344, 4] up_s,
 uint8[40, 11, 16] down, float[40, 11] down_s, uint8[40, 6] zero, float[40] c> {
    a = com.microsoft.MatMulNBits<K = 128, N = 344, block_size = 32>(x, up, up_s)
    b = Relu(a)
    y = com.microsoft.MatMulNBits<K = 344, N = 40, block_size = 32>(b, down, down_s, zero, "", c)
}"""
"""344 rows in blocks of 32, zero points of two blocks in a byte: 6 parts of 64 rows at most."""

TIED = """(int64[B, S] ids) => (float[B, S, 503] y)
<uint8[503, 4, 16] head, float[503, 4] head_s, int64[2] flat = {503, 64}> {
    table = Reshape(head, flat)
    x = com.microsoft.GatherBlockQuantized<block_size = 32, bits = 4>(table, ids, head_s)
    y = com.microsoft.MatMulNBits<K = 128, N = 503, block_size = 32>(x, head, head_s)
}"""
"""One tensor is the embedding and the head."""

EXPERTS = """(float[6, 32] x, float[6, 5] r) => (float[6, 32] y)
<uint8[5, 192, 16] up, float[5, 192, 2] up_s, uint8[5, 32, 48] down, float[5, 32, 6] down_s, float[5, 32] c> {
    y = com.microsoft.QMoE<k = 2, activation_type = "swiglu", swiglu_fusion = 1, block_size = 16,
                           normalize_routing_weights = 1>(x, r, up, up_s, "", down, down_s, c)
}"""


@pytest.mark.parametrize("tp, rows", [(2, [160, 143]), (3, [96, 96, 111]), (4, [64, 64, 96, 79])])
def test_numbers_of_4_bits_are_cut_within_bytes(tp: int, rows: list[int], tmp_path: Path) -> None:
    ranks = Ranks(of(INT4), tp, tmp_path, pins={"up": "column"})
    assert ranks.shapes("up") == [(96, size) for size in rows]
    assert ranks.shapes("down_s") == [(-(-size // 32), 40) for size in rows]
    assert ranks.collectives == {"all_reduce": 1}
    assert verify_bundle(ranks.folder, ranks.source).faults == []


@pytest.mark.parametrize("tp, rows", [(2, [192, 152]), (3, [128, 128, 88]), (4, [64, 64, 128, 88])])
def test_blocks_that_do_not_divide_an_axis(tp: int, rows: list[int], tmp_path: Path) -> None:
    ranks = Ranks(of(NBITS), tp, tmp_path, pins={"up": "column"})
    assert ranks.shapes("up") == [(size, 4, 16) for size in rows]
    assert ranks.shapes("zero") == [(40, -(-size // 64)) for size in rows]
    assert ranks.collectives == {"all_reduce": 1}
    assert verify_bundle(ranks.folder, ranks.source).faults == []


def test_a_plan_of_blocks_is_read_back_and_refused_where_they_are_too_few(tmp_path: Path) -> None:
    ranks = Ranks(of(NBITS), 4, tmp_path, pins={"up": "column"})
    plan = ranks.folder / "plan.toml"
    assert "blocks = [128, 128, 64, 24]" in plan.read_text()
    (tmp_path / "again").mkdir()
    assert Ranks(of(NBITS), 4, tmp_path / "again", plan=plan, objective="balanced").shapes("up") == ranks.shapes("up")
    with pytest.raises(Refused) as refused:
        tpcompile.plan(of(NBITS), 7, pins={"up": "column"})
    assert str(refused.value) == (
        "TP104 pin 'up=column': the dimension has 6 parts, too few for 7 ranks. Leave out the pin, or use another tp"
    )


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_a_quantised_table_that_is_embedding_and_head_is_stored_once(tp: int, tmp_path: Path) -> None:
    ranks = Ranks(
        of(TIED), tp, tmp_path, objective="balanced", given={"ids": [[0, 502, 7, 100, 300], [400, 1, 251, 252, 502]]}
    )
    held = [-(-503 // tp), 503 // tp]
    assert {shape[0] for shape in ranks.shapes("head")} <= set(held)
    assert ranks.collectives == {"all_reduce": 1, "all_gather": 1}
    assert [len(list(model.graph.initializer)) for model in ranks.models] == [
        len(ranks.models[0].graph.initializer)
    ] * tp
    assert verify_bundle(ranks.folder, ranks.source).faults == []


DYNAMIC = """(float[B, 3, 128] x) => (float[B, 3, 72] y)
<float[128, 264] up, int8[264, 72] down, float down_s> {
    a = MatMul(x, up)
    b = Relu(a)
    q, s, z = DynamicQuantizeLinear(b)
    c = MatMulInteger(q, down, z)
    d = Cast<to = 1>(c)
    e = Mul(s, down_s)
    y = Mul(d, e)
}"""
"""Activations rounded with the range they have: that of all ranks."""


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_ranks_agree_on_a_range_and_add_whole_numbers(tp: int, tmp_path: Path) -> None:
    ranks = Ranks(of(DYNAMIC), tp, tmp_path, pins={"up": "column", "down": "row"})
    assert [shape[0] for shape in ranks.shapes("down")] == [264 // tp] * tp
    said = [(entry["op"], entry["dtype"], entry["bytes"]) for entry in ranks.manifest()["collectives"]]
    assert said == [("all_reduce", "float32", "8"), ("all_reduce", "int32", "B*864")]
    told = summarize(tpcompile.plan(of(DYNAMIC), tp, pins={"up": "column", "down": "row"}))
    assert [dict(found.collectives) for found in told.cut] == [{"all_reduce": 2}]


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_experts_are_cut_inside(tp: int, tmp_path: Path) -> None:
    ranks = Ranks(of(EXPERTS), tp, tmp_path)
    assert sum(shape[1] for shape in ranks.shapes("up")) == 192
    assert ranks.collectives == {"all_reduce": 1}
    assert verify_bundle(ranks.folder, ranks.source).faults == []
