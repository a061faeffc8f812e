"""A plan in the terminal and as JSON; both show `PlanSummary`, as report.html does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tpcompile.passes.compilation import Compilation
from tpcompile.plan.estimate import Estimate, stops_paying
from tpcompile.plan.step_time import StepTime
from tpcompile.plan.summary import PlanSummary
from tpcompile.plan.words import bytes_text, calls_text, parts_text, time_text
from tpcompile.plan_summary import estimate_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SHOWN = 12
"""Rows of a table that are shown; how many more there are is said."""


def print_plan(told: PlanSummary) -> None:
    """The plan on stdout: totals, what is cut, what stays whole and why, what would be cheaper."""
    from rich.console import Console

    console = Console(highlight=False)
    ranks = "1 rank" if told.tp == 1 else f"{told.tp} ranks"
    console.print(f"[bold]{escape(told.source)}[/] on {ranks}\n")
    _print_totals(console, told)
    print_cut(console, told)
    if told.whole:
        shown = table("dimension left whole", "size", "why")
        for whole in told.whole[:SHOWN]:
            name = name_of(whole.name, whole.count, 32)
            shown.add_row(name, str(whole.size), _with_remedy(whole.reason, whole.remedy))
        _print_table(console, shown, len(told.whole))
    reasons = told.whole_weights
    if reasons and told.tp > 1:
        shown = table("weights whole on every rank", "", "why")
        for found in reasons[:SHOWN]:
            more = f" and {len(found.names) - 1} more" if len(found.names) > 1 else ""
            name = escape(shortened(found.names[0], 30)) + more
            shown.add_row(name, bytes_text(found.nbytes), _with_remedy(found.reason, found.remedy))
        _print_table(console, shown, len(reasons))
    for line in (*told.advice, *told.cheaper_places[:SHOWN]):
        console.print(f"[cyan]advice[/]: {escape(line)}")
    print_notes(console, told.notes)


def _with_remedy(reason: str, remedy: str) -> str:
    return escape(reason) + (f"\n[dim]→ {escape(remedy)}[/]" if remedy else "")


def _print_table(console: Console, shown: Table, rows: int) -> None:
    console.print(shown)
    if rows > SHOWN:
        console.print(f"… and {rows - SHOWN} smaller ones")
    console.print()


def print_cut(console: Console, told: PlanSummary) -> None:
    """What is cut: how, into which parts, what that saves and which collectives it causes."""
    rows, names = [], [(found.name, found.count) for found in told.cut]
    for found in told.cut:
        calls = calls_text(found.collectives) if found.collectives else ""
        saves = f"{bytes_text(found.saved_bytes)}, {time_text(found.saved_us)}"
        causes = f"{calls}, {time_text(found.collectives_us)}" if calls else "nothing"
        rows.append((found.how, parts_text(found.blocks), saves, causes))
    stored = [row for row in told.weights if row.how == "gathered"]
    if stored:
        saved = sum(row.nbytes - max(row.rank_bytes) for row in stored)
        us = sum(row.us for row in told.collectives if not row.dimensions)
        names.append(("weights gathered before use", 1))
        rows.append(("gather", str(told.tp), bytes_text(saved), f"{len(stored)} AllGather, {time_text(us)}"))
    if not rows:
        return
    heads = ("as", "parts", "saves a rank", "causes")
    taken = sum(max(map(len, column)) + 2 for column in zip(heads, *rows, strict=True))
    shown = table("cut", *heads)
    for (name, count), row in zip(names, rows, strict=True):
        shown.add_row(name_of(name, count, console.width - taken), *row)
    console.print(shown)
    console.print()


def name_of(name: str, count: int, width: int) -> str:
    """A dimension's name in `width` columns, with how many layers share it."""
    times = f"  ×{count}" if count > 1 else ""
    return escape(shortened(name, max(width, 16) - len(times))) + times


def shortened(text: str, width: int) -> str:
    """The text in `width` columns, without its beginning where it is longer: names differ at their end."""
    return text if len(text) <= width else f"…{text[len(text) - max(width - 1, 1) :]}"


