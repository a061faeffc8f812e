"""The pages hold: links lead somewhere, each error code has its entry, what scripts write is what they wrote."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import onnx
import pytest

from tpcompile.dims import rules as _rules  # noqa: F401 - fills the table
from tpcompile.dims.registry import RULES

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_error_code_has_its_entry() -> None:
    """One heading each, in order: an anchor that others can point to; and no entry of a code that is gone."""
    sources = [path for folder in ("tpcompile", "passes") for path in (ROOT / folder).rglob("*.py")]
    told = r"""["'](TP\d{3})(?:["']| )"""
    raised = {code for path in sources for code in re.findall(told, path.read_text(encoding="utf-8"))}
    entries = re.split(
        r"^### (TP\d{3})$", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert entries[1::2] == sorted(raised)
    assert [code for code, text in zip(entries[1::2], entries[2::2], strict=True) if len(text.strip()) < 25] == []


def test_the_picture_is_what_its_script_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_layer.py"))["draw"]()
    assert drawn == (ROOT / "docs" / "layer.svg").read_text(encoding="utf-8")


def test_the_page_of_rules_is_what_its_script_writes() -> None:
    written = runpy.run_path(str(ROOT / "tools" / "write_rules_page"))["page"]()
    held = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert held == written, "rules or samples have changed: python tools/write_rules_page"


def test_the_textbook_case_is_what_is_planned() -> None:
    written = runpy.run_path(str(ROOT / "tools" / "write_llama_page"))["page"]()
    held = (ROOT / "docs" / "llama7b.md").read_text(encoding="utf-8")
    assert held == written, "plans or prices have changed: python tools/write_llama_page"
    for row in (
        "| q, k, v | [4096, 12288] | [4096, 6144] | [4096, 3072] | [4096, 1536] | columns | nothing |",
        "| attention output | [4096, 4096] | [2048, 4096] | [1024, 4096] | [512, 4096] | rows | AllReduce |",
        "| down | [11008, 4096] | [5504, 4096] | [2752, 4096] | [1376, 4096] | rows | AllReduce |",
    ):
        assert row in held


def test_every_fault_that_others_met_has_a_test_named_after_it() -> None:
    """`test_b13_…` in tests/faults, or a file of tests that the entry links to."""
    entries = re.findall(
        r"^\| ([A-L]\d+) \|(.*)$", (ROOT / "docs" / "faults.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "faults").glob("test_*.py"))
    named = {name.upper() for name in re.findall(r"def test_([a-l]\d+)_", tests)}
    linked = {name for name, said in entries if "](../tests/" in said and "](../tests/faults/" not in said}
    assert len(entries) > 50
    assert {name for name, _ in entries} == named | linked


def test_operators_without_a_rule_are_told_on_the_page_of_coverage() -> None:
    """All of ai.onnx, and no other: a newer onnx package may bring some that have neither."""
    every = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain and not schema.deprecated}
    page = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    table = page.partition("These operators of ai.onnx have no rule:")[2].partition("\n\nAnd these")[0]
    cells = [line.split("|")[2] for line in table.strip().splitlines()[2:]]
    told = {name for cell in cells for name in re.findall(r"\b[A-Z]\w+", re.sub(r"\(.*?\)", "", cell))}
    assert told == every - {op for domain, op in RULES if not domain}
