"""What the command line shows: progress, the plan as a table, what a compile wrote."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tpcompile.api import Bundle
from tpcompile.plan.explain import bytes_text
from tpcompile.plan.plan import PlannedGroup
from tpcompile.verify.inspect import engine_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


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


SHOWN = 12
SPOKEN = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
}


def print_bundle(bundle: Bundle) -> None:
    """What a compile wrote, on stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    manifest, plan = bundle.manifest, bundle.plan
    ranks = len(manifest.ranks)
    if plan is not None and plan.cuts_something:
        print_groups(console, [group for group in plan.groups if group.axes])
        console.print()
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
    command = f"tpcompile run {shlex.quote(str(bundle.folder))} --inputs x.npz --outputs y.npz"
    console.print(f"run it: {escape(command)}", soft_wrap=True)


def print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes[:SHOWN]:
        console.print(f"[yellow]note[/]: {escape(note)}")
    if len(notes) > SHOWN:
        console.print(f"[yellow]note[/]: and {len(notes) - SHOWN} more")


def print_groups(console: Console, groups: Sequence[PlannedGroup]) -> None:
    shown = table("cut", "size", "parts", "saves a rank", "causes")
    for group in groups:
        causes = [
            f"{count} {name}"
            for count, name in ((group.all_reduces, "AllReduce"), (group.all_gathers, "AllGather"))
            if count
        ]
        shown.add_row(
            name_of(group, console.width - 64),
            str(group.size),
            _parts(group),
            bytes_text(group.saved_bytes),
            ", ".join(causes) or "nothing",
        )
    console.print(shown)


def name_of(group: PlannedGroup, width: int) -> str:
    times = f"  ×{group.count}" if group.count > 1 else ""
    return escape(shortened(group.name, width - len(times))) + times


def shortened(text: str, width: int) -> str:
    """The text in `width` columns, without its beginning where it is longer: names differ at their end."""
    return text if len(text) <= width else f"…{text[len(text) - max(width - 1, 1) :]}"


def _parts(group: PlannedGroup) -> str:
    """ "4 × 128", or the sizes where they differ: "4, 4, 3, 3"."""
    if len(set(group.blocks)) == 1:
        return f"{group.degree} × {group.blocks[0]}"
    if len(group.blocks) <= 4 and group.blocks[0] < 100:
        return ", ".join(map(str, group.blocks))
    return f"{group.degree} × {group.blocks[-1]} or {group.blocks[0]}"


def table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="left" if position in (0, len(columns) - 1) else "right")
    return table


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
