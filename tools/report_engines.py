#!/usr/bin/env python3
"""Build engines of a whole zoo, and write into a page what came of it.

    python tools/report_engines.py ZOO --tp 2 4 [--only 'llama*'] [--again] [--results build/engines.json]
                                   [--into docs/tensorrt.md]

ZOO is a folder of complete models (fill.py of the zoo makes them). Each is compiled for each degree, and an engine is
built for every rank, in processes of their own; the source is built as it is, too. What was built before stands in the
results and is not built again, unless it failed and --again is given. Without --into the part of the page is printed.
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from report_zoo import replaced

from tpcompile import api
from tpcompile.errors import TpcompileError
from tpcompile.targets.engines import BuildRequest, build_engines
from tpcompile.targets.profiles import Wishes
from tpcompile.targets.rank_builds import Made
from tpcompile.targets.tensorrt import LIBRARIES

Result = dict[str, Any]
OPTION = LIBRARIES[0].option
TIMEOUT_S = 120
SHOWN = 160
"""Characters of a reason in a table's cell."""
PART = "engines of the zoo"


def main() -> int:
    """Build what is missing, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zoo", type=Path)
    parser.add_argument("--tp", type=int, nargs="+", default=[2])
    parser.add_argument("--only", default="*")
    parser.add_argument("--again", action="store_true", help="build again what failed")
    parser.add_argument("--results", type=Path, default=Path("build/engines.json"))
    parser.add_argument("--into", type=Path)
    parser.add_argument("--source", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.source:
        print(json.dumps(source_result(options.zoo)))
        return 0
    results: dict[str, Result] = json.loads(options.results.read_text()) if options.results.exists() else {}
    graphs = sorted(path.stem for path in options.zoo.glob("*.onnx") if fnmatch.fnmatch(path.stem, options.only))

    def missing(tp: int) -> list[str]:
        known = {graph: results.get(f"{graph}@{tp}") for graph in graphs}
        return [graph for graph, found in known.items() if found is None or (options.again and not found["ok"])]

    def keep(graph: str, tp: int, result: Result) -> None:
        results[f"{graph}@{tp}"] = result
        print(f"{graph} tp {tp or 'none'}: {cell(result)}", flush=True)
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(results, indent=0))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [(graph, pool.submit(build_source, options.zoo / f"{graph}.onnx")) for graph in missing(0)]
        for graph, done in waiting:
            keep(graph, 0, done.result())
    for tp in options.tp:
        for graph in missing(tp):
            keep(graph, tp, build_ranks(options.zoo / f"{graph}.onnx", tp))
    text = "\n".join(part(results, options.tp))
    if options.into is None:
        print(text)
    else:
        page = options.into.read_text(encoding="utf-8")
        options.into.write_text(replaced(page, PART, text), encoding="utf-8")
    return 0


def build_ranks(model: Path, tp: int) -> Result:
    """Compile a model and build the engines of its ranks, in a folder that does not stay."""
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="engines-"))
    try:
        bundle = api.compile(model, tp, folder / "bundle")
        request = BuildRequest(LIBRARIES[0], Wishes({}), timeout_s=TIMEOUT_S)
        made = build_engines(bundle.folder, bundle.manifest, request).made
        return result_of(made) | {"seconds": round(time.monotonic() - started, 1)}
    except TpcompileError as error:
        return {"ok": False, "why": str(error).splitlines()[0]}
    finally:
        shutil.rmtree(folder)


def result_of(made: tuple[Made, ...]) -> Result:
    """What the table shows of engines that were built."""
    first = made[0]
    return {
        "ok": True,
        "layers": first.layers,
        "bytes": max(rank.entry.bytes for rank in made),
        "collectives": first.entry.collectives,
        "num_ranks": list(first.num_ranks),
        "lowered": sum(first.lowered.values()),
        "misfits": list(first.misfits),
    }


def build_source(model: Path) -> Result:
    """Build the engine of a model as it is, in a process of its own."""
    command = [sys.executable, __file__, str(model), "--source"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"ok": False, "why": f"took more than {TIMEOUT_S} s"}
    if done.returncode or not done.stdout.strip():
        return {"ok": False, "why": f"the process ended with code {done.returncode}"}
    found: Result = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def source_result(model: Path) -> Result:
    """Parse and build a model as it is, for shapes that go together; nothing is lowered."""
    import tensorrt_rtx as trt

    from tpcompile.targets.known_sizes import settle_sizes
    from tpcompile.targets.network import Network, Said, listen
    from tpcompile.targets.profiles import candidates
    from tpcompile.verify.files import open_source

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        manifest = api.compile(model, 1, Path(folder) / "whole").manifest
    file = open_source(model)
    settle_sizes(file)  # of our copy, for profiles; the library reads the file
    said = Said()
    try:
        network = Network(trt, listen(trt, said, lambda name, operator: None), said, model.absolute(), {})
        built = network.build(candidates(file, manifest, 0, Wishes({})))
    except TpcompileError as error:
        return {"ok": False, "why": str(error).splitlines()[0]}
    seconds = round(time.monotonic() - started, 1)
    return {"ok": True, "layers": network.layers, "bytes": built.engine.nbytes, "seconds": seconds}


def part(results: dict[str, Result], degrees: list[int]) -> Iterator[str]:
    """A summary per degree, and a line per graph with a cell per degree."""
    graphs = sorted({key.partition("@")[0] for key in results})
    found = {tp: {graph: results.get(f"{graph}@{tp}") for graph in graphs} for tp in (0, *degrees)}
    plain = {graph for graph, result in found[0].items() if result and result["ok"]}
    yield (
        f"{datetime.date.today()}, {len(graphs)} graphs; {library_version()}, for compute capability "
        f"{LIBRARIES[0].capabilities}. {len(plain)} sources build as they are."
    )
    yield ""
    yield "| degree | graphs | engines of all ranks | of those whose source builds |"
    yield "|---|---|---|---|"
    for tp in degrees:
        built = {graph for graph, result in found[tp].items() if result and result["ok"]}
        tried = {graph for graph, result in found[tp].items() if result}
        both = f"{len(built & plain)} of {len(tried & plain)}"
        yield f"| {tp} | {len(tried)} | {len(built)} ({len(built) / max(len(tried), 1):.0%}) | {both} |"
    yield ""
    yield (
        "A cell tells layers of the parsed network of rank 0, seconds for compiling and for the engines of all ranks, "
        "bytes of the largest engine, collective layers and over how many ranks they go; or why there is no engine."
    )
    yield ""
    yield "<details><summary>Every graph</summary>"
    yield ""
    yield "| graph | source | " + " | ".join(f"tp {tp}" for tp in degrees) + " |"
    yield "|---|" + "---|" * (len(degrees) + 1)
    for graph in graphs:
        cells = [cell(found[tp][graph]) for tp in (0, *degrees)]
        yield f"| {graph} | " + " | ".join(cells) + " |"
    yield ""
    yield "</details>"


def library_version() -> str:
    """The library and its version."""
    import tensorrt_rtx as trt

    return f"{trt.__name__} {trt.__version__}"


def cell(result: Result | None) -> str:
    """What came of one graph at one degree."""
    if result is None:
        return ""
    if not result["ok"]:
        return shortened(result["why"])
    told = [f"{result['layers']} layers", f"{result['seconds']:.1f} s", f"{result['bytes'] / 1e6:.1f} MB"]
    if result.get("collectives"):
        told.append(f"{result['collectives']} over {', '.join(map(str, result['num_ranks']))}")
    return " · ".join(told)


def shortened(why: str) -> str:
    """A reason in a table's cell: its code, the operator, the beginning of what was said."""
    text = (
        why.replace("|", "/")
        .replace("<", "‹")
        .replace(">", "›")
        .replace("TensorRT does not take it: ", "")
        .replace("TensorRT builds no engine: ", "")
    )
    text = text.partition(". Export the model")[0].partition(". This is a crash")[0]
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


if __name__ == "__main__":
    raise SystemExit(main())
