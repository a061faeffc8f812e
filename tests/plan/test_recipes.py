"""Recipes: what comes along holds on the models it is for, a user's own works the same, and faults are all told."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import tpcompile
from tests import zoo
from tests.plan.models import LIMIT, TWO_LAYERS, error_of, held, model
from tests.plan.named_models import BERT, LLAMA, T5, VIT, as_exported, decoder
from tpcompile.errors import Refused
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.recipe import find_recipe, recipe_names
from tpcompile.plan_summary import estimate_of

EXPERTS = {"gate": "mlp.experts.0.w1.weight", "up": "mlp.experts.0.w3.weight", "down": "mlp.experts.0.w2.weight"}


def cut_places(work: Compilation) -> dict[str, int]:
    """Weight and axis → over how many ranks it is cut."""
    return {place: group.degree for group in work.plan.groups for place in group.weights if group.degree > 1}


@pytest.mark.parametrize("name", recipe_names())
def test_what_comes_along_reads_and_says_what_it_is_for(name: str) -> None:
    found = find_recipe(name)
    assert found.name == name
    assert len(found.title) > 20
    assert len(found.description) > 80
    assert "Price:" in found.description


def test_megatron_on_a_model_without_names() -> None:
    work = tpcompile.plan(decoder(), 2, recipe="megatron")
    assert cut_places(work) == dict.fromkeys(
        ["table[0]", "q[1]", "k[1]", "v[1]", "o[0]", "gate[1]", "up[1]", "down[0]", "head[1]"], 2
    )
    assert estimate_of(work).collectives == {"all_reduce": 3, "all_gather": 1}
    assert [group.reason for group in work.plan.groups if group.name == "table[1]"] == ["recipe megatron: table vocab"]


def test_megatron_holds_where_something_else_would_be_cheaper(tmp_path: Path) -> None:
    """A table of 12 words: the planner would leave it whole."""
    graph = TWO_LAYERS.replace("float[50, 16] table", "float[12, 16] table")
    assert "table[0]" not in cut_places(tpcompile.plan(model(graph), 2, roles={"tokens": "ids"}))
    bundle = tpcompile.compile(model(graph), 2, tmp_path / "b", recipe="megatron", roles={"tokens": "ids"})
    assert held(tmp_path / "b", "table") == [[[[0, 6]], None], [[[6, 12]], None]]
    assert bundle.plan is not None
    assert error_of(model(graph), tmp_path / "b") <= LIMIT


@pytest.mark.parametrize(
    ("recipe", "source"),
    [
        ("llama", decoder(LLAMA)),
        ("llama", as_exported(decoder(), LLAMA)),
        ("llama", as_exported(decoder(), LLAMA, scoped=True)),
        ("bert", decoder(BERT)),
        ("t5", decoder(T5)),
        ("vit", decoder(VIT)),
        ("mixtral", decoder(LLAMA | EXPERTS, experts=4)),
    ],
    ids=["llama", "llama by path", "llama by scope", "bert", "t5", "vit", "mixtral"],
)  # fmt: skip
@pytest.mark.parametrize("tp", [2, 3])
def test_families_on_small_models(recipe: str, source: onnx.ModelProto, tp: int, tmp_path: Path) -> None:
    work = tpcompile.plan(source, tp, recipe=recipe)
    assert estimate_of(work).collectives == {"all_reduce": 3, "all_gather": 1}
    assert [note for note in work.warnings if "passed over" in note] == []
    bundle = tpcompile.compile(source, tp, tmp_path / "b", recipe=recipe, verify=True)
    assert bundle.report is not None and bundle.report.ok


@pytest.mark.parametrize(
    ("recipe", "graph", "reduces", "gathers"),
    [
        ("megatron", "llama__dynamo__kv", 5, 1),
        ("llama", "llama-odd__legacy", 5, 1),
        ("llama", "qwen2__optimum__kv", 5, 1),
        ("llama", "gemma2__legacy__kv", 5, 1),
        ("phi3", "phi3__optimum__kv", 5, 1),
        ("gpt2", "gpt2__legacy__kv", 5, 1),
        ("bert", "bert__legacy-eager", 5, 1),
        ("bert", "distilbert__optimum", 6, 0),
        ("vit", "vit__dynamo", 4, 0),
        ("gpt-neox", "gpt-neox__optimum", 3, 1),
        ("gpt-neox", "bloom__optimum", 5, 1),
    ],
)
def test_families_on_real_graphs(recipe: str, graph: str, reduces: int, gathers: int, tmp_path: Path) -> None:
    """As many collectives as Megatron-LM has by hand, and the numbers of the source."""
    source = zoo.model(graph)
    work = tpcompile.plan(source, 4, recipe=recipe)
    counts = estimate_of(work).collectives
    assert (counts.get("all_reduce", 0), counts.get("all_gather", 0)) == (reduces, gathers)
    tpcompile.compile(source, 2, tmp_path / "b", recipe=recipe)
    assert error_of(source, tmp_path / "b", zoo.feeds(graph)) <= LIMIT


def test_key_heads_are_copied_where_they_are_fewer_than_ranks() -> None:
    work = tpcompile.plan(decoder(LLAMA), 4, recipe="llama")
    cut = cut_places(work)
    assert cut["model.layers.0.self_attn.k_proj.weight[1]"] == 2
    assert cut["model.layers.0.mlp.up_proj.weight[1]"] == 4
    assert work.warnings == [
        f"recipe llama: '{name}_proj=column': model.layers.0.self_attn.{name}_proj.weight has 2 parts for 4 ranks, "
        "so ranks hold copies"
        for name in ("k", "v")
    ]


def test_memory_and_latency_are_objectives() -> None:
    assert tpcompile.plan(model(TWO_LAYERS), 2, recipe="memory").plan.objective == "memory"
    work = tpcompile.plan(model(TWO_LAYERS), 2, recipe="latency")
    assert work.plan.objective == "latency"
    assert tpcompile.plan(model(TWO_LAYERS), 2, recipe="latency", objective="balanced").plan.objective == "balanced"


OWN = """
title = "ours"
description = "what we want"
extends = "megatron"
outputs = "shard"
reduce_dtype = "model"
[[pins]]
weights = ["up?", "nothing.here"]
as = "whole"
optional = true
[[pins]]
role = "head"
as = "whole"
"""


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(OWN)
    work = tpcompile.plan(model(TWO_LAYERS), 2, recipe=path)
    assert (work.request.outputs, work.request.reduce_dtype) == ("shard", "model")
    cut = cut_places(work)
    assert not any(place.startswith("up") for place in cut)
    assert "head[1]" not in cut
    assert cut["table[0]"] == 2
    assert work.warnings == ["recipe ours: head column is passed over: it cannot hold beside others"]


def test_what_is_said_explicitly_wins(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('title = "t"\ndescription = "d"\n[[pins]]\nweights = "down0"\nas = "row"\n'
                    '[[pins]]\nweights = "table"\nas = "vocab"\n')  # fmt: skip
    work = tpcompile.plan(model(TWO_LAYERS), 2, recipe=path, pins={"table": "column", "up0": "row"})
    assert cut_places(work)["up0[0]"] == 2
    assert work.warnings == [
        "recipe ours: 'down0=row' is passed over: it cannot hold beside what was asked for explicitly"
    ]


def test_building_on_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "below.toml").write_text('title = "b"\ndescription = "d"\nobjective = "memory"\n')
    (tmp_path / "above.toml").write_text('title = "a"\ndescription = "d"\nextends = "below.toml"\n')
    found = find_recipe(str(tmp_path / "above.toml"))
    assert (found.name, found.objective, found.extends) == ("above", "memory", ("below",))


@pytest.mark.parametrize(
    ("files", "wanted", "lines"),
    [
        ({}, "lama", ["TP150 --recipe lama: there is no such recipe and no such file. Use llama, or a file"]),
        (
            {"a.toml": "title = 3\nobject = 'memory'\nobjective = 'small'\n[[pins]]\nweights = [1]\nas = 'up'\n"
                       "optional = 1\n[[pins]]\nrole = 'residual'\nweights = 'w'\nas = 'row'\n"},
            "a.toml",
            [
                "TP151 --recipe a.toml: title is 3, not a text. See recipes/llama.toml for one that is right",
                "TP151 --recipe a.toml: description is missing. See recipes/llama.toml for one that is right",
                "TP151 --recipe a.toml: objective is 'small', not one of balanced, memory, latency. "
                "See recipes/llama.toml for one that is right",
                "TP151 --recipe a.toml: pins[0].weights is [1], not a text or a list of texts. "
                "See recipes/llama.toml for one that is right",
                "TP151 --recipe a.toml: pins[0].as is 'up', not one of column, row, vocab, expert, whole, gather. "
                "See recipes/llama.toml for one that is right",
                "TP151 --recipe a.toml: pins[0].optional is 1, not true or false. "
                "See recipes/llama.toml for one that is right",
                "TP151 --recipe a.toml: pins[1].as is 'row', and a residual can only be kept whole. "
                "See recipes/llama.toml for one that is right",
                "TP151 --recipe a.toml: object is no key of a recipe. See recipes/llama.toml for one that is right",
                "TP151 --recipe a.toml: pins[1].weights is no key of a recipe. "
                "See recipes/llama.toml for one that is right",
            ],
        ),
        (
            {"a.toml": 'title = "a"\ndescription = "d"\nextends = "b.toml"\n',
             "b.toml": 'title = "b"\ndescription = "d"\nextends = "a.toml"\n'},
            "a.toml",
            ["TP152 --recipe a.toml: extends = 'b.toml': extends = 'a.toml': recipes build on each other in a circle: "
             "a.toml → b.toml → a.toml. Leave out one `extends`"],
        ),
        (
            {"a.toml": 'title = "a"\ndescription = "d"\n[[pins]]\nweights = ["up0", "q_proj"]\nas = "column"\n'},
            "a.toml",
            ["TP153 recipe a: pins[0]: no weight or module of the model has a name like 'q_proj'. "
             "Correct the pattern, or add `optional = true`"],
        ),
        (
            {}, "gpt2",
            ["TP153 recipe gpt2: the model has none of the names it speaks of, such as 'attn.c_attn'. "
             "Use --recipe megatron, which goes by no names"],
        ),
    ],
    ids=["no such recipe", "a faulty file", "a circle", "a name that must be there", "none of its names"],
)  # fmt: skip
def test_faults_of_recipes(
    files: dict[str, str], wanted: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(TWO_LAYERS), 2, recipe=wanted)
    assert str(caught.value).splitlines() == lines


def test_a_damaged_file_and_one_that_is_no_toml(tmp_path: Path) -> None:
    for content, text in ((b"\xff\xfe", "cannot be read ("), (b"title = ", "is no TOML (")):
        (tmp_path / "a.toml").write_bytes(content)
        with pytest.raises(Refused) as caught:
            find_recipe(str(tmp_path / "a.toml"))
        assert str(caught.value).startswith(f"TP151 --recipe {tmp_path / 'a.toml'}: {text}")


def test_names_that_look_alike_are_told() -> None:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(decoder(LLAMA), 2, recipe="gpt-neox")
    assert str(caught.value) == (
        "TP153 recipe gpt-neox: the model has none of the names it speaks of, such as 'query_key_value' (it has "
        "model.embed_tokens, model.layers.0.self_attn.q_proj, model.layers.0.self_attn.k_proj). "
        "Use --recipe megatron, which goes by no names"
    )


def test_a_plan_file_decides_alone(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(TWO_LAYERS), 2, recipe="memory", plan=tmp_path / "plan.toml")
    assert str(caught.value).startswith(f"TP116 --plan {tmp_path / 'plan.toml'}: a plan file decides alone, so ")
    assert "--recipe" in str(caught.value)


def test_the_same_request_gives_the_same_plan() -> None:
    one, other = (tpcompile.plan(decoder(LLAMA), 4, recipe="llama").plan.groups for _ in range(2))
    assert one == other


def test_weights_are_gathered_but_for_those_that_are_to_be_cut(tmp_path: Path) -> None:
    source = model(TWO_LAYERS.replace("36", "372").replace("50", "513"))
    work = tpcompile.plan(source, 2, recipe="gather-weights")
    assert {value.name for value in work.plan.gathered} == {"table", "up0", "up1", "down0", "down1", "head"}
    work = tpcompile.plan(source, 2, recipe="gather-weights", pins={"up0": "column"})
    assert {value.name for value in work.plan.gathered} == {"table", "head"}
    assert cut_places(work)["up0[1]"] == 2
    bundle = tpcompile.compile(source, 2, tmp_path / "b", recipe="gather-weights", pins={"up0": "column"})
    assert [call.op for call in bundle.manifest.collectives] == ["all_gather", "all_reduce", "all_reduce", "all_gather"]
    assert error_of(source, tmp_path / "b") <= LIMIT


def test_the_bundles_plan_names_the_recipe(tmp_path: Path) -> None:
    tpcompile.compile(model(TWO_LAYERS), 2, tmp_path / "a", recipe="memory")
    path = tmp_path / "a" / "plan.toml"
    assert 'objective = "memory"\nrecipe = "memory"\n' in path.read_text()
    tpcompile.compile(model(TWO_LAYERS), 2, tmp_path / "b", plan=path)
    assert (tmp_path / "b" / "plan.toml").read_bytes() == path.read_bytes()


FORBIDDING = """
title = "t"
description = "d"
[[forbids]]
weights = ["table", "up0"]
as = "{}"
optional = true
[[forbids]]
weights = "head"
"""


@pytest.mark.parametrize(("kind", "cut"), [("vocab", {"up0[1]"}), ("column", {"table[0]"})])
def test_what_a_recipe_forbids_is_not_cut_so(kind: str, cut: set[str], tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(FORBIDDING.format(kind))
    found = cut_places(tpcompile.plan(model(TWO_LAYERS), 2, recipe=tmp_path / "r.toml"))
    assert {place for place in found if place.startswith(("table", "up0", "head"))} == cut


def test_what_can_be_forbidden(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(FORBIDDING.format("whole"))
    with pytest.raises(Refused) as caught:
        find_recipe(str(tmp_path / "r.toml"))
    assert str(caught.value) == (
        f"TP151 --recipe {tmp_path / 'r.toml'}: forbids[0].as is 'whole', not one of column, row, vocab, expert. "
        "See recipes/llama.toml for one that is right"
    )
    (tmp_path / "r.toml").write_text(FORBIDDING.format("column").replace('"head"', '"tail"'))
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(TWO_LAYERS), 2, recipe=tmp_path / "r.toml")
    assert str(caught.value) == (
        "TP153 recipe r: forbids[1]: no weight or module of the model has a name like 'tail'. "
        "Correct the pattern, or add `optional = true`"
    )
