"""`plan --why`: the terms add up to what the solver says, and are those a person would name."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import tpcompile
from tests import zoo
from tests.plan.models import MIXED, TWO_LAYERS, attention, model
from tpcompile import cli
from tpcompile.errors import Refused
from tpcompile.passes.choose_plan import ChoosePlan
from tpcompile.plan.meetings import meetings
from tpcompile.plan.solve import Solver, Wish
from tpcompile.plan.why import cost_terms
from tpcompile.why_report import why

OBJECTIVES = ["balanced", "memory", "latency"]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tp", [3, 4])
@pytest.mark.parametrize("source", [model(TWO_LAYERS), attention(6, 2), attention(5, 5)])
def test_terms_add_up_to_the_difference_the_solver_sees(source: onnx.ModelProto, tp: int, objective: str) -> None:
    work = tpcompile.plan(source, tp, objective=objective)
    solver = Solver(work.problem, ChoosePlan().prices(work, objective))
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
    assert all(excluded.where.startswith("both are dimensions of") for excluded in answers["table[1]"].excludes)


def test_what_cannot_be_cut_says_which_operator() -> None:
    source = model("(float[6, 6] x) => (float[6, 6] y) <float[6, 6] w> { h = Det(w) g = MatMul(x, w) y = Add(g, h) }")
    found = why(tpcompile.plan(source, 2), "w")[-1]
    assert found.reason == "Det has no rule (read by Det Det_1)"
    assert found.remedy == "A rule for Det (docs/adding-a-rule.md)"
    assert found.blocked == ("w[0]: Det has no rule, at Det Det_1", "w[1]: Det has no rule, at Det Det_1")


def test_where_two_dimensions_meet() -> None:
    """In a weight of both where there is one, else in what an operator sums over and keeps, or in a value."""
    found = {about.name: about.excludes for about in why(tpcompile.plan(attention(6, 2), 4), "*")}
    assert {excluded.name: excluded.where for excluded in found["q[0]"]} == {
        "q[1]": "both are dimensions of q, which MatMul MatMul_1 reads",
        "o[0].2": "both are dimensions of v, which MatMul MatMul_3 reads",
    }
    problem, analysis = (work := tpcompile.plan(model(MIXED), 2)).problem, work.analysis
    names = [classes[0].name for classes in problem.groups]
    places = {frozenset((names[a], names[b])): where for (a, b), where in meetings(problem, analysis).items()}
    assert places.keys() == {frozenset((names[a], names[b])) for a, b in problem.exclusive}
    assert places[frozenset(("v[1]", "u[1]"))] == "both are dimensions of u, which MatMul MatMul_2 reads"


def test_a_plan_file_is_priced_by_what_it_was_best_at(tmp_path: Path) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    command = ["plan", str(tmp_path / "m.onnx"), "--tp", "4", "--objective", "latency"]
    assert cli.main([*command, "--write-plan", str(tmp_path / "plan.toml")]) == 0
    free = tpcompile.plan(tmp_path / "m.onnx", 4, objective="latency")
    given = tpcompile.plan(tmp_path / "m.onnx", 4, plan=tmp_path / "plan.toml")
    assert [found.price for found in why(given, "*")] == pytest.approx([found.price for found in why(free, "*")])


def test_what_no_other_plan_can_do_is_said() -> None:
    work = tpcompile.plan(model(TWO_LAYERS), 4, pins={"table[0]": "cut", "up0": "column"})
    found = next(found for found in why(work, "table") if found.name == "table[1]")
    assert found.reason == "no plan has it otherwise under pin 'table[0]=cut', pin 'up0=column'"
    assert (found.remedy, found.option) == ("Leave out what it contradicts", "")
    wide = model("(float[batch, 4000] x) => (float[batch, 4000] y) <float[4000] b> { y = Add(x, b) }")
    work = tpcompile.plan(wide, 2, objective="memory")
    work.solver = Solver(work.problem, ChoosePlan().prices(work, "memory"), limit_bytes=10_000)
    found = why(work, "b")[0]
    assert found.reason == "no plan that has it otherwise keeps within the memory of a rank"
    assert found.remedy == "More memory per rank, or more ranks"


def test_caches_and_tables_are_told_as_what_ranks_hold_of_them() -> None:
    """A cache is priced as a small part of itself, and a table by the rows that ids look up."""
    work = tpcompile.plan(zoo.model("llama__dynamo__kv"), 2)
    heads = next(found for found in why(work, "val_84[1]") if found.name == "val_84[1]")
    caches = next(term for term in heads.terms if "past_key_values.0.key" in term.values)
    assert (caches.of, caches.nbytes) == (4, sum(work.problem.caches.values()) / 2)
    assert 0 < caches.price < caches.nbytes / 10 and caches.us > 0
    found = next(found for found in why(tpcompile.plan(model(TWO_LAYERS), 4, objective="latency"), "table")
                 if found.name == "table[1]")  # fmt: skip
    table = next(term for term in found.terms if term.values == ("table",))
    assert (table.nbytes, table.price, table.us) == (-2400, 0, 0)


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


TABLE_WHOLE = """\
m.onnx on 4 ranks, balanced

table[1]: whole
  cannot be cut over the same ranks as table[0]: both are dimensions of table, which Gather Gather_1 reads
  cannot be cut over the same ranks as up0[1]: both are dimensions of up0, which MatMul MatMul_1 reads
  cannot be cut over the same ranks as head[1]: both are dimensions of head, which MatMul MatMul_5 reads
  were it cut, the price of a step would change by, in bytes read:
     +5.6 kB  +3 AllReduce of b0, b1, logits: +488 B sent, +27 µs
     −2.3 kB  −2 AllReduce of d0, d1: −128 B sent, −18 µs
     −1.2 kB  −1 AllGather of logits: −200 B sent, −8 µs
      −541 B  −1 AllReduce of x0: −64 B sent, −9 µs
      +216 B  bias0, bias1: +216 B a rank, +0 µs
       −49 B  the cuts themselves
       −32 B  table: −32 B a rank, +0 µs
       −32 B  head: −32 B a rank, −0 µs
     +1.7 kB  in all; by the estimate a step would take −8 µs
  with table[0] whole, up0[1] whole, head[1] whole
  → --pin 'table[1]=cut' forces it
"""


def test_the_whole_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["plan", str(tmp_path / "m.onnx"), "--tp", "4", "--why", "table[1]"]) == 0
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "\n".join(shown).rstrip() + "\n" == TABLE_WHOLE


@pytest.mark.parametrize("name", ["llama-odd__legacy", "vit__dynamo", "gpt2__legacy__kv"])
def test_exporters_names_in_80_columns(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Each dimension that can be cut is named in the option that forces it, in full."""
    onnx.save(zoo.model(name), tmp_path / "m.onnx")
    monkeypatch.setenv("COLUMNS", "80")
    command = ["plan", str(tmp_path / "m.onnx"), "--tp", "4", "--why", "*"]
    assert cli.main(command) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    assert cli.main([*command, "--json"]) == 0
    found = [about for about in json.loads(capsys.readouterr().out)["why"] if about["option"]]
    assert found
    for about in found:
        assert about["price"] == pytest.approx(sum(term["price"] for term in about["terms"]), rel=1e-9, abs=1e-9)
        assert about["name"] in about["option"] or "plan.toml" in about["option"]


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


def test_a_question_about_nothing_leaves_no_files(tmp_path: Path) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    files = ["--report", str(tmp_path / "r.html"), "--write-plan", str(tmp_path / "p.toml")]
    assert cli.main(["plan", str(tmp_path / "m.onnx"), "--tp", "2", "--why", "nowhere", *files]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
