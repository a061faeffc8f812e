"""Forbids beside pins, recipes, tp_plans and limits of memory: what gives way to what, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

import tpcompile
from tests.plan.models import TWO_LAYERS, model
from tpcompile.errors import Refused

LARGER = TWO_LAYERS.replace("36", "372").replace("50", "513")
"""Large enough for weights to be gathered."""


def planned(tp: int = 4, source: str = TWO_LAYERS, **wishes: Any) -> tuple[dict[str, int], set[str], list[str]]:
    """Degree of each kind of dimension that is cut, the gathered weights, and the notes."""
    work = tpcompile.plan(model(source), tp, **wishes)
    cut = {group.name: group.degree for group in work.plan.groups if group.axes}
    return cut, {value.name for value in work.plan.gathered}, work.warnings


def refusal(tp: int = 4, source: str = TWO_LAYERS, **wishes: Any) -> list[str]:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(source), tp, **wishes)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("tp", [2, 3, 4, 6])
def test_uneven_parts_are_pinned_and_forbidden_as_even_ones(tp: int) -> None:
    """36 and 50 on 3, 4 and 6 ranks."""
    wishes = {"pins": {"up?[1]": "cut", "table": "vocab"}, "forbids": {"head": "column"}}
    assert planned(tp, **wishes) == ({"up0[1]": tp, "table[0]": tp}, set(), [])


def test_a_forbid_of_what_a_dimension_is_and_of_what_it_is_not() -> None:
    assert planned(forbids={"up?[1]": "column"})[0] == {"table[1]": 4}
    assert refusal(forbids={"up?[1]": "row"}) == [
        "TP104 forbid 'up?[1]=row': a cut of up0[1] is column. Use column, or no kind, or leave the forbid out"
    ]


def test_what_only_weights_can_be() -> None:
    """To be gathered is a matter of a weight: on a dimension it would do something else without a word."""
    assert refusal(pins=[("up0[1]", "gather"), ("table[0]", "vocab")]) == [
        "TP104 pin 'up0[1]=gather': up0[1] names a dimension, and gather is how a weight lies. "
        "Use cut or whole, or name the weight",
        "TP104 pin 'table[0]=vocab': table[0] names a dimension, and vocab is how a weight lies. "
        "Use cut or whole, or name the weight",
    ]


def test_axes_count_from_the_front() -> None:
    assert refusal(pins={"up[-1]": "cut"}) == [
        "TP104 pin 'up[-1]=cut': no weight or dimension has such a name (there are 8 weights, such as 'up1', 'up0'). "
        "Correct the pattern, or leave the pin out"
    ]


def test_kinds_that_are_none() -> None:
    assert refusal(forbids={"up0": "cut", "up1": "gather"}) == [
        "TP140 --forbid up0=cut: 'cut' is no way to be cut. Use one of column, row, vocab, expert, or none for any",
        "TP140 --forbid up1=gather: 'gather' is no way to be cut. Use one of column, row, vocab, expert, or none for "
        "any",
    ]


def test_stored_cut_and_stored_whole_contradict_each_other() -> None:
    pins = [("up*", "gather"), ("up1", "whole"), ("down?", "gather")]
    assert refusal(source=LARGER, pins=pins, forbids={"down0": ""}) == [
        "TP104 pin 'up*=gather' and pin 'up1=whole': they contradict each other: one wants up1 stored cut, the "
        "other whole. Leave out one of them",
        "TP104 pin 'down?=gather' and forbid 'down0': they contradict each other: one wants down0 stored cut, the "
        "other whole. Leave out one of them",
    ]
    assert planned(source=LARGER, pins={"up*": "gather"}, forbids={"up0": "row", "up0[1]": ""})[1] == {"up0", "up1"}


def test_what_is_gathered_of_one_layer_says_what_becomes_of_those_alike() -> None:
    assert planned(source=LARGER, pins={"up0": "gather"})[1:] == (
        {"up0"},
        [
            "pin 'up0=gather' names 1 of 2 alike layers (up0[1], …): the others are whole as well, for they are cut "
            "alike"
        ],
    )


def test_recipes_and_tp_plans_give_way_and_say_so() -> None:
    assert planned(recipe="megatron", forbids={"table": "vocab"}) == (
        {"up0[1]": 4, "head[1]": 4},
        set(),
        ["recipe megatron: table vocab is passed over: it cannot hold beside what was asked for explicitly"],
    )
    assert planned(tp_plan={"up0": "colwise", "down0": "rowwise"}, forbids={"up*": "column"})[2] == [
        f"tp_plan: '{each}' is passed over: it cannot hold beside what was asked for explicitly"
        for each in ("up0=colwise", "down0=rowwise")
    ]
    assert planned(source=LARGER, recipe="gather-weights", forbids={"up*": ""}) == (
        {},
        {"down0", "down1", "head", "table"},
        ["recipe gather-weights: '*=gather' is passed over for 2 of 8 weights: a forbid keeps them whole"],
    )


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"pins": {"*": "whole"}}, "pins"),
        ({"forbids": {"*": ""}}, "forbids"),
        ({"pins": {"up?": "whole"}, "forbids": {"*": ""}}, "pins and forbids"),
    ],
)
def test_what_leaves_nothing(wishes: dict[str, Any], said: str) -> None:
    note = f"the {said} leave nothing worth cutting: every rank runs the whole model"
    assert planned(**wishes) == ({}, set(), [note])
    with pytest.raises(Refused, match=f"TP302 the ModelProto: the {said} leave nothing worth cutting"):
        tpcompile.plan(model(TWO_LAYERS), 4, strict=True, **wishes)


def test_contradictions_are_told_beside_a_limit_of_memory_that_nothing_keeps() -> None:
    pins = [("up0", "column"), ("up0", "row")]
    clash = (
        "TP104 pin 'up0=column' and pin 'up0=row': they contradict each other: both would cut one tensor, or one "
        "product, over the same ranks. Leave out one of them"
    )
    assert refusal(pins=pins, memory_per_rank=100) == [
        "TP132 --memory-per-rank 100 B: weights and caches take 4.0 kB on the fullest of 4 ranks, however they are "
        "cut. Use more ranks, smaller --sizes (past, batch), or ranks with more memory",
        clash,
    ]
    assert refusal(pins=pins, memory_per_rank=20000) == [clash]


def test_a_limit_of_memory_is_no_contradiction_between_pins() -> None:
    """table=whole would not fit, and is not blamed for what up0 contradicts."""
    pins = [("up0", "column"), ("up0", "row"), ("table", "whole")]
    lines = refusal(pins=pins, memory_per_rank=4200)
    assert [line for line in lines if "table" in line and "up0=column" in line] == []
    assert lines[0].startswith("TP104 pin 'up0=column' and pin 'up0=row': they contradict each other")
