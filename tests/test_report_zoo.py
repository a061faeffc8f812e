"""The results of the long runs as a part of a page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = """# Before

<!-- random plans -->
old
<!-- end of random plans -->

<!-- the zoo -->
<!-- end of the zoo -->

After
"""
FOUND = {"status": "ok", "error": 2.3e-6, "collectives": 6, "share": 0.536, "missed": []}
RESULTS = [
    {"graph": "gpt__dynamo23", "tp": 2} | FOUND,
    {"graph": "gpt__dynamo23", "tp": 4} | FOUND | {"collectives": 9},
    {"graph": "gpt__genai__int4", "tp": 2, "status": "REFUSED", "why": "TP330 tensor x: …"},
    {"graph": "vit__legacy", "tp": 4} | FOUND | {"status": "WRONG", "error": 0.5},
]
BARS = {"gpt__dynamo23": {"collectives": {"2": 6, "4": 7}, "share": {"2": 0.54}}}


def reported(folder: Path, *more: str) -> str:
    zoo = folder / "zoo"
    zoo.mkdir(exist_ok=True)
    (zoo / "core.txt").write_text("gpt__dynamo23\n")
    (zoo / "expect.json").write_text(json.dumps(BARS))
    (folder / "results.json").write_text(json.dumps(RESULTS))
    (folder / "page.md").write_text(PAGE)
    command = [sys.executable, ROOT / "tools" / "report_zoo.py", folder / "results.json", "--zoo", zoo]
    subprocess.run([*command, "--into", folder / "page.md", *more], check=True, timeout=60)
    return (folder / "page.md").read_text(encoding="utf-8")


def test_results_of_some_graphs_with_their_bars(tmp_path: Path) -> None:
    page = reported(tmp_path)
    assert page.startswith("# Before") and page.endswith("<!-- end of the zoo -->\n\nAfter\n") and "\nold\n" in page
    assert re.search(r"^\d{4}-\d\d-\d\d, 3 graphs, 4 runs; onnx ", page, re.MULTILINE)
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert rows == [
        "| runs of | ok | beyond a bar | refused | wrong |",
        "|---|---|---|---|---|",
        "| graphs that must be ok and meet their bars | 1 | 1 | 0 | 0 |",
        "| all others | 0 | 0 | 1 | 1 |",
        "| ok / runs | dynamo | legacy | genai |",
        "|---|---|---|---|",
        "| gpt | 2 / 2 |  | 0 / 1 |",
        "| vit |  | 0 / 1 |  |",
        "| graph | tp 2 | tp 4 |",
        "|---|---|---|",
        "| gpt__dynamo23 | 2e-06 · 6 ≤ 6 · 0.54 ≤ 0.54 | 2e-06 · **9** > 7 · 0.54 |",
        "| gpt__genai__int4 * | refused TP330 |  |",
        "| vit__legacy * |  | **wrong** 5e-01 · 6 · 0.54 |",
    ]


def test_random_plans_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    (tmp_path / "fuzz.txt").write_text("gpt Draw(tp=2): {'sample': 0.1}\n\n9 plans at tp 2 on 3 graphs, 1 wrong, 7 s\n")
    page = reported(tmp_path, "--plans", str(tmp_path / "fuzz.txt"))
    part = page.partition("<!-- random plans -->\n")[2].partition("<!-- end of random plans -->")[0]
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d: 9 plans at tp 2 on 3 graphs, 1 wrong, 7 s\.\n\n- gpt Draw\(tp=2\): \{'sample': 0\.1\}\n",
        part,
    )
    assert "old" not in page and "gpt__dynamo23" in page
