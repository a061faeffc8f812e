"""Wishes and plans hold for PyTorch graphs: pins by parameter, recipes, tp_plans, plan files, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'tpcompile[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'tpcompile[models]'")

from tests.torch_fx import models  # noqa: E402
from tpcompile.errors import Refused  # noqa: E402
from tpcompile.passes.compilation import Compilation  # noqa: E402
from tpcompile.plan.planfile import plan_toml  # noqa: E402
from tpcompile.plan_summary import summarize  # noqa: E402
from tpcompile.report_page.page import report_page  # noqa: E402
from tpcompile.torch import parallelize  # noqa: E402
from tpcompile.torch.programs import planned  # noqa: E402


def how(work: Compilation) -> dict[str, str]:
    """How each weight lies, by its name."""
    return {row.name: row.how for row in summarize(work).weights}


def llama(**wishes: Any) -> Compilation:
    return planned(models.exported("llama"), tp=2, **wishes)


LAYER = "model.layers.0"


def test_a_pin_by_parameter_name_holds() -> None:
    assert how(llama())[f"{LAYER}.mlp.down_proj.weight"] == "row"
    found = how(llama(pins={"*.mlp.*": "whole"}))
    assert {found[f"{LAYER}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")} == {"whole"}
    assert found[f"{LAYER}.self_attn.o_proj.weight"] == "row"


def test_a_pin_of_a_parameter_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused) as told:
        llama(pins={"*.ffn.*": "whole"})
    assert str(told.value) == (
        "TP104 pin '*.ffn.*=whole': no weight or dimension has such a name (there are 22 weights, such as "
        "'lm_head.weight', 'model.embed_tokens.weight', 'model.layers.0.input_layernorm.weight'). "
        "Correct the pattern, or leave the pin out"
    )


def test_a_gathered_parameter_is_stored_cut_and_used_whole() -> None:
    made = parallelize(models.exported("llama"), tp=2, pins={"lm_head.weight": "gather"})
    source = models.exported("llama").state_dict["lm_head.weight"]
    parts = [made.rank_program(rank).state_dict["lm_head.weight"] for rank in range(2)]
    assert torch.equal(torch.cat(parts), source)


def test_megatrons_recipe_and_hugging_faces_tp_plan_say_what_the_plan_is() -> None:
    plain = how(llama())
    assert how(llama(recipe="megatron")) == plain
    styles = {
        "model.layers.*.self_attn.q_proj": "colwise",
        "model.layers.*.self_attn.o_proj": "rowwise",
        "model.layers.*.mlp.up_proj": "colwise",
        "model.layers.*.mlp.down_proj": "rowwise",
    }
    found = how(llama(tp_plan=styles))
    assert {name: plain[name] for name in found if ".layers." in name} == {
        name: kind for name, kind in found.items() if ".layers." in name
    }


def test_a_plan_file_gives_the_same_plan_back(tmp_path: Path) -> None:
    work = llama(pins={"*.mlp.*": "whole"})
    (tmp_path / "plan.toml").write_text(plan_toml(work.plan, summarize(work)), encoding="utf-8")
    again = llama(plan=tmp_path / "plan.toml")
    assert how(again) == how(work) != how(llama())


def test_the_report_tells_parameters_by_name() -> None:
    page = report_page(summarize(llama()))
    assert "self_attn.q_proj.weight" in page and "mlp.down_proj.weight" in page
