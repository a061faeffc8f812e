"""Hugging Face's tp_plan: read as asks, whatever exporters made of the names, and written from a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import tpcompile
from tests import zoo
from tests.plan.models import LIMIT, TWO_LAYERS, error_of, model
from tests.plan.named_models import LLAMA, as_exported, decoder
from tests.plan.test_recipes import cut_places
from tpcompile.cli import main
from tpcompile.errors import Refused
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.tp_plan import STYLES, read_tp_plan
from tpcompile.plan.tp_plan_export import export_tp_plan
from tpcompile.plan_summary import estimate_of

OF_LLAMA = {
    "layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise", "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise",
}  # fmt: skip
"""As transformers has it for LLaMA, Mistral, Qwen 2 and many others."""
EXPERTS = LLAMA | {
    "gate": "model.layers.0.mlp.experts.gate_proj", "up": "model.layers.0.mlp.experts.up_proj",
    "down": "model.layers.0.mlp.experts.down_proj",
}  # fmt: skip


def exported(work: Compilation) -> tuple[dict[str, str], list[str]]:
    return export_tp_plan(work.analysis, work.problem, work.plan.cut)


@pytest.mark.parametrize(
    "source",
    [decoder(LLAMA), as_exported(decoder(), LLAMA), as_exported(decoder(), LLAMA, scoped=True)],
    ids=["by name", "by path", "by scope"],
)
def test_a_plan_of_transformers_is_followed(source: onnx.ModelProto, tmp_path: Path) -> None:
    work = tpcompile.plan(source, 2, tp_plan=OF_LLAMA | {"lm_head": "colwise_gather_output"})
    assert work.warnings == []
    assert dict(estimate_of(work).collectives) == {"all_reduce": 3, "all_gather": 1}
    bundle = tpcompile.compile(source, 2, tmp_path / "b", tp_plan=OF_LLAMA, verify=True)
    assert bundle.report is not None and bundle.report.ok


@pytest.mark.parametrize(
    ("graph", "styles"),
    [
        ("qwen2__optimum__kv", OF_LLAMA),
        ("gemma2__legacy__kv", OF_LLAMA),
        ("phi3__optimum__kv", {
            "layers.*.self_attn.qkv_proj": "colwise_gather_output", "layers.*.self_attn.o_proj": "rowwise_split_input",
            "layers.*.mlp.gate_up_proj": "colwise_gather_output", "layers.*.mlp.down_proj": "rowwise_split_input",
        }),
        ("phi3__optimum__kv", OF_LLAMA),
        ("gpt-neox__optimum", {
            "embed_in": "embedding_rowwise", "layers.*.attention.query_key_value": "colwise",
            "layers.*.attention.dense": "rowwise", "layers.*.mlp.dense_h_to_4h": "colwise",
            "layers.*.mlp.dense_4h_to_h": "rowwise",
        }),
    ],
    ids=["few key heads", "norms around", "fused", "fused, and the plan is not", "parallel layers"],
)  # fmt: skip
def test_plans_on_real_graphs(graph: str, styles: dict[str, str], tmp_path: Path) -> None:
    """As good as what the planner finds alone: no gather where transformers needs one."""
    source = zoo.model(graph)
    work = tpcompile.plan(source, 4, tp_plan=styles)
    assert [note for note in work.warnings if "passed over" in note] == []
    assert estimate_of(work).collectives == estimate_of(tpcompile.plan(source, 4)).collectives
    tpcompile.compile(source, 2, tmp_path / "b", tp_plan=styles)
    assert error_of(source, tmp_path / "b", zoo.feeds(graph)) <= LIMIT


@pytest.mark.parametrize(
    ("style", "place"),
    [
        ("colwise", "up0[1]"), ("colwise_rep", "up0[1]"), ("local_colwise", "up0[1]"), ("packed_colwise", "up0[1]"),
        ("rowwise", "up0[0]"), ("rowwise_rep", "up0[0]"), ("rowwise_split_input", "up0[0]"),
        ("local_rowwise", "up0[0]"), ("replicate", None), ("sequence_parallel", None), ("mla_kv_a_proj", None),
    ],
)  # fmt: skip
def test_what_styles_mean(style: str, place: str | None) -> None:
    work = tpcompile.plan(model(TWO_LAYERS), 2, tp_plan={"up0": style})
    assert [found for found in cut_places(work) if found.startswith("up0")] == ([place] if place else [])


@pytest.mark.parametrize(
    ("style", "place"),
    [("embedding_rowwise", "table[0]"), ("rowwise", "table[0]"), ("vocab_parallel_rowwise", "table[0]"),
     ("embedding_colwise", "table[1]"), ("replicate", None)],
)  # fmt: skip
def test_styles_of_embeddings(style: str, place: str | None) -> None:
    work = tpcompile.plan(model(TWO_LAYERS), 2, tp_plan={"table": style})
    assert [found for found in cut_places(work) if found.startswith("table")] == ([place] if place else [])


def test_styles_of_experts_go_by_axes() -> None:
    """[experts, hidden, width]: what makes the width has it last, unlike a Linear layer, so rowwise cuts it."""
    styles = {"layers.*.mlp.experts.gate_proj": "rowwise", "layers.*.mlp.experts.up_proj": "local_packed_rowwise",
              "layers.*.mlp.experts.down_proj": "colwise", "layers.*.mlp.experts": "moe_tp_experts"}  # fmt: skip
    work = tpcompile.plan(decoder(EXPERTS, experts=4), 2, tp_plan=styles)
    cut = cut_places(work)
    assert {place for place in cut if "experts" in place} == {
        "model.layers.0.mlp.experts.gate_proj[2]", "model.layers.0.mlp.experts.up_proj[2]",
        "model.layers.0.mlp.experts.down_proj[1]",
    }  # fmt: skip
    assert work.warnings == []
    work = tpcompile.plan(decoder(EXPERTS, experts=4), 2, tp_plan={"layers.*.mlp.experts.gate_proj": "grouped_gemm"})
    assert cut_places(work)["model.layers.0.mlp.experts.gate_proj[0]"] == 2


def test_what_cannot_be_followed_is_told() -> None:
    styles = {"up0": "colwise", "down0": "colwize", "nothing.here": "rowwise", "nor.this": "colwise", "x": "all_reduce"}
    work = tpcompile.plan(model(TWO_LAYERS), 2, tp_plan=styles, pins={"up1": "whole"})
    assert work.warnings == [
        "pin 'up1=whole' names 1 of 2 alike layers (up0[1], …): it holds for all of them, for they are cut alike",
        "tp_plan: 'down0=colwize' is passed over: tpcompile knows no style 'colwize'; 'colwise' is one",
        "tp_plan: no weight or module of the model has a name like nothing.here, nor.this",
        "tp_plan: 'up0=colwise' is passed over: it cannot hold beside what was asked for explicitly",
    ]


def test_a_tp_plan_wins_over_a_recipe() -> None:
    work = tpcompile.plan(decoder(LLAMA), 2, tp_plan={"embed_tokens": "embedding_colwise"}, recipe="llama")
    assert "model.embed_tokens.weight[1]" in cut_places(work)


@pytest.mark.parametrize("inside", [
    OF_LLAMA, {"model_type": "llama", "base_model_tp_plan": OF_LLAMA}, {"tp_plan": OF_LLAMA},
    {"model_type": "gemma3", "text_config": {"base_model_tp_plan": OF_LLAMA}},
])  # fmt: skip
def test_files_that_hold_a_plan(inside: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(inside))
    assert read_tp_plan(path).styles == OF_LLAMA


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("{", ["TP154 --tp-plan p.json: cannot be read (Expecting property name enclosed in double quotes: line 1 "
               "column 2 (char 1)). Give a JSON file of module names and styles"]),
        ("[]", ["TP154 --tp-plan p.json: is no dictionary. Give a JSON file of module names and styles"]),
        ("{}", ["TP154 --tp-plan p.json: is empty. Write a plan to it: json.dumps(model._tp_plan), or of "
                "config.base_model_tp_plan"]),
        ('{"a": 1, "b": ["colwise"], "c": "colwise"}',
         ["TP154 --tp-plan p.json: 'a' has 1 for a style. Use names of modules and of styles",
          "TP154 --tp-plan p.json: 'b' has ['colwise'] for a style. Use names of modules and of styles"]),
        ('{"model_type": "llama", "hidden_size": 4096}',
         ["TP154 --tp-plan p.json: this configuration holds no tp_plan: transformers keeps plans in the code of its "
          "models. Write one to a file: json.dumps(model._tp_plan), or of config.base_model_tp_plan"]),
        ('{"layers.*.q_proj": "colwise"}',
         ["TP155 --tp-plan p.json: none of its modules is in the model, such as 'layers.*.q_proj' (it has lost all "
          "their names). Use --recipe megatron, which goes by no names"]),
    ],
    ids=["no JSON", "no dictionary", "empty", "no styles", "a configuration without", "none of its modules"],
)  # fmt: skip
def test_faults_of_plans(text: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.json").write_text(text)
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(TWO_LAYERS), 2, tp_plan="p.json")
    assert str(caught.value).splitlines() == lines


def test_modules_of_the_model_are_told() -> None:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(decoder(LLAMA), 2, tp_plan={"h.*.c_attn": "colwise"})
    assert str(caught.value) == (
        "TP155 tp_plan: none of its modules is in the model, such as 'h.*.c_attn' (its modules are named "
        "model.embed_tokens, model.layers.0.self_attn.q_proj, model.layers.0.self_attn.k_proj, …). "
        "Use --recipe megatron, which goes by no names"
    )


def test_what_transformers_has_by_hand_is_what_is_exported() -> None:
    styles, unsaid = exported(tpcompile.plan(decoder(LLAMA), 2))
    assert styles == {
        "model.embed_tokens": "embedding_rowwise",
        **{f"model.{module}": style for module, style in OF_LLAMA.items()},
        "lm_head": "colwise_gather_output",
    }
    assert unsaid == []
    assert set(styles.values()) <= STYLES.keys()


def test_key_heads_that_ranks_share_are_told_with_gathers() -> None:
    styles, unsaid = exported(tpcompile.plan(decoder(LLAMA), 4))
    attention = {module.rpartition(".")[2]: style for module, style in styles.items() if "self_attn" in module}
    assert attention == dict.fromkeys(["q_proj", "k_proj", "v_proj"], "colwise_gather_output") | {
        "o_proj": "rowwise_split_input"
    }
    why = "said with gathered results, which sends more: transformers has no style for how model.layers.0.self_attn"
    assert unsaid[0].startswith(f"model.layers.*.self_attn.q_proj: {why}.")
    assert styles["model.layers.*.mlp.up_proj"] == "colwise"


def test_experts_are_told_by_axes() -> None:
    styles, unsaid = exported(tpcompile.plan(decoder(EXPERTS, experts=4), 2))
    assert {module.rpartition("mlp.")[2]: style for module, style in styles.items() if "mlp" in module} == {
        "experts.gate_proj": "rowwise", "experts": "moe_tp_experts", "experts.up_proj": "rowwise",
        "experts.down_proj": "colwise",
    }  # fmt: skip
    assert unsaid == []


@pytest.mark.parametrize("graph", [
    "llama-odd__legacy", "qwen2__optimum__kv", "gemma2__legacy__kv", "phi3__optimum__kv", "gpt2__legacy__kv",
    "bert__legacy-eager", "distilbert__optimum", "gpt-neox__optimum", "bloom__optimum", "vit__dynamo",
])  # fmt: skip
@pytest.mark.parametrize("tp", [3, 4])
def test_what_is_exported_comes_back_as_the_same_plan(graph: str, tp: int) -> None:
    source = zoo.model(graph)
    work = tpcompile.plan(source, tp)
    again = tpcompile.plan(source, tp, tp_plan=exported(work)[0])
    assert {group.name: group.axes for group in again.plan.groups} == {
        group.name: group.axes for group in work.plan.groups
    }


def test_exporting_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(decoder(LLAMA), tmp_path / "m.onnx")
    onnx.save(decoder(), tmp_path / "nameless.onnx")
    out = tmp_path / "tp_plan.json"
    assert main(["plan", str(tmp_path / "m.onnx"), "--tp", "4", "--export-tp-plan", str(out)]) == 0
    assert json.loads(out.read_text())["lm_head"] == "colwise_gather_output"
    assert "said with gathered results" in " ".join(capsys.readouterr().out.split())
    assert main(["plan", str(tmp_path / "m.onnx"), "--tp", "4", "--tp-plan", str(out), "--json"]) == 0
    capsys.readouterr()
    for argv, text in (
        (["nameless.onnx", "2", out],
         "TP156 --export-tp-plan: no weight that is cut has the name of a module, and styles are said of modules"
         ". Export the model with names: torch's exporter keeps them in the metadata\n"),
        (["m.onnx", "2", tmp_path / "no" / "p.json"],
         f"TP440 --export-tp-plan {tmp_path / 'no' / 'p.json'}: there is no such folder. "
         "Choose a file in a folder that is there\n"),
        (["m.onnx", "2,4", out],
         f"TP441 --export-tp-plan {out}: it holds one plan, and --tp asks for several. Give one degree\n"),
    ):  # fmt: skip
        name, tp, target = map(str, argv)
        assert main(["plan", str(tmp_path / name), "--tp", tp, "--export-tp-plan", target]) == 2
        assert capsys.readouterr().err == text
