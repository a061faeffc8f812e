"""Sizes that the ranks do not divide: vocabularies, heads, key heads, widths.

The faults are those of docs/faults.md, section B: refusals that name nothing, silent wrong logits, parts that overlap,
heads torn apart. Here every such cut is uneven or over fewer ranks, and gives the source's numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.ranks import Ranks, attention, blocks, feeds_of, model, session, stored
from tpcompile.dims.cut import Cut, Mesh, block
from tpcompile.dims.dim import Dim, concatenation, product
from tpcompile.errors import Refused

UNEVEN = [2, 3, 4, 5, 6, 7]
HEADS: dict[str, Any] = {"objective": "balanced", "pins": {"w_o": "row"}}
"""Cut as Megatron would; the smallest memory alone tears heads apart and sums scores, which gives the same numbers."""

HEAD = """(float[B, S, 8] x) => (float[B, S, 9] logits) <float[8, 9] w, float[9] b>
{ m = MatMul(x, w) logits = Add(m, b) }"""

EMBED_AND_HEAD = """(int64[B, S] ids) => (float[B, S, 9] chances)
<float[9, 8] table, float[8, 9] head, float[9] b>
{ e = Gather(table, ids) t = Tanh(e) m = MatMul(t, head) l = Add(m, b) chances = Softmax <axis = -1> (l) }"""


@pytest.mark.parametrize("tp", UNEVEN)
def test_b1_a_vocabulary_that_does_not_divide_is_cut_unevenly(tp: int, tmp_path: Path) -> None:
    ranks = Ranks(model(HEAD), tp, tmp_path)
    if tp in (2, 3, 5, 7):
        assert ranks.shapes("w") == [(8, part) for part in blocks(9, tp)]
        assert ranks.shapes("b") == [(part,) for part in blocks(9, tp)]


@pytest.mark.parametrize("tp", UNEVEN)
def test_b2_embedding_and_softmax_head_of_an_odd_vocabulary(tp: int, tmp_path: Path) -> None:
    ids = np.array([[0, 8, -1, 4, 5], [3, 2, -9, -5, 8]])
    Ranks(model(EMBED_AND_HEAD), tp, tmp_path, given={"ids": ids})


def test_b4_blocks_tile_every_size_without_gap_or_overlap() -> None:
    for size in range(201):
        for tp in range(1, 9):
            parts = [block(size, tp, rank) for rank in range(tp)]
            assert [start for start, _ in parts] == [0, *(stop for _, stop in parts[:-1])]
            assert parts[-1][1] == size
            lengths = [stop - start for start, stop in parts]
            assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("tp", [2, 3, 4, 6, 8])
def test_b4_indices_of_composed_dims_tile_them_too(tp: int) -> None:
    mesh = Mesh(tp)
    heads, size, extra = Dim((7,)), Dim((3,)), Dim((5,))
    fused = concatenation([product([heads, size]), product([extra, heads]), Dim((4,))])
    for axes in ({heads: mesh.all_axes}, {heads: mesh.all_axes[:1], size: mesh.all_axes[1:]}):
        cut = Cut(mesh, axes)
        held = [cut.index(fused, rank) for rank in range(tp)]
        assert set(np.concatenate(held).tolist()) == set(range(fused.size))
        assert [len(found) for found in held] == [cut.local_size(fused, rank) for rank in range(tp)]
        for part in (heads, size):
            alone = np.concatenate([cut.index(part, rank) for rank in range(tp)])
            assert sorted(set(alone.tolist())) == list(range(part.size))


@pytest.mark.parametrize("tp", UNEVEN)
def test_b7_the_ranks_keep_the_names_types_and_shapes_of_inputs_and_outputs(tp: int, tmp_path: Path) -> None:
    ranks = Ranks(model(HEAD), tp, tmp_path)
    for rank in ranks.models:
        assert list(rank.graph.input) == list(ranks.source.graph.input)
        assert list(rank.graph.output) == list(ranks.source.graph.output)
    manifest = ranks.manifest()
    assert manifest["outputs"] == {"logits": {"dtype": "float32", "shape": ["B", "S", 9], "placement": None}}


@pytest.mark.parametrize("tp", [2, 3])
def test_b8_local_sizes_add_up_on_the_cut_axis_and_are_whole_on_the_other(tp: int, tmp_path: Path) -> None:
    text = """(float[B, 5] x) => (float[B, 7] y) <float[5, 12] w_up, float[12, 7] w_down>
{ u = MatMul(x, w_up) a = Relu(u) y = MatMul(a, w_down) }"""
    ranks = Ranks(model(text), tp, tmp_path)
    up, down = ranks.shapes("w_up"), ranks.shapes("w_down")
    assert sum(columns for _, columns in up) == 12 and {rows for rows, _ in up} == {5}
    assert sum(rows for rows, _ in down) == 12 and {columns for _, columns in down} == {7}
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6, 7, 8])
def test_b9_28_heads_and_4_key_heads(tp: int, tmp_path: Path) -> None:
    proto = model(attention(28, 4, 2, 12))
    Ranks(proto, tp, tmp_path)  # the smallest memory
    ranks = Ranks(proto, tp, tmp_path, **(HEADS if tp in (2, 4, 7, 8) else {"objective": "balanced"}))
    if tp == 8:  # two ranks share a key head and halve (4, 3) its seven query heads
        assert [columns for _, columns in ranks.shapes("w_q")] == [8, 6] * 4
        assert [columns for _, columns in ranks.shapes("w_k")] == [2] * 8
    if tp in (2, 4):
        assert [columns for _, columns in ranks.shapes("w_q")] == [56 // tp] * tp


@pytest.mark.parametrize("tp", UNEVEN)
def test_b10_fewer_key_heads_than_ranks(tp: int, tmp_path: Path) -> None:
    Ranks(model(attention(8, 2, 4, 12)), tp, tmp_path)
    Ranks(model(attention(8, 2, 4, 12)), tp, tmp_path, objective="balanced")


@pytest.mark.parametrize("tp", [3, 6, 8])
def test_b10_query_heads_that_share_a_key_head_pass_verification(tp: int, tmp_path: Path) -> None:
    """One query head of each group on a rank: the layout checker took the repeated keys for plain ones."""
    Ranks(model(attention(8, 4 if tp == 6 else 2, 4, 12)), tp, tmp_path, objective="balanced", verify=True)


def test_b10_key_heads_are_copied_never_halved(tmp_path: Path) -> None:
    ranks = Ranks(model(attention(8, 2, 4, 12)), 4, tmp_path, **HEADS)
    assert ranks.shapes("w_q") == [(12, 8)] * 4
    assert ranks.shapes("w_k") == [(12, 4)] * 4
    keys = [stored(proto, "w_k") for proto in ranks.models]
    assert np.array_equal(keys[0], keys[1]) and np.array_equal(keys[2], keys[3])
    assert not np.array_equal(keys[1], keys[2])


@pytest.mark.parametrize("tp", UNEVEN)
def test_b11_one_key_head_with_a_norm_stays_whole(tp: int, tmp_path: Path) -> None:
    ranks = Ranks(model(attention(8, 1, 4, 12, norm=True)), tp, tmp_path, **HEADS)
    assert {columns for _, columns in ranks.shapes("w_k")} == {4}
    assert all(columns % 4 == 0 for _, columns in ranks.shapes("w_q"))
    if tp != 6:  # 8 heads on 6 ranks: three parts of heads, as one rank of six would hold two heads as well
        assert [columns // 4 for _, columns in ranks.shapes("w_q")] == blocks(8, tp)


@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6])
def test_b13_heads_do_not_divide_though_the_width_does(tp: int, tmp_path: Path) -> None:
    ranks = Ranks(model(attention(6, 6, 2, 12)), tp, tmp_path, **HEADS)
    assert [columns // 2 for _, columns in ranks.shapes("w_q")] == blocks(6, tp)
    assert [columns % 2 for _, columns in ranks.shapes("w_q")] == [0] * tp


def test_b13_a_pin_that_no_cut_of_the_factors_can_follow_is_refused(tmp_path: Path) -> None:
    """12 columns divide by 4 and more, but they are 6 heads of 2: seven ranks get no part each."""
    with pytest.raises(Refused) as refused:
        Ranks(model(attention(6, 6, 2, 12)), 7, tmp_path, **HEADS)
    assert str(refused.value) == (
        "TP104 pin 'w_o=row': the dimension has 2 × 6 parts, too few for 7 ranks. Leave out the pin, or use another tp"
    )


def test_b16_52_heads_on_8_ranks_are_7_and_6_each(tmp_path: Path) -> None:
    ranks = Ranks(model(attention(52, 52, 2, 12)), 8, tmp_path, **HEADS)
    assert [columns // 2 for _, columns in ranks.shapes("w_q")] == [7, 7, 7, 7, 6, 6, 6, 6]


def test_more_ranks_than_anything_has_parts(tmp_path: Path) -> None:
    """Nothing is torn below one element, and what cannot be cut that far is cut over fewer ranks or not at all."""
    text = "(float[B, 3] x) => (float[B, 2] y) <float[3, 2] w, float[2] b> { m = MatMul(x, w) y = Add(m, b) }"
    proto = model(text)
    for tp in (4, 5, 6, 7):
        Ranks(proto, tp, tmp_path)
    assert session(proto.SerializeToString()).run(None, feeds_of(proto, {"B": 2}))[0].shape == (2, 2)
