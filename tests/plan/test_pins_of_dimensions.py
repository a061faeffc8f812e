"""Pins and forbids that name dimensions, what they do beyond weights, and contradictions of three."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpcompile
from tests.plan.models import LIMIT, TWO_LAYERS, error_of, model
from tpcompile.errors import Refused
from tpcompile.plan.name_patterns import named_by, near


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("up*", "up0", True),
        ("up*[1]", "up0[1]", True),
        ("up*[1]", "up01", False),
        ("up[01]", "up0", True),
        ("up[01]", "up[01]", True),
        ("*[0-9]", "up7", True),
        ("up?[1].*", "up0[1].2", True),
        ("up?[1]", "up0[1].2", False),
        ("layers[3].up*", "layers[3].up", True),
        ("layers[3].up*", "layers3.up", False),
        ("a*b", "a*b", True),
        ("up[-1]", "up1", False),
        ("up*[-1]", "up0[1]", False),
        ("*[1]", "/layers.0/up/w[1]", True),
        ("/layers.*/w[1]", "/layers.0/up/w[1]", True),
        ("up[!0]", "up1", True),
        ("UP*", "up0", False),
        ("*", "up0[1]", True),
    ],
)
def test_a_digit_in_brackets_is_an_axis_and_other_brackets_are_sets(pattern: str, name: str, found: bool) -> None:
    assert named_by(pattern, name) is found


def test_names_near_a_pattern_that_matches_none() -> None:
    names = ["layers.0.up", "layers.1.up", "layers.0.down", "table", "head"]
    assert near("*.upp", names) == ["layers.1.up", "layers.0.up"]
    assert near("layers.?.down[1]", names)[0] == "layers.0.down"
    assert near("0.up", names) == ["layers.0.up"]
    assert near("", ["b", "a"]) == ["a", "b"]


def cut_of(**wishes: object) -> dict[str, int]:
    """Degree of each kind of dimension that is cut."""
    plan = tpcompile.plan(model(TWO_LAYERS), 4, **wishes).plan  # type: ignore[arg-type]
    return {group.name: group.degree for group in plan.groups if group.axes}


FREE = {"up0[1]": 4, "head[1]": 4, "table[0]": 4}


@pytest.mark.parametrize(
    ("wishes", "cut"),
    [
        ({}, FREE),
        ({"pins": {"table[1]": "cut"}}, {"table[1]": 4}),
        ({"pins": {"table": "cut"}}, FREE),
        ({"pins": {"head[1]": "whole"}}, {"up0[1]": 4, "table[0]": 4}),
        ({"pins": {"down1[0]": "whole"}}, {"table[1]": 4}),
        ({"forbids": {"up0[1]": ""}}, {"table[1]": 4}),
        ({"forbids": {"*": "row"}}, {"head[1]": 4, "table[0]": 4}),
        ({"forbids": {"*": "vocab"}}, {"table[1]": 4}),
        ({"forbids": {"down?": "row", "table": ""}}, {"head[1]": 4}),
        ({"forbids": {"*": ""}}, {}),
    ],
)
def test_what_is_cut_under_pins_and_forbids(wishes: dict[str, object], cut: dict[str, int]) -> None:
    assert cut_of(**wishes) == cut


def test_numbers_stay_under_forbids(tmp_path: Path) -> None:
    source = model(TWO_LAYERS)
    tpcompile.compile(source, 4, tmp_path / "b", forbids={"*": "vocab", "bias*": ""}, pins={"table[1]": "cut"})
    assert error_of(source, tmp_path / "b") <= LIMIT


def test_that_alike_layers_follow_is_said() -> None:
    work = tpcompile.plan(model(TWO_LAYERS), 4, pins={"up0": "column", "down?[0]": "cut"})
    assert work.warnings == [
        "pin 'up0=column' names 1 of 2 alike layers (up0[1], …): it holds for all of them, for they are cut alike"
    ]


def refusal(tp: int = 4, source: str = TWO_LAYERS, **wishes: object) -> list[str]:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(source), tp, **wishes)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


def test_what_names_nothing_or_not_so() -> None:
    forbids = [("nowhere", ""), ("bias0", "row"), ("bias?[0]", "vocab"), ("*", "expert")]
    assert refusal(pins=[("up0[1]", "column"), ("head[1]", "gather")], forbids=forbids) == [
        "TP104 pin 'up0[1]=column': up0[1] names a dimension, and column is how a weight lies. "
        "Use cut or whole, or name the weight",
        "TP104 pin 'head[1]=gather': head[1] names a dimension, and gather is how a weight lies. "
        "Use cut or whole, or name the weight",
        "TP104 forbid 'nowhere': no weight or dimension has such a name (there are 8 weights, such as 'head', "
        "'down1', 'down0'). Correct the pattern, or leave the forbid out",
        "TP104 forbid 'bias0=row': bias0 [36] has no such axis (its axes are column). "
        "Use one of column, or leave the forbid out",
        "TP104 forbid 'bias?[0]=vocab': a cut of bias0[0] is column. Use column, or no kind, or leave the forbid out",
        "TP104 forbid '*=expert': table [50, 16] has no such axis (its axes are vocab, column). "
        "Use one of vocab, column, or leave the forbid out",
    ]


def test_forbids_and_pins_contradict_each_other() -> None:
    assert refusal(pins={"up0": "column", "head": "cut"}, forbids={"down*": "row", "head": ""}) == [
        "TP104 pin 'up0=column' and forbid 'down*=row': they contradict each other: what one wants cut the other "
        "wants whole (the layers of a model that are alike are cut alike). Leave out one of them",
        "TP104 pin 'head=cut' and forbid 'head': they contradict each other: what one wants cut the other "
        "wants whole (the layers of a model that are alike are cut alike). Leave out one of them",
    ]
