"""What the command line shows: progress, the plan as a table, what a compile wrote."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tpcompile.api import Bundle
from tpcompile.passes.compilation import Compilation


class Progress:
    """A progress bar on stderr for work over a second; silent where stderr is no terminal."""

    def __init__(self) -> None:
        self._live: Any = None
        self._started = time.monotonic()
        self._task: tuple[str, Any] | None = None

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
        if self._task is None or self._task[0] != what:
            self._task = (what, self._live.add_task(what, total=max(total, 1)))
        self._live.update(self._task[1], completed=done, total=max(total, 1))


def print_plan(work: Compilation) -> None:
    print(plan_json(work))


def print_bundle(bundle: Bundle) -> None:
    print(f"{bundle.folder}: {len(bundle.manifest.ranks)} ranks, {len(bundle.manifest.collectives)} collectives a run")
    for warning in bundle.warnings:
        print(f"note: {warning}")


def plan_json(work: Compilation) -> dict[str, Any]:
    return {"groups": [vars(group) for group in work.plan.groups]}


def bundle_json(bundle: Bundle) -> dict[str, Any]:
    return {"folder": str(bundle.folder), "warnings": list(bundle.warnings)}
