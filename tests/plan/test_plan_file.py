"""plan.toml: the same every time, read back as it was written, edited by hand, refused where it cannot hold."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import onnx
import pytest

import tpcompile
from tests import zoo
from tests.plan.models import LIMIT, MIXED, TWO_LAYERS, attention, error_of, held, model
from tpcompile import pipeline
from tpcompile.dims.cut import Cut
from tpcompile.errors import Refused
from tpcompile.passes.check_plan import CheckPlan
from tpcompile.plan.plan import Plan
from tpcompile.plan.planfile import plan_toml
from tpcompile.plan_summary import summarize

REAL = "gpt2__legacy__kv"


def text_of(source: object, tp: int, **wishes: object) -> str:
    work = tpcompile.plan(source, tp, **wishes)  # type: ignore[arg-type]
    return plan_toml(work.plan, summarize(work))


@pytest.mark.parametrize("objective", ["balanced", "memory"])
def test_the_same_model_gives_the_same_plan_and_files(objective: str, tmp_path: Path) -> None:
    source = zoo.model(REAL)
    for folder in ("a", "b"):
        tpcompile.compile(source, 2, tmp_path / folder, objective=objective)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "plan.toml" in files
    assert files == sorted(path.name for path in (tmp_path / "b").iterdir())
    differ = [name for name in files if (tmp_path / "a" / name).read_bytes() != (tmp_path / "b" / name).read_bytes()]
    assert differ == []


@pytest.mark.parametrize("objective", ["balanced", "memory"])
@pytest.mark.parametrize("name", [REAL, "falcon40b__dynamo__kv"])
def test_read_back_it_is_the_same_plan(name: str, objective: str, tmp_path: Path) -> None:
    source = zoo.model(name)
    written = text_of(source, 4, objective=objective)
    (tmp_path / "plan.toml").write_text(written)
    assert text_of(source, 4, plan=tmp_path / "plan.toml") == written


def test_memory_cuts_more() -> None:
    source = model(TWO_LAYERS.replace("50", "6"))  # a vocabulary of 6: not worth an AllReduce and an AllGather
    cut = {
        objective: {group.name for group in tpcompile.plan(source, 2, objective=objective).plan.groups if group.axes}
        for objective in ("balanced", "memory")
    }
    assert cut == {"balanced": {"up0[1]"}, "memory": {"up0[1]", "head[1]", "table[0]"}}


def edited(text: str, name: str, sub_axes: str) -> str:
    """The plan with other sub-axes for one dimension."""
    found, count = re.subn(
        rf'(name = "{re.escape(name)}"\nsize = \d+\ncount = \d+\nsub_axes = )\[.*\]', rf"\g<1>{sub_axes}", text
    )
    assert count == 1
    return found


@pytest.mark.parametrize(
    ("name", "sub_axes", "weight", "expected"),
    [
        ("up0[1]", "[]", "down1", [None] * 4),
        ("up0[1]", "[0]", "up1", [[None, [[0, 18]]]] * 2 + [[None, [[18, 36]]]] * 2),
        ("up0[1]", "[1]", "up0", [[None, [[0, 18]]], [None, [[18, 36]]]] * 2),
        ("head[1]", "[1]", "head", [[None, [[0, 25]]], [None, [[25, 50]]]] * 2),
        ("table[0]", "[]", "table", [None] * 4),
    ],
)
def test_edited_by_hand(name: str, sub_axes: str, weight: str, expected: object, tmp_path: Path) -> None:
    source = model(TWO_LAYERS)
    (tmp_path / "plan.toml").write_text(edited(text_of(source, 4), name, sub_axes))
    bundle = tpcompile.compile(source, 4, tmp_path / "b", plan=tmp_path / "plan.toml")
    assert held(tmp_path / "b", weight) == expected
    assert error_of(source, tmp_path / "b") <= LIMIT
    assert bundle.plan is not None
    group = next(group for group in bundle.plan.groups if group.name == name)
    assert list(group.axes) == json.loads(sub_axes)
    if not group.axes:
        assert group.reason == "the plan file leaves it whole"


def test_other_dims_cut_by_hand_in_a_real_decoder(tmp_path: Path) -> None:
    """Heads over one sub-axis, the feed-forward over the other, the table whole."""
    source = zoo.model(REAL)
    text = text_of(source, 4)
    for name, axes in (
        ("m.transformer.h.0.mlp.c_proj.weight[0]", "[1]"),
        ("m.transformer.h.0.attn.c_attn.weight[1]", "[0]"),
        ("m.transformer.wte.weight[0]", "[]"),
    ):
        text = edited(text, name, axes)
    (tmp_path / "plan.toml").write_text(text)
    tpcompile.compile(source, 4, tmp_path / "b", plan=tmp_path / "plan.toml")
    assert error_of(source, tmp_path / "b", zoo.feeds(REAL)) <= LIMIT


def test_a_plan_that_names_nothing_cuts_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('format = 1\ntp = 4\nobjective = "balanced"\n')
    bundle = tpcompile.compile(model(TWO_LAYERS), 4, tmp_path / "b", plan=tmp_path / "plan.toml")
    assert bundle.warnings == ("the plan file cuts nothing: every rank runs the whole model",)
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(TWO_LAYERS), 4, plan=tmp_path / "plan.toml", strict=True)
    assert str(caught.value) == (
        "TP302 the ModelProto: the plan file cuts nothing, so every rank would run the whole model. "
        "Leave out --strict, or use --tp 1"
    )


HEAD = 'format = 1\ntp = 4\nobjective = "balanced"\n'


def refusal(text: str | None, tmp_path: Path, tp: int = 4) -> list[str]:
    """The lines of a refusal, without the path of the plan file."""
    path = tmp_path / "p.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(TWO_LAYERS), tp, plan=path)
    return str(caught.value).replace(str(path), "p.toml").splitlines()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("x", "Expected '=' after a key in a key/value pair (at end of document)"),
        ("tp = 4", "it lacks 'format'"),
        ("format = 2\ntp = 4", "format 2, and this tpcompile reads format 1"),
        (HEAD.replace("tp = 4", "tp = []"), "an entry is of another type"),
        (HEAD.replace("tp = 4", 'tp = "four"'), "invalid literal for int() with base 10: 'four'"),
        (HEAD + "dimension = 3", "an entry is of another type"),
        (HEAD + '[[dimension]]\nname = "up0[1]"\nsub_axes = 2', "an entry is of another type"),
        (HEAD + '[[dimension]]\nname = "up0[1]"', "it lacks 'sub_axes'"),
    ],
)
def test_no_plan(text: str | None, why: str, tmp_path: Path) -> None:
    assert refusal(text, tmp_path) == [
        f"TP110 p.toml: it is no plan ({why}). Give a plan.toml that `tpcompile` wrote",
    ]


def test_a_plan_for_other_ranks(tmp_path: Path) -> None:
    assert refusal(HEAD, tmp_path, 2) == [
        "TP111 p.toml: it was made for tp 4, not 2. Use --tp 4, or make a plan for 2",
    ]


def test_all_that_cannot_hold_is_said_at_once(tmp_path: Path) -> None:
    entries = (("up0[1]", [1, 0]), ("nothing", [0]), ("head[1]", [0, 5]), ("table[0]", [0]), ("table[1]", [0]))
    text = HEAD + "".join(f'[[dimension]]\nname = "{name}"\nsub_axes = {axes}\n' for name, axes in entries)
    assert refusal(text, tmp_path) == [
        "TP113 p.toml: 'up0[1]': sub_axes [1, 0] are not ascending numbers of the grid [2, 2]. Use some of [0, 1]",
        "TP112 p.toml: 'nothing': the model has no such dimension. Make the plan again for this model",
        "TP113 p.toml: 'head[1]': sub_axes [0, 5] are not ascending numbers of the grid [2, 2]. Use some of [0, 1]",
        "TP114 p.toml: 'table[0]' and 'table[1]': both are dimensions of one tensor or product and cannot be cut over "
        "one sub-axis. Set sub_axes = [] for one of them",
    ]


def test_too_few_parts(tmp_path: Path) -> None:
    text = HEAD.replace("4", "41") + '[[dimension]]\nname = "up0[1]"\nsub_axes = [0]\n'
    assert refusal(text, tmp_path, 41) == [
        "TP113 p.toml: 'up0[1]': it cannot be cut over [0]: it has 36 parts, fewer than 41. Use fewer sub_axes, or []",
    ]


def test_the_last_check_before_the_graph_is_changed() -> None:
    """Should constraints ever miss a pair: the plan is held against every node."""
    work = tpcompile.plan(attention(8, 8), 2)
    rows, heads = (
        next(cls.leaf for cls in work.problem.classes if ("q", axis, 0) in [(v.name, a, p) for v, a, p in cls.places])
        for axis in (0, 1)
    )
    both = Cut(work.plan.mesh, {rows: (0,), heads: (0,)})
    work.plan = Plan(work.plan.mesh, "balanced", both, work.plan.groups)
    with pytest.raises(Refused) as caught:
        CheckPlan().run(work)
    lines = str(caught.value).splitlines()
    assert lines and len(set(lines)) == len(lines)
    assert re.fullmatch(
        r"TP115 MatMul \S*: '\w\[\d\]' and '\w\[\d\]' are both cut over one sub-axis and meet in it\. "
        "Leave one of them whole",
        lines[0],
    )


def test_the_last_check_while_the_graph_is_changed() -> None:
    """Should the planner ever cut what cannot be sliced out of its axis: a refusal, no wrong graph."""
    work = tpcompile.plan(model(MIXED), 2)
    leaf = next(cls.leaf for cls in work.problem.classes if cls.name == "v[0]")
    work.plan = Plan(work.plan.mesh, "balanced", Cut(work.plan.mesh, {leaf: (0,)}), work.plan.groups)
    with pytest.raises(Refused) as caught:
        pipeline.run(work, pipeline.REWRITING)
    assert str(caught.value) == (
        "TP330 tensor x2: axis 0 mixes a cut dimension with sizes that depend on the inputs. "
        "Pin the weights that cause it whole (--pin GLOB=whole)"
    )


def test_gathered_weights_come_back(tmp_path: Path) -> None:
    source = model(TWO_LAYERS.replace("36", "372").replace("50", "513"))
    tpcompile.compile(source, 2, tmp_path / "a", pins={"up?": "gather"})
    path = tmp_path / "a" / "plan.toml"
    assert 'gathered = [\n    "up0",\n    "up1",\n]\n' in path.read_text()
    bundle = tpcompile.compile(source, 2, tmp_path / "b", plan=path)
    assert (tmp_path / "b" / "plan.toml").read_bytes() == path.read_bytes()
    assert error_of(source, tmp_path / "b") <= LIMIT
    assert bundle.plan is not None
    assert {value.name for value in bundle.plan.gathered} == {"up0", "up1"}
    path.write_text(path.read_text().replace('"up1",', '"up9",'))
    with pytest.raises(Refused) as caught:
        tpcompile.plan(source, 2, plan=path)
    assert str(caught.value) == (
        f"TP112 {path}: 'up9': the model has no such weight to gather. Make the plan again for this model"
    )


@pytest.mark.parametrize("wishes", [{}, {"objective": "memory"}, {"recipe": "megatron"}, {"pins": {"up*": "gather"}}])
@pytest.mark.parametrize("tp", [2, 3, 4])
def test_given_back_the_file_is_the_same_byte_for_byte(wishes: dict[str, Any], tp: int, tmp_path: Path) -> None:
    source = model(TWO_LAYERS.replace("36", "360").replace("50", "510"))
    first = text_of(source, tp, **wishes)
    (tmp_path / "plan.toml").write_text(first)
    assert text_of(source, tp, plan=tmp_path / "plan.toml") == first


@pytest.mark.parametrize("seed", ["0", "1", "77"])
def test_the_file_does_not_depend_on_how_python_hashes(seed: str, tmp_path: Path) -> None:
    onnx.save(zoo.model(REAL), tmp_path / "m.onnx")
    want = text_of(str(tmp_path / "m.onnx"), 4)
    command = [sys.executable, "-m", "tpcompile.cli", "plan", "m.onnx", "--tp", "4", "--write-plan", "p.toml"]
    environment = os.environ | {"PYTHONHASHSEED": seed}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)
    assert (tmp_path / "p.toml").read_text() == want


def test_it_says_in_words_what_it_is() -> None:
    text = text_of(model(TWO_LAYERS), 4, topology="a100x8")
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[0] == "# How the ModelProto is cut for 4 ranks. To change it, edit this file and give it back:"
    assert "#     tpcompile MODEL --tp 4 --plan plan.toml" in comments
    assert "# A rank holds 4.0 kB of weights, 25% of the model's; a step has 3 AllReduce and 1 AllGather." in comments
    assert any(line.startswith("# On 8 × A100 SXM4 80 GB, NVLink 3, at batch 1, seq 1: about ") for line in comments)
    assert comments[-4:] == [
        "# In 2 layers alike: cut by columns into 4 × 9; saves 7.1 kB a rank, causes 2 AllReduce.",
        "# Cut by columns into 13, 13, 12, 12; saves 2.4 kB a rank, causes 1 AllGather.",
        "# Cut along the vocabulary into 13, 13, 12, 12; saves 2.4 kB a rank, causes 1 AllReduce.",
        "# Whole on every rank.",
    ]


def test_a_file_that_contradicts_itself_or_has_unknown_keys_is_refused(tmp_path: Path) -> None:
    source, path = model(TWO_LAYERS), tmp_path / "plan.toml"
    text = text_of(source, 4)
    again = '[[dimension]]\nname = "up1[1]"\nsub_axes = [0]\nsub_axis = 1\n'
    path.write_text(text.replace("grid = [2, 2]", "grid = [2, 2]\nfavourite = true") + again)
    with pytest.raises(Refused) as caught:
        tpcompile.plan(source, 4, plan=path)
    assert str(caught.value).splitlines() == [
        f"TP144 {path}: favourite: a plan has no such key. Leave it out",
        f"TP144 {path}: dimension 'up1[1]': sub_axis: a plan has no such key. Did you mean sub_axes?",
        f"TP143 {path}: 'up0[1]' and 'up1[1]': sub_axes [0, 1] and [0] for one kind of dimension: alike layers are cut "
        "alike. Leave one of them out",
    ]
    path.write_text(text + '[[dimension]]\nname = "up1[1]"\nsub_axes = [0, 1]\n')
    assert text_of(source, 4, plan=path) == text


SHARED = """(float[batch, 12] x, float[batch, 12] z) => (float[batch, 6] y, float[batch, 6] u)
<float[12, 6] w, float[6, 12] a>
{ y = MatMul(x, w)  c = MatMul(z, w)  d = Relu(c)  e = MatMul(d, a)  u = MatMul(e, w) }"""
"""A small weight has other dims at each of its uses."""


@pytest.mark.parametrize("objective", ["balanced", "memory"])
def test_no_two_kinds_of_dimension_have_one_name(objective: str, tmp_path: Path) -> None:
    source = model(SHARED)
    first = text_of(source, 2, objective=objective)
    names = [found["name"] for found in tomllib.loads(first)["dimension"]]
    assert sorted(names) == ["w[0]#1", "w[0]#2", "w[1]#1", "w[1]#2"]
    (tmp_path / "plan.toml").write_text(first)
    assert text_of(source, 2, plan=tmp_path / "plan.toml") == first
