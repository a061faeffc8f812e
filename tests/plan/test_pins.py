"""Pins: what holds, what shows in the plan, what is refused, and that the numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tpcompile
from tests import zoo
from tests.plan.models import LIMIT, MIXED, TWO_LAYERS, error_of, feeds, held, model
from tpcompile.errors import Refused

QUARTERS = [[[0, 9]], [[9, 18]], [[18, 27]], [[27, 36]]]
WIDTH = [[[0, 4]], [[4, 8]], [[8, 12]], [[12, 16]]]
FIFTY = [[[0, 13]], [[13, 26]], [[26, 38]], [[38, 50]]]
OTHER_FIFTY = [[[0, 12]], [[12, 24]], [[24, 37]], [[37, 50]]]
"""The ranks that hold fewer rows of the table hold more columns of the head."""


@pytest.mark.parametrize(
    ("pins", "weight", "axes"),
    [
        ({"up0": "column"}, "up0", [[None, part] for part in QUARTERS]),
        ({"down0": "row"}, "down0", [[part, None] for part in QUARTERS]),
        ({"up0": "row"}, "up0", [[part, None] for part in WIDTH]),
        ({"down*": "column"}, "down1", [[None, part] for part in WIDTH]),
        ({"table": "vocab"}, "table", [[part, None] for part in FIFTY]),
        ({"table": "column"}, "table", [[None, part] for part in WIDTH]),
        ({"head": "column"}, "head", [[None, part] for part in OTHER_FIFTY]),
        ({"head": "row"}, "head", [[part, None] for part in WIDTH]),
        ({"table": "whole"}, "table", [None] * 4),
        ({"bias?": "whole"}, "bias1", [None] * 4),
    ],
)
def test_a_pin_holds_and_the_numbers_stay(pins: dict[str, str], weight: str, axes: object, tmp_path: Path) -> None:
    source = model(TWO_LAYERS)
    tpcompile.compile(source, 4, tmp_path / "b", pins=pins)
    assert held(tmp_path / "b", weight) == axes
    assert error_of(source, tmp_path / "b") <= LIMIT


def test_the_columns_of_a_convolution_are_its_channels(tmp_path: Path) -> None:
    graph = "(float[batch, 6, 9] x) => (float[batch, 8, m] y) <float[8, 6, 3] kernel> { y = Conv(x, kernel) }"
    tpcompile.compile(model(graph), 2, tmp_path / "b", pins={"kernel": "column"})
    assert held(tmp_path / "b", "kernel") == [[[[0, 4]], None, None], [[[4, 8]], None, None]]


ALL_EXPERTS = """(float[batch, 6] x) => (float[batch, 6] y)
<float[4, 6, 10] up, float[4, 10, 6] down, float[6, 4] router, int64[1] two = {2}, int64[1] first = {0}>
{ g = MatMul(x, router)  s = Softmax(g)  t = Transpose<perm = [1, 0]>(s)  u = Unsqueeze(t, two)  a = Unsqueeze(x, first)
  b = MatMul(a, up)  c = Relu(b)  d = MatMul(c, down)  e = Mul(d, u)  y = ReduceSum<keepdims = 0>(e, first) }"""
"""Four experts compute for every token; what the router gives them weighs their sum."""

PICKED = """(int64[batch] route, float[batch, 1, 6] x) => (float[batch, 1, 5] y) <float[4, 6, 5] experts>
{ w = Gather(experts, route)  y = MatMul(x, w) }"""


def test_experts_of_batched_products_lie_on_some_ranks(tmp_path: Path) -> None:
    source = model(ALL_EXPERTS)
    bundle = tpcompile.compile(source, 2, tmp_path / "b", pins={"up": "expert"})
    halves = [[[[0, 2]], None, None], [[[2, 4]], None, None]]
    assert (held(tmp_path / "b", "up"), held(tmp_path / "b", "down")) == (halves, halves)
    assert [call.op for call in bundle.manifest.collectives] == ["all_reduce"]
    assert error_of(source, tmp_path / "b") <= LIMIT


def test_experts_that_a_route_picks_lie_on_some_ranks(tmp_path: Path) -> None:
    source = model(PICKED)
    tpcompile.compile(source, 3, tmp_path / "b", pins={"experts": "expert"})
    parts = [[[0, 2]], [[2, 3]], [[3, 4]]]
    assert held(tmp_path / "b", "experts") == [[part, None, None] for part in parts]
    given = feeds(source) | {"route": np.array([3, -4])}
    assert error_of(source, tmp_path / "b", given) <= LIMIT


def test_columns_of_experts_are_not_the_experts(tmp_path: Path) -> None:
    source = model(PICKED)
    with pytest.raises(Refused) as caught:
        tpcompile.plan(source, 2, pins={"experts": "vocab"})
    assert str(caught.value) == (
        "TP104 pin 'experts=vocab': experts [4, 6, 5] has no such axis (its axes are expert, row, column). "
        "Use one of expert, row, column, cut, whole, or leave the pin out"
    )


def test_everything_pinned_whole(tmp_path: Path) -> None:
    bundle = tpcompile.compile(model(TWO_LAYERS), 4, tmp_path / "b", pins={"*": "whole"})
    assert bundle.manifest.collectives == ()
    assert bundle.warnings == ("the pins leave nothing worth cutting: every rank runs the whole model",)


def test_pins_on_a_real_decoder(tmp_path: Path) -> None:
    """The table whole and the first product of each feed-forward by rows: what no planner would choose."""
    source = zoo.model("gpt2__legacy__kv")
    pins = {"*.wte.weight": "whole", "*.mlp.c_fc.weight": "row"}
    bundle = tpcompile.compile(source, 2, tmp_path / "b", pins=pins)
    assert bundle.plan is not None
    cut = {place: group.degree for group in bundle.plan.groups for place in group.weights}
    prefix = "m.transformer"
    assert (cut[f"{prefix}.wte.weight[0]"], cut[f"{prefix}.wte.weight[1]"]) == (1, 1)
    assert [cut[f"{prefix}.h.{layer}.mlp.c_fc.weight[0]"] for layer in (0, 1)] == [2, 2]
    assert held(tmp_path / "b", f"{prefix}.h.1.mlp.c_fc.weight") == [[[[0, 64]], None], [[[64, 128]], None]]
    assert error_of(source, tmp_path / "b", zoo.feeds("gpt2__legacy__kv")) <= LIMIT


@pytest.mark.parametrize(
    ("tp", "pins", "lines"),
    [
        (
            4,
            [("up0", "vocab"), ("nothing.*", "column"), ("table", "row"), ("bias0", "row")],
            [
                "TP104 pin 'up0=vocab': up0 [16, 36] has no such axis (its axes are row, column). "
                "Use one of row, column, cut, whole, or leave the pin out",
                "TP104 pin 'nothing.*=column': no weight or dimension has such a name (there are 8 weights, such as "
                "'down1', 'down0'). Correct the pattern, or leave the pin out",
                "TP104 pin 'table=row': table [50, 16] has no such axis (its axes are vocab, column). "
                "Use one of vocab, column, cut, whole, or leave the pin out",
                "TP104 pin 'bias0=row': bias0 [36] has no such axis (its axes are column). "
                "Use one of column, cut, whole, or leave the pin out",
            ],
        ),
        (
            4,
            [("up0", "column"), ("up0", "row"), ("head", "column"), ("head", "whole")],
            [
                "TP104 pin 'up0=column' and pin 'up0=row': they contradict each other: "
                "both would cut one tensor, or one product, over the same ranks. Leave out one of them",
                "TP104 pin 'up0=row' and pin 'head=column': they contradict each other: "
                "both would cut one tensor, or one product, over the same ranks. Leave out one of them",
                "TP104 pin 'up0=row' and pin 'head=whole': they contradict each other: what one wants cut the other "
                "wants whole (the layers of a model that are alike are cut alike). Leave out one of them",
                "TP104 pin 'head=column' and pin 'head=whole': they contradict each other: what one wants cut the "
                "other wants whole (the layers of a model that are alike are cut alike). Leave out one of them",
            ],
        ),
        (
            2,
            [("up0", "column"), ("up1", "whole")],
            [
                "TP104 pin 'up0=column' and pin 'up1=whole': they contradict each other: what one wants cut the other "
                "wants whole (the layers of a model that are alike are cut alike). Leave out one of them",
            ],
        ),
        (
            41,
            [("up0", "column"), ("table", "vocab")],
            [
                "TP104 pin 'up0=column': the dimension has 36 parts, too few for 41 ranks. "
                "Leave out the pin, or use another tp",
            ],
        ),
    ],
)
def test_pins_that_cannot_hold_are_all_named(tp: int, pins: list[tuple[str, str]], lines: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(TWO_LAYERS), tp, pins=pins)
    assert str(caught.value).splitlines() == lines


@pytest.mark.parametrize(
    ("graph", "pin", "text"),
    [
        (
            "(float[batch, 6] x) => (float[batch, 6] y) { y = Relu(x) }",
            "*",
            "TP104 pin '*=column': the model has no weights. Correct the pattern, or leave the pin out",
        ),
        (
            "(float[6, 6] x) => (float[6, 6] y) <float[6, 6] w> { h = Det(w) g = MatMul(x, w) y = Add(g, h) }",
            "w",
            "TP104 pin 'w=column': w cannot be cut so: Det has no rule. Leave the pin out",
        ),
    ],
)
def test_weights_that_cannot_be_cut(graph: str, pin: str, text: str) -> None:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(graph), 2, pins={pin: "column"})
    assert str(caught.value) == text


def test_what_pins_keep_whole_says_so() -> None:
    plan = tpcompile.plan(model(TWO_LAYERS), 4, pins={"up?": "whole"}).plan
    reasons = {group.name: group.reason for group in plan.groups}
    assert reasons["up0[1]"] == reasons["table[1]"] == "pin 'up?=whole'"


def test_what_is_mixed_with_dynamic_sizes_stays_whole(tmp_path: Path) -> None:
    """[4 · batch · 6] is made whole: no rank could take its part of the 6 out of it."""
    source = model(MIXED)
    bundle = tpcompile.compile(source, 2, tmp_path / "b", objective="memory")
    assert error_of(source, tmp_path / "b") <= LIMIT
    assert bundle.plan is not None
    why = "x2 is read in parts but mixes it with sizes that depend on inputs"
    assert why in [group.reason for group in bundle.plan.groups]
    with pytest.raises(Refused) as caught:
        tpcompile.plan(source, 2, pins={"v": "row"})
    assert str(caught.value) == f"TP104 pin 'v=row': {why}. Leave out the pin, or use another tp"
