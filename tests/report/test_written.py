"""Where report.html comes to be: in every bundle, and by `tpcompile plan --report`, from one summary of the plan."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

import tpcompile
from tests import zoo
from tests.plan.models import TWO_LAYERS, model
from tests.report.test_page import Parsed
from tpcompile.cli import main
from tpcompile.plan.words import bytes_text, time_text
from tpcompile.plan_summary import summarize


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_bundle_holds_the_page_that_plan_writes(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(source), "--tp", "4"]) == 0
    assert main(["plan", str(source), "--tp", "4", "--report", str(tmp_path / "page.html")]) == 0
    assert "m.onnx on 4 ranks" in capsys.readouterr().out
    assert (tmp_path / "m.tp4" / "report.html").read_bytes() == (tmp_path / "page.html").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.tp4", "page.html"]
    rights = (tmp_path / "m.tp4" / "plan.toml").stat().st_mode
    assert (tmp_path / "page.html").stat().st_mode == rights


def test_a_page_is_replaced_as_a_whole(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    page.write_text("x" * 1_000_000)
    assert main(["plan", str(source), "--tp", "2", "--report", str(page), "--json"]) == 0
    assert capsys.readouterr().out.startswith("{")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("name", ["llama__hf__kv", "vit__dynamo"])
def test_a_real_plan_is_shown_as_it_is(name: str) -> None:
    from tpcompile.report_page.page import report_page

    plan = summarize(tpcompile.plan(zoo.model(name), 2))
    found = Parsed(report_page(plan))
    assert f"Weights a rank{bytes_text(max(held.weights for held in plan.ranks))}" in found.text
    assert f"A step{time_text(plan.estimate.step.total)}" in found.text
    assert [row[2] for row in found.body("collectives")] == [row.value for row in plan.collectives]
    shown = {row[0] for row in found.body("weights")}
    assert {row.name for row in plan.weights if row.how != "whole"} <= shown <= {row.name for row in plan.weights}
    assert len(found.body("cut")) == len(plan.cut) and len(found.body("whole")) == len(plan.whole)
    boxes = [a["class"] for _, a in found.tags if a.get("class", "").startswith("box ")]
    kinds = {box.split()[1] for box in boxes}
    assert {"column", "row", "communication"} <= kinds


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--tp", "2", "--report", "m.onnx"],
         "TP440 --report m.onnx: it replaces a file that has its name, and must end in .html. Use a name in .html\n"),
        (["--tp", "2", "--report", "none/r.html"],
         "TP440 --report none/r.html: there is no such folder. Choose a file in a folder that is there\n"),
        (["--tp", "2", "--report", "folder.html"],
         "TP440 --report folder.html: it is a folder. Choose a file in a folder that is there\n"),
        (["--tp", "1,2", "--report", "r.html"],
         "TP441 --report r.html: it holds one plan, and --tp asks for several. Give one degree\n"),
    ],
)  # fmt: skip
def test_where_no_page_can_be(
    words: list[str], text: str, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(source.parent)
    Path("folder.html").mkdir()
    assert main(["plan", "m.onnx", *words]) == 2
    assert capsys.readouterr() == ("", text)


def test_a_page_that_cannot_be_written_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    page = tmp_path / "r.html"
    assert main(["plan", str(source), "--tp", "2", "--report", str(page)]) == 2
    told = f"TP440 --report {page}: cannot be written ({os.strerror(28)}). Choose another place\n"
    assert capsys.readouterr() == ("", told)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
