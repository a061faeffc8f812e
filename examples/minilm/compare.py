#!/usr/bin/env python3
"""Show what one device and all ranks say of the same sentences: python compare.py FOLDER BUNDLE

FOLDER holds minilm.onnx, inputs.npz and outputs.npz (what the ranks gave). Ends with 3 where the numbers differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from make_inputs import SENTENCES
from rich.console import Console
from rich.table import Table

LIMIT = 1e-5
"""Relative: the largest difference over the largest value."""

console = Console(highlight=False)


def compare(folder: Path, bundle: Path) -> float:
    """Print both sides and what each rank holds; return the relative difference of the embeddings."""
    session = onnxruntime.InferenceSession(folder / "minilm.onnx", providers=["CPUExecutionProvider"])
    inputs = dict(np.load(folder / "inputs.npz"))
    (one,) = session.run(["sentence_embedding"], inputs)
    many = np.load(folder / "outputs.npz")["sentence_embedding"]
    manifest = json.loads((bundle / "bundle.json").read_text())
    ranks = len(manifest["ranks"])

    for number, sentence in enumerate(SENTENCES, start=1):
        console.print(f"  {number}  {sentence}")
    sides = Table.grid(padding=(0, 3))
    sides.add_row(similarities("one device (onnxruntime)", one), similarities(f"{ranks} ranks (tprun under MPI)", many))
    console.print(sides)
    difference = float(np.abs(one - many).max())
    relative = difference / float(np.abs(one).max())
    console.print(
        f"  largest difference of any of the {one.size} numbers: {difference:.1e} (relative {relative:.1e})\n"
    )
    console.print(holdings(manifest))
    kinds = [collective["op"] for collective in manifest["collectives"]]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    console.print(f"  collectives of one run: {counts}\n")
    console.print(f"  the plan, to read and to edit   {bundle / manifest['plan']}")
    console.print(f"  the same as a page, to look at  {bundle / 'report.html'}")
    console.print(f"  what other tools read           {bundle / 'bundle.json'}")
    console.print(f"  one graph per rank              {bundle / manifest['ranks'][0]['model']} …")
    console.print(f"  the model it came from          {folder / 'minilm.onnx'}")
    return relative


def similarities(title: str, embeddings: npt.NDArray[Any]) -> Table:
    """The cosine of each pair of sentences; the nearest other sentence of each row stands out."""
    cosines = embeddings @ embeddings.T
    table = Table(title=title, box=None, padding=(0, 0, 0, 1), title_justify="left", title_style="bold")
    table.add_column("", style="dim")
    for number in range(1, len(cosines) + 1):
        table.add_column(str(number), justify="right", min_width=len("-0.00"))
    for number, row in enumerate(cosines):
        nearest = max((k for k in range(len(row)) if k != number), key=lambda k: float(row[k]))
        cells = [f"[bold green]{cosine:.2f}[/]" if k == nearest else f"{cosine:.2f}" for k, cosine in enumerate(row)]
        table.add_row(str(number + 1), *cells)
    return table


def holdings(manifest: dict[str, Any]) -> Table:
    """What each rank holds: its own part of the weights, and the whole ones that lie on disk once for all."""
    source = manifest["source"]["bytes"]
    table = Table(title="what each rank holds", box=None, padding=(0, 2), title_justify="left", title_style="bold")
    for header in ("rank", "of its own", "whole, shared", "of the model"):
        table.add_column(header, justify="right")
    for rank in manifest["ranks"]:
        sizes = {entry["file"]: entry["bytes"] for entry in rank["data"]}
        shared = sizes.pop("shared.bin", 0)
        own = sum(sizes.values())
        spelled = [f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB" for size in (own, shared)]
        table.add_row(str(rank["rank"]), *spelled, f"{(own + shared) / source:.0%}")
    return table


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    if compare(Path(sys.argv[1]), Path(sys.argv[2])) > LIMIT:
        console.print(f"[bold red]The numbers differ by more than {LIMIT:g}.[/]")
        raise SystemExit(3)
