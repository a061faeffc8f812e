"""What the command line shows: progress, the plan as a table, what a compile wrote."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tpcompile.api import Bundle
from tpcompile.bundle.manifest import TORCH
from tpcompile.plan.words import SPOKEN, bytes_text
from tpcompile.plan_report import SHOWN, print_cut, print_notes
from tpcompile.verify.inspect import engine_lines

if TYPE_CHECKING:
    pass


class Progress:
    """A progress bar on stderr for work over a second; silent where stderr is no terminal."""

    def __init__(self) -> None:
        self._live: Any = None
        self._started = time.monotonic()
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if not sys.stderr.isatty() or (self._live is None and time.monotonic() - self._started < 1):
            return
        if self._live is None:
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            self._live = Bars(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._live.start()
        line = what.partition(": ")[0]  # work that runs beside other work keeps its line: "engine of rank 1: parsing"
        if line not in self._tasks:
            self._tasks[line] = self._live.add_task(what, total=max(total, 1))
        self._live.update(self._tasks[line], description=what, completed=done, total=max(total, 1))


def print_bundle(bundle: Bundle) -> None:
    """What a compile wrote, on stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    manifest = bundle.manifest
    ranks = len(manifest.ranks)
    if bundle.summary is not None:
        print_cut(console, bundle.summary)
    calls = Counter(call.op for call in manifest.collectives)
    spoken = ", ".join(f"{count} {SPOKEN[op]}" for op, count in calls.most_common()) or "no collectives"
    console.print(f"[bold]{escape(str(bundle.folder))}[/]  {ranks} rank{'s' if ranks > 1 else ''}, {spoken}")
    for entry in manifest.ranks[:SHOWN]:
        files = " + ".join(f"{file.file} ({bytes_text(file.bytes)})" for file in entry.data)
        console.print(f"  rank {entry.rank}  {entry.model}" + (f"  {files}" if files else ""))
    if ranks > SHOWN:
        console.print(f"  … and {ranks - SHOWN} more")
    for line in engine_lines(manifest):
        console.print(escape(line))
    if bundle.report is not None:
        name, error, limit = max((trial.worst for trial in bundle.report.trials), key=lambda worst: worst[1] / worst[2])
        console.print(f"[green]verified[/]: largest relative error {error:.1e} ({escape(name)}), {limit:.1e} allowed")
    print_notes(console, bundle.warnings)
    place = shlex.quote(str(bundle.folder))
    command = f"tpcompile run {place} --inputs x.npz --outputs y.npz"
    if manifest.dialect == TORCH:
        command = f"torchrun --nproc-per-node {ranks} -m tpcompile.torch.run {place}"
    console.print(f"run it: {escape(command)}", soft_wrap=True)


def bundle_json(bundle: Bundle) -> dict[str, Any]:
    """What a compile wrote, for machines."""
    found: dict[str, Any] = {
        "folder": str(bundle.folder),
        "ranks": [
            {
                "rank": entry.rank,
                "model": entry.model,
                "bytes": sum(data.bytes for data in entry.data),
                "engines": [asdict(engine) for engine in entry.engines],
            }
            for entry in bundle.manifest.ranks
        ],
        "collectives": dict(Counter(call.op for call in bundle.manifest.collectives)),
        "notes": list(bundle.warnings),
    }
    if bundle.report is not None:
        found["verify"] = bundle.report.to_json()
    return found
