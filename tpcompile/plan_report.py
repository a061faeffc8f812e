"""What a plan comes to, for people and for machines: what ranks hold, what is sent, how long a step takes, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tpcompile.passes.choose_plan import nominal_sizes, symbol_values
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.collectives import counted
from tpcompile.plan.estimate import Estimate, estimate, stops_paying
from tpcompile.plan.explain import Holding, bytes_text, holding
from tpcompile.plan.step_time import StepTime
from tpcompile.report import SHOWN, SPOKEN, name_of, print_groups, print_notes, shortened, table

if TYPE_CHECKING:
    from rich.console import Console


def holding_of(work: Compilation) -> Holding:
    """What each rank holds of the weights under a plan."""
    return holding(work.analysis, work.problem, work.plan.cut)


def estimate_of(work: Compilation, held: Holding | None = None) -> Estimate:
    """What a plan comes to on its request's topology, at its request's sizes; `held` where it is known already."""
    values = symbol_values(work)
    held = held or holding_of(work)
    tokens = next((value for value in work.program.inputs if value.name == work.roles.get("tokens")), None)
    nominal = nominal_sizes(work)
    count = math.prod(nominal(sizes) for sizes in tokens.sizes or ()) if tokens is not None else 1
    shown = {symbol: values[symbol] for symbol in values if not symbol.startswith("#")}
    return estimate(work.analysis, work.problem, work.plan, held, work.topology, nominal, shown, count)


def print_plan(work: Compilation) -> None:
    """The plan on stdout: totals, what is cut, what stays whole and why."""
    from rich.console import Console

    console = Console(highlight=False)
    held, plan = holding_of(work), work.plan
    found = estimate_of(work, held)
    console.print(f"[bold]{escape(work.source.file)}[/] on {plan.mesh.tp} ranks\n")
    _print_totals(console, found)
    if plan.cuts_something:
        print_groups(console, [group for group in plan.groups if group.axes])
        console.print()
    left = [group for group in plan.groups if not group.axes and group.stored_bytes]
    if left:
        shown = table("dimension left whole", "size", "why")
        for group in left[:SHOWN]:
            shown.add_row(name_of(group, 32), str(group.size), escape(group.reason))
        console.print(shown)
        if len(left) > SHOWN:
            console.print(f"… and {len(left) - SHOWN} smaller ones")
        console.print()
    if held.whole:
        shown = table("weights whole on every rank", "", "why")
        for whole in held.whole[:SHOWN]:
            more = f" and {len(whole.names) - 1} more" if len(whole.names) > 1 else ""
            shown.add_row(escape(shortened(whole.names[0], 30)) + more, bytes_text(whole.nbytes), escape(whole.reason))
        console.print(shown)
    print_notes(console, work.warnings)


def _print_totals(console: Console, found: Estimate) -> None:
    """What the fullest rank holds, what is sent, and how long a step takes, beside one device."""
    shown = table("", "a rank", "one device", "")
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
    step, counts = found.step, {op: count for op, count in found.collectives.items() if count}
    if counts:
        calls = " and ".join(f"{count} {SPOKEN[op]}" for op, count in counts.items())
        a_layer = ""
        if found.layers > 1 and counts.get("all_reduce", 0) >= found.layers:
            a_layer = f", {counts['all_reduce'] // found.layers} AllReduce a layer"
        console.print(f"\n{calls} a step{a_layer}; {bytes_text(step.sent_bytes / found.tokens)} of results a token")
    sizes = ", ".join(f"{name} {size}" for name, size in found.sizes.items())
    console.print(
        f"{escape(found.topology.title)}{f', at {escape(sizes)}' if sizes else ''}: a step takes about "
        f"[bold]{time_text(step.total)}[/] = memory {time_text(step.memory)} + compute {time_text(step.compute)} "
        f"+ starts {time_text(step.starts)} + communication {time_text(step.communication)} "
        f"({step.communication_share:.0%})"
    )
    if found.tp > 1:
        console.print(f"one device: {time_text(found.alone.total)}, so {found.speedup:.1f} times as fast")
        if found.speedup < 1 and found.cuts:
            console.print("too small to gain from these ranks: --objective latency would leave it whole")
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
    columns = ("ranks", "weights", "caches", "memory", "fits", "a step", "communication", "times as fast", "cut")
    shown = table(*columns)
    for found in estimates:
        shown.add_row(
            str(found.tp), bytes_text(found.rank.weights), bytes_text(found.rank.caches), bytes_text(found.rank.total),
            "yes" if found.fits else "[red]no[/]", time_text(found.step.total), f"{found.step.communication_share:.0%}",
            f"{found.speedup:.1f}", "whole" if not found.cuts else found.split,
        )  # fmt: skip
    console.print(shown)
    end = stops_paying(estimates)
    if end:
        console.print(f"\n{end}")
    beyond = [found.tp for found in estimates if found.tp > first.topology.ranks]
    if beyond:
        console.print(f"{first.topology.ranks} ranks are all that this machine has; beyond, its outermost links repeat")


def time_text(us: float) -> str:
    """Microseconds for people: 12 µs, 3.4 ms, 1.2 s."""
    size = us
    for unit in ("µs", "ms", "s"):
        if size < 1000 or unit == "s":
            return f"{size:.0f} {unit}" if unit == "µs" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def collective_counts(work: Compilation) -> dict[str, int]:
    """AllReduces and AllGathers of a run under the plan, as the planner counts them."""
    return counted(work.problem, {work.problem.group_of[leaf] for leaf in work.plan.cut.axes})


def plan_json(work: Compilation) -> dict[str, Any]:
    """The plan for machines."""
    held = holding_of(work)
    return {
        "source": {"file": work.source.file, "bytes": work.source.nbytes},
        "tp": work.plan.mesh.tp,
        "objective": work.plan.objective,
        "weights": {"source_bytes": held.source_bytes, "rank_bytes": list(held.rank_bytes)},
        "collectives": collective_counts(work),
        "estimate": _estimate_json(estimate_of(work, held)),
        "dimensions": [asdict(group) for group in work.plan.groups],
        "whole": [asdict(found) for found in held.whole],
        "state": [
            {"input": pair.input.name, "output": pair.output.name, "axis": pair.axis, "kind": pair.kind}
            for pair in work.state
        ],
        "roles": work.roles,
        "notes": work.warnings,
    }


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
