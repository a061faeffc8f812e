"""The pages hold: links lead somewhere, each error code has its entry, the picture is what its script draws."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_error_code_has_its_entry() -> None:
    sources = [path for folder in ("tpcompile", "passes") for path in (ROOT / folder).rglob("*.py")]
    raised = {code for path in sources for code in re.findall(r'"(TP[1-7]\d\d)"', path.read_text(encoding="utf-8"))}
    written = set(re.findall(r"TP[1-7]\d\d", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")))
    assert sorted(raised ^ written) == []


def test_the_picture_is_what_its_script_draws() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_layer.py"))["draw"]()
    assert drawn == (ROOT / "docs" / "layer.svg").read_text(encoding="utf-8")
