"""`plan --why`: the terms add up to what the solver says, and are those a person would name."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import tpcompile
from tests.plan.models import TWO_LAYERS, attention, model
from tpcompile import cli
from tpcompile.errors import Refused
from tpcompile.passes.choose_plan import ChoosePlan
from tpcompile.plan.solve import Solver, Wish
from tpcompile.plan.why import cost_terms
from tpcompile.why_report import why

OBJECTIVES = ["balanced", "memory", "latency"]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tp", [2, 3, 4, 6])
@pytest.mark.parametrize("source", [model(TWO_LAYERS), attention(6, 2), attention(5, 5)])
def test_terms_add_up_to_the_difference_the_solver_sees(source: onnx.ModelProto, tp: int, objective: str) -> None:
    work = tpcompile.plan(source, tp, objective=objective)
    solver = Solver(work.problem, ChoosePlan().prices(work))
    base = solver.solve()
    assert base is not None
    assert sum(cost_terms(solver, base[0]).values()) == pytest.approx(base[1], rel=1e-6)
    group_of = {classes[0].name: group for group, classes in enumerate(work.problem.groups)}
    answers = [found for found in why(work, "*") if found.option]
    assert answers
    for found in answers:
        alone = (frozenset((group_of[found.name],)),)
        partly = work.problem.groups[group_of[found.name]][0].most_parts < tp
        other = solver.solve([Wish("", alone, not found.axes, 1 if partly and not found.axes else None)])
        assert other is not None
        assert found.price == pytest.approx(sum(term.price for term in found.terms), rel=1e-9)
        assert found.price == pytest.approx(other[1] - base[1], rel=1e-5, abs=1e-6 * base[1])


def test_what_forces_it_forces_it_at_that_price() -> None:
    work = tpcompile.plan(model(TWO_LAYERS), 4)
    answers = {found.name: found for found in why(work, "*") if found.option}
    assert answers["up0[1]"].option == "--forbid 'up0[1]'"
    assert answers["table[1]"].option == "--pin 'table[1]=cut'"
    assert not any(group.axes for group in tpcompile.plan(
        model(TWO_LAYERS), 4, forbids={"up0[1]": ""}).plan.groups if group.name == "up0[1]")  # fmt: skip
    forced = tpcompile.plan(model(TWO_LAYERS), 4, pins={"table[1]": "cut"})
    assert {group.name for group in forced.plan.groups if group.axes} == {"table[1]"}
    assert {excluded.name for excluded in answers["table[1]"].excludes} == {"up0[1]", "head[1]", "table[0]"}
    assert all(excluded.where.startswith("both are axes of") for excluded in answers["table[1]"].excludes)


def test_what_cannot_be_cut_says_which_operator() -> None:
    source = model("(float[6, 6] x) => (float[6, 6] y) <float[6, 6] w> { h = Det(w) g = MatMul(x, w) y = Add(g, h) }")
    found = why(tpcompile.plan(source, 2), "w")[-1]
    assert found.reason.startswith("Det has no rule (read by Det")
    assert found.remedy == "A rule for Det (docs/adding-a-rule.md)"


def test_a_pin_that_decided_is_named() -> None:
    work = tpcompile.plan(model(TWO_LAYERS), 4, pins={"up0[1]": "whole"})
    found = next(found for found in why(work, "up0[1]") if found.name == "up0[1]")
    assert (found.reason, found.remedy) == ("pin 'up0[1]=whole'", "Leave out the pin")


def test_a_pattern_that_names_nothing() -> None:
    with pytest.raises(Refused) as caught:
        why(tpcompile.plan(model(TWO_LAYERS), 2), "upp0")
    assert str(caught.value) == (
        "TP142 --why upp0: no weight or dimension has such a name (there are 8 weights, such as up0, up1). "
        "Correct the pattern"
    )


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_in_the_terminal(columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    monkeypatch.setenv("COLUMNS", str(columns))
    command = ["plan", str(tmp_path / "m.onnx"), "--tp", "4", "--why", "table"]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out
    assert "→ --pin 'table[1]=cut' forces it" in shown and "in all; by the estimate a step would take" in shown
    assert max(map(len, shown.splitlines())) <= columns
    assert cli.main([*command, "--json"]) == 0
    assert {found["name"] for found in json.loads(capsys.readouterr().out)["why"]} == {"table[0]", "table[1]"}
