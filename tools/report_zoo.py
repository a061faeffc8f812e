#!/usr/bin/env python3
"""Write what the long runs found into a page: the parts between `<!-- NAME -->` and `<!-- end of NAME -->`.

    python tools/report_zoo.py RESULTS.json --into docs/coverage.md [--zoo ../shared/zoo] [--plans build/fuzz.txt]

RESULTS.json is what acceptance.py --json wrote, for all graphs or some; core.txt (graphs that must be ok) and
expect.json (bars) are read from the zoo's folder where they are. --plans takes the output of fuzz_plans. Without --into
the parts are printed.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

Result = dict[str, Any]
EXPORTERS = ("dynamo", "legacy", "hf", "optimum", "genai", "ortopt")
"""How exporters' names begin; what follows is a variant of one."""


def main() -> int:
    """Write or print the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--into", type=Path)
    parser.add_argument("--zoo", type=Path, default=Path(__file__).parent.parent.parent / "shared" / "zoo")
    parser.add_argument("--plans", type=Path)
    options = parser.parse_args()
    core, bars = options.zoo / "core.txt", options.zoo / "expect.json"
    parts = {
        "the zoo": zoo_part(
            json.loads(options.results.read_text()),
            set(core.read_text().split()) if core.exists() else set(),
            json.loads(bars.read_text()) if bars.exists() else {},
        )
    }
    if options.plans:
        parts["random plans"] = plans_part(options.plans.read_text())
    page = options.into.read_text(encoding="utf-8") if options.into else None
    for name, text in parts.items():
        if page is None:
            print(text)
        else:
            page = replaced(page, name, text)
    if options.into and page is not None:
        options.into.write_text(page, encoding="utf-8")
    return 0


def replaced(page: str, name: str, text: str) -> str:
    """The page with another text between the marks of a part."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the page has no part between '{start.strip()}' and '{end}'")
    return f"{before}{start}{text.strip()}\n{end}{after}"


def plans_part(output: str) -> str:
    """What fuzz_plans said in the end, and what it found."""
    lines = [line for line in output.strip().splitlines() if line]
    found = "".join(f"\n- {line}" for line in lines[:-1])
    return f"{datetime.date.today()}: {lines[-1]}." + (f"\n{found}" if found else "")


def zoo_part(results: list[Result], core: set[str], bars: dict[str, Any]) -> str:
    """Counts, a table of families and exporters, and a line per graph with a cell per degree."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("onnx", "onnx-ir", "onnxruntime", "numpy", "scipy"))
    graphs = sorted({result["graph"] for result in results})
    lines = [f"{datetime.date.today()}, {len(graphs)} graphs, {len(results)} runs; {packages}.", ""]
    return "\n".join([*lines, *counted(results, core, bars), "", *matrix(results), "", *table(results, core, bars)])


def counted(results: list[Result], core: set[str], bars: dict[str, Any]) -> list[str]:
    """How many runs were what, and how many missed a bar."""
    counts = Counter((result["graph"] in core, outcome(result, bars)) for result in results)
    outcomes = sorted({found for _, found in counts}, key=lambda found: (found != "ok", found))
    lines = ["| runs of | " + " | ".join(outcomes) + " |", "|---|" + "---|" * len(outcomes)]
    for is_core, title in ((True, "graphs that must be ok and meet their bars"), (False, "all others")):
        if any(counts[is_core, found] for found in outcomes):
            lines.append(f"| {title} | " + " | ".join(str(counts[is_core, found]) for found in outcomes) + " |")
    return lines


def outcome(result: Result, bars: dict[str, Any]) -> str:
    """ok, ok beyond a bar, or what went wrong."""
    if result["status"] != "ok":
        return str(result["status"]).lower()
    return "beyond a bar" if any(beyond(result, bars, key) for key in ("collectives", "share")) else "ok"


def bar_of(result: Result, bars: dict[str, Any], key: str) -> float | None:
    """The most that a run may take of something, None where nothing is said."""
    bar: float | None = bars.get(result["graph"], {}).get(key, {}).get(str(result["tp"]))
    return bar


def beyond(result: Result, bars: dict[str, Any], key: str) -> bool:
    """Whether a run misses a bar."""
    bar = bar_of(result, bars, key)
    return bar is not None and result[key] > bar


def matrix(results: list[Result]) -> list[str]:
    """Runs that are ok of all runs, by family and exporter."""
    ok: Counter[tuple[str, str]] = Counter()
    every: Counter[tuple[str, str]] = Counter()
    for result in results:
        family, exporter, *_ = result["graph"].split("__")
        kind = next((name for name in EXPORTERS if exporter.startswith(name)), exporter)
        every[family, kind] += 1
        ok[family, kind] += result["status"] == "ok"
    kinds = [name for name in EXPORTERS if any(kind == name for _, kind in every)]
    kinds += sorted({kind for _, kind in every} - set(kinds))
    lines = ["| ok / runs | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    for family in sorted({family for family, _ in every}):
        cells = [f"{ok[family, kind]} / {every[family, kind]}" if every[family, kind] else "" for kind in kinds]
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    return lines


def table(results: list[Result], core: set[str], bars: dict[str, Any]) -> list[str]:
    """A line per graph, folded away."""
    degrees = sorted({result["tp"] for result in results})
    found = {(result["graph"], result["tp"]): result for result in results}
    graphs = sorted({result["graph"] for result in results}, key=lambda graph: (graph not in core, graph))
    lines = ["<details><summary>Every graph</summary>", ""]
    lines += ["| graph | " + " | ".join(f"tp {tp}" for tp in degrees) + " |", "|---|" + "---|" * len(degrees)]
    for graph in graphs:
        cells = [cell(found.get((graph, tp)), bars) for tp in degrees]
        lines.append(f"| {graph}{'' if graph in core else ' *'} | " + " | ".join(cells) + " |")
    return [*lines, "", "\\* not among the graphs that must be ok.", "", "</details>"]


def cell(result: Result | None, bars: dict[str, Any]) -> str:
    """What one run of one graph gave, each number with its bar."""
    if result is None:
        return ""
    if "error" not in result:
        reason = result.get("why", "").split(":")[0].split(" ")[0]
        return f"{result['status'].lower()} {reason}".strip()
    told = [f"{result['error']:.0e}"]
    for key, text in (("collectives", f"{result['collectives']}"), ("share", f"{result['share']:.2f}")):
        bar = bar_of(result, bars, key)
        told.append(text if bar is None else f"**{text}** > {bar}" if beyond(result, bars, key) else f"{text} ≤ {bar}")
    return ("" if result["status"] == "ok" else f"**{result['status'].lower()}** ") + " · ".join(told)


if __name__ == "__main__":
    raise SystemExit(main())
