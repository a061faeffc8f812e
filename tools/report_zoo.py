#!/usr/bin/env python3
"""Print what acceptance.py found as a part of docs/checks.md: python tools/report_zoo.py RESULTS.json CORE.txt"""

from __future__ import annotations

import datetime
import json
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def part(results: list[Result], core: set[str]) -> str:
    """The part in Markdown: counts, then a line per graph with a cell per degree."""
    degrees = sorted({result["tp"] for result in results})
    found = {(result["graph"], result["tp"]): result for result in results}
    graphs = sorted({result["graph"] for result in results}, key=lambda graph: (graph not in core, graph))
    counts = Counter((result["graph"] in core, result["status"]) for result in results)
    packages = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnx-ir", "onnxruntime", "numpy", "scipy"))
    lines = [
        "## The zoo",
        "",
        "Each graph is compiled, and its ranks run in lockstep by an oracle that knows nothing of tpcompile, on the",
        "sample inputs, batch 1, other lengths and pasts, and ids over the whole vocabulary, every other one negative.",
        "",
        "A cell: relative error · collectives of one run · largest rank's part of the weights.",
        "",
        f"{datetime.date.today()}, {packages}.",
        "",
        "| | " + " | ".join(sorted({status for _, status in counts})) + " |",
        "|---|" + "---|" * len({status for _, status in counts}),
    ]
    for is_core, title in ((True, "graphs that must be ok (core.txt)"), (False, "all others")):
        cells = [str(counts[is_core, status]) for status in sorted({status for _, status in counts})]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines += ["", "| graph | " + " | ".join(f"tp {tp}" for tp in degrees) + " |", "|---|" + "---|" * len(degrees)]
    for graph in graphs:
        cells = [cell(found.get((graph, tp))) for tp in degrees]
        lines.append(f"| {graph}{'' if graph in core else ' *'} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "\\* not among the graphs that must be ok.", ""])


def cell(result: Result | None) -> str:
    """What one run of one graph gave."""
    if result is None:
        return ""
    if "error" not in result:
        reason = result.get("why", "").split(":")[0].split(" ")[0]
        return f"{result['status'].lower()} {reason}".strip()
    missed = "".join(f", {bar}" for bar in result["missed"])
    status = "" if result["status"] == "ok" else f"{result['status']} "
    return f"{status}{result['error']:.0e} · {result['collectives']} · {result['share']:.2f}{missed}"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    print(part(json.loads(Path(sys.argv[1]).read_text()), set(Path(sys.argv[2]).read_text().split())), end="")
