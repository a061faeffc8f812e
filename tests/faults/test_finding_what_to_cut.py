"""What no rule speaks of, pins that match nothing, towers that stay whole (docs/faults.md, sections H, I and J)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.faults.ranks import Ranks, model, stored
from tpcompile.dims.registry import RULES
from tpcompile.errors import Refused

NO_RULE = """(float[B, 5] x) => (float[B, 7] y) <float[5, 12] w_1, float[12] b_1, float[12, 7] w_2, float[7] b_2>
{ m = MatMul(x, w_1) a = Add(m, b_1) n = LpNormalization <axis = -1, p = 2> (a) o = MatMul(n, w_2) y = Add(o, b_2) }"""


@pytest.mark.parametrize("tp", [2, 3, 5, 7])
def test_h1_an_operator_without_a_rule_gets_its_input_whole(tp: int, tmp_path: Path) -> None:
    proto = model(NO_RULE)
    Ranks(proto, tp, tmp_path)
    ranks = Ranks(proto, tp, tmp_path, objective="balanced", pins={"w_1": "column", "w_2": "whole"})
    assert ranks.collectives == {"all_gather": 1}


def test_h3_a_cut_value_is_gathered_before_what_needs_it_whole(tmp_path: Path) -> None:
    """A column product whose row partner is not there: the value is an output, and goes through a norm."""
    text = """(float[B, 5] x) => (float[B, 12] y, float[B, 12] m) <float[5, 12] w_1, float[12] scale>
{ m = MatMul(x, w_1) y = LayerNormalization (m, scale) }"""
    for tp in (2, 3, 5):
        ranks = Ranks(model(text), tp, tmp_path, objective="balanced", pins={"w_1": "column"})
        assert ranks.collectives == {"all_gather": 1}


def test_h5_a_pin_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        Ranks(model(NO_RULE), 2, tmp_path, pins={"w_7*": "row"})
    assert str(refused.value) == (
        "TP104 pin 'w_7*=row': no weight or dimension has such a name "
        "(there are 4 weights, such as 'w_2', 'w_1', 'b_2'). "
        "Correct the pattern, or leave the pin out"
    )


def test_h5_what_no_rule_covers_is_refused_where_that_is_asked(tmp_path: Path) -> None:
    assert ("", "LpNormalization") not in RULES, "it has a rule by now: take an operator that has none"
    with pytest.raises(Refused) as refused:
        Ranks(model(NO_RULE), 2, tmp_path, strict=True)
    assert str(refused.value) == (
        "TP301 the ModelProto: 1 node has no rule and runs whole: LpNormalization (LpNormalization has no rule). "
        "Leave out --strict to run them whole on every rank"
    )


VISION = """(float[B, 3, 8, 8] pixels) => (float[B, 16, 7] y)
<float[48, 3, 2, 2] patches, float[48] b_p, float[48, 7] w, float[7] b_w, int64[3] flat = {0, 48, 16}>
{ c = Conv <kernel_shape = [2, 2], strides = [2, 2]> (pixels, patches, b_p) f = Reshape(c, flat)
 t = Transpose <perm = [0, 2, 1]> (f) g = Tanh(t) m = MatMul(g, w) y = Add(m, b_w) }"""


@pytest.mark.parametrize("tp", [2, 3, 5, 7])
def test_h6_convolution_flatten_linear(tp: int, tmp_path: Path) -> None:
    Ranks(model(VISION), tp, tmp_path)


def test_i4_parts_of_rows_are_stored_as_they_lie(tmp_path: Path) -> None:
    """W[:, 6:12] as bytes, not as a view of W."""
    text = """(float[B, 5] x) => (float[B, 7] y) <float[5, 12] w_1, float[12, 7] w_2>
{ m = MatMul(x, w_1) r = Relu(m) y = MatMul(r, w_2) }"""
    proto = model(text)
    ranks = Ranks(proto, 2, tmp_path)
    for rank, held in enumerate(ranks.models):
        wanted = np.ascontiguousarray(stored(proto, "w_1")[:, 6 * rank : 6 * rank + 6])
        assert stored(held, "w_1").tobytes() == wanted.tobytes()


@pytest.mark.parametrize("tp, size", [(4, 2), (6, 2), (6, 3), (8, 2)])
def test_j2_collectives_among_some_ranks_name_their_group_and_its_size(tp: int, size: int, tmp_path: Path) -> None:
    """A dim of 2 or 3 that is summed over: each pair or triple of ranks sums for itself."""
    text = f"""(float[B, 5] x) => (float[B, 7] y) <float[5, {size}] w_1, float[{size}, 7] w_2>
{{ m = MatMul(x, w_1) y = MatMul(m, w_2) }}"""
    ranks = Ranks(model(text), tp, tmp_path, objective="memory")
    groups = set()
    for rank in range(tp):
        for node in ranks.nodes(rank, "DistCollective"):
            says = {attribute.name: attribute for attribute in node.attribute}
            group = tuple(says["groups"].ints)
            assert says["groups"].type == onnx.AttributeProto.INTS
            assert says["group_size"].i == len(group)
            assert says["nb_rank"].i == (len(group) or tp)
            assert not group or rank in group
            groups.add(group)
    assert any(len(group) == size for group in groups)