def table(*columns: str) -> Table:
    """A table without lines: texts left, numbers right."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for position, column in enumerate(columns):
        left = position in (0, len(columns) - 1) or column == "as"
        made.add_column(column, overflow="fold", justify="left" if left else "right")
    return made


def print_notes(console: Console, notes: Sequence[str]) -> None:
    """What was worth telling on the way."""
    for note in notes[:SHOWN]:
        console.print(f"[yellow]note[/]: {escape(note)}")
    if len(notes) > SHOWN:
        console.print(f"[yellow]note[/]: and {len(notes) - SHOWN} more")


def _print_totals(console: Console, told: PlanSummary) -> None:
    """What the fullest rank holds, what is sent, and how long a step takes, beside one device."""
    found, shown = told.estimate, table("", "a rank", "one device", "")
    rows = (
        ("weights", found.rank.weights, found.whole.weights),
        ("caches", found.rank.caches, found.whole.caches),
        ("activations at their peak", found.rank.activations, found.whole.activations),
    )
    for name, mine, whole in rows:
        if whole:
            shown.add_row(name, bytes_text(mine), bytes_text(whole), f"{mine / whole:.0%}")
    room = bytes_text(found.topology.device.memory_bytes)
    fits = f"of {room}" if found.fits else f"[red]more than the {room} of a {escape(found.topology.device.name)}[/]"
    shown.add_row("memory", bytes_text(found.rank.total), bytes_text(found.whole.total), fits)
    console.print(shown)
    step = found.step
    if any(found.collectives.values()):
        per_token = f"{bytes_text(step.sent_bytes / max(found.tokens, 1))} of results a token"
        console.print(f"\n{calls_text(found.collectives)} a step, {per_token}")
        calls, nbytes = told.a_layer
        if calls:
            console.print(f"{calls_text(calls)} a layer, {bytes_text(nbytes / max(found.tokens, 1))} a token")
    sizes = ", ".join(f"{name} {size}" for name, size in found.sizes.items())
    console.print(
        f"{escape(found.topology.title)}{f', at {escape(sizes)}' if sizes else ''}: a step takes about "
        f"[bold]{time_text(step.total)}[/] = memory {time_text(step.memory)} + compute {time_text(step.compute)} "
        f"+ starts {time_text(step.starts)} + communication {time_text(step.communication)} "
        f"({step.communication_share:.0%})"
    )
    if found.tp > 1:
        console.print(f"one device: {time_text(found.alone.total)}, so {found.speedup:.1f} times as fast")
        console.print()
    else:
        console.print()


def print_comparison(works: Sequence[Compilation]) -> None:
    """Degrees side by side: memory, communication, speed, and where more ranks stop paying."""
    from rich.console import Console

    console = Console(highlight=False)
    estimates = [estimate_of(work) for work in works]
    first = estimates[0]
    sizes = ", ".join(f"{name} {size}" for name, size in first.sizes.items())
    console.print(f"[bold]{escape(works[0].source.file)}[/] on {escape(first.topology.title)}, at {escape(sizes)}\n")
    columns = ("ranks", "weights", "caches", "memory", "fits", "a step", "sending", "faster", "cut")
    shown = table(*columns)
    for found in estimates:
        shown.add_row(
            str(found.tp), bytes_text(found.rank.weights), bytes_text(found.rank.caches), bytes_text(found.rank.total),
            "yes" if found.fits else "[red]no[/]", time_text(found.step.total), f"{found.step.communication_share:.0%}",
            f"{found.speedup:.1f}×", "whole" if not found.cuts else found.split,
        )  # fmt: skip
    console.print(shown)
    end = stops_paying(estimates)
    if end:
        console.print(f"\n{end}")
    beyond = [found.tp for found in estimates if found.tp > first.topology.ranks]
    if beyond:
        console.print(f"{first.topology.ranks} ranks are all that this machine has; beyond, its outermost links repeat")


def plan_json(told: PlanSummary, work: Compilation) -> dict[str, Any]:
    """The plan for machines. A step's nodes are left out: they are as many as the model's."""
    shown = {
        "source": {"file": told.source, "bytes": told.source_bytes},
        "tp": told.tp,
        "objective": told.objective,
        "recipe": told.recipe,
        "layers": told.layers,
        "weights": {
            "source_bytes": sum(row.nbytes for row in told.weights),
            "rank_bytes": [rank.weights for rank in told.ranks],
        },
        "collectives": dict(told.estimate.collectives),
        "estimate": _estimate_json(told.estimate),
        "dimensions": [*map(_rounded, told.cut)],
        "whole_dimensions": [*map(_rounded, told.whole)],
        "whole_weights": [asdict(found) for found in told.whole_weights],
        "sent": [*map(_rounded, told.collectives)],
        "advice": list(told.advice),
        "state": [
            {"input": pair.input.name, "output": pair.output.name, "axis": pair.axis, "kind": pair.kind}
            for pair in work.state
        ],
        "roles": work.roles,
        "notes": list(told.notes),
    }
    return shown


def _rounded(row: Any) -> dict[str, Any]:
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(row).items()}


def _estimate_json(found: Estimate) -> dict[str, Any]:
    def step(time: StepTime) -> dict[str, float]:
        return {name: round(value, 2) for name, value in asdict(time).items()} | {"total": round(time.total, 2)}

    return {
        "topology": found.topology.name,
        "sizes": dict(found.sizes),
        "rank_bytes": {name: round(value) for name, value in asdict(found.rank).items()},
        "one_device_bytes": {name: round(value) for name, value in asdict(found.whole).items()},
        "fits": found.fits,
        "step_us": step(found.step),
        "one_device_us": step(found.alone),
        "tokens": found.tokens,
        "speedup": round(found.speedup, 3),
        "split": found.split,
    }
