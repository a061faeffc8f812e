"""The table of engines as a part of a page, made from results that are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx", reason="names its version: pip install 'tpcompile[rtx]'")

ROOT = Path(__file__).parent.parent
BUILT = {"ok": True, "layers": 500, "seconds": 2.04, "bytes": 4_200_000}
RANKS = BUILT | {"collectives": 6, "num_ranks": [2], "lowered": 0, "misfits": []}
CRASH = (
    "TP710 rank 0, node /q (RotaryEmbedding): the process that built it was ended by SIGFPE. This is a crash inside it"
)
RESULTS = {
    "gpt@0": BUILT, "gpt@2": RANKS, "gpt@4": RANKS | {"num_ranks": [2, 4]},
    "bert@0": {"ok": False, "why": "TP707 node a|b (Gelu): TensorRT does not take it: it has none. Export the model …"},
    "bert@2": RANKS, "bert@4": {"ok": False, "why": CRASH},
}  # fmt: skip


def test_a_summary_and_a_line_per_graph(tmp_path: Path) -> None:
    """Everything is there already, so nothing is built."""
    for graph in ("gpt", "bert"):
        (tmp_path / f"{graph}.onnx").write_bytes(b"")
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- engines of the zoo -->\nold\n<!-- end of engines of the zoo -->\nafter\n")
    words = [tmp_path, "--tp", "2", "4", "--results", tmp_path / "results.json", "--into", page]
    subprocess.run([sys.executable, ROOT / "tools" / "report_engines.py", *words], cwd=ROOT, check=True, timeout=60)
    written = page.read_text()
    assert written.startswith("before\n<!-- engines of the zoo -->\n") and written.endswith("after\n")
    assert "2 graphs; tensorrt_rtx " in written and "1 sources build as they are." in written
    assert "| 2 | 2 | 2 (100%) | 1 of 1 |\n| 4 | 2 | 1 (50%) | 1 of 1 |\n" in written
    assert (
        "| bert | TP707 node a/b (Gelu): it has none | 500 layers · 2.0 s · 4.2 MB · 6 over 2 | TP710 rank 0, node /q "
        "(RotaryEmbedding): the process that built it was ended by SIGFPE |\n"
    ) in written
    assert "| 500 layers · 2.0 s · 4.2 MB · 6 over 2, 4 |\n" in written
