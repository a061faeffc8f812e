"""What checking a model's annotations found, for people and for machines."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tpcompile.annotations.check import FREE, Checked
from tpcompile.errors import Refused

SHOWN_FAULTS = 200
"""Faults of a configuration that are printed; of others it says how many they are. --json has all."""
SHOWN_PLACES = 3


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="an annotated ONNX file")
    parser.add_argument("--allow-links", action="store_true", help="follow links among the model's data files")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def check_command(arguments: argparse.Namespace) -> int:
    """Check, print, and give the exit code: 0 where all that was checked is valid, 2 where something is not."""
    from tpcompile import api

    found = api.check_annotations(arguments.model, allow_links=arguments.allow_links)
    if arguments.json:
        print(json.dumps([checked_json(checked) for checked in found], indent=1))
    else:
        print_checked(found, arguments.model.name)
    return Refused.exit_code if any(checked.faults for checked in found) else 0


def checked_json(checked: Checked) -> dict[str, Any]:
    """A configuration for machines."""
    return {
        "configuration": checked.name,
        "devices": checked.devices,
        "nodes": checked.nodes,
        "annotated": checked.annotated,
        "valid": checked.valid,
        "faulty": checked.faulty,
        "faults": [asdict(fault) for fault in checked.faults],
        "not_checked": [
            {"op": op, "reason": reason, "nodes": count} for (op, reason), count in sorted(checked.unchecked.items())
        ],
        "collectives": dict(sorted((op, count) for op, count in checked.collectives.items() if op != FREE)),
        "slices": checked.collectives[FREE],
        "needed": [asdict(needed) for needed in checked.needed],
        "implied": list(checked.implied),
        "uneven": list(checked.uneven),
    }


def print_checked(found: list[Checked], file: str) -> None:
    """Each configuration: what is wrong by node, what a runtime must send, what was not checked."""
    console = Console(highlight=False)
    for place, checked in enumerate(found):
        console.print() if place else None
        many = "devices" if checked.devices != 1 else "device"
        console.print(f"[bold]{escape(file)}[/], configuration '{escape(checked.name)}' of {checked.devices} {many}\n")
        _print_faults(console, checked)
        _print_nodes(console, checked)
        _print_needed(console, checked)


def _print_faults(console: Console, checked: Checked) -> None:
    if not checked.faults:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("code", "where", "what", "what would work"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "code")
    for fault in checked.faults[:SHOWN_FAULTS]:
        table.add_row(fault.code, escape(fault.where), escape(fault.fact), escape(fault.remedy))
    console.print(table)
    if len(checked.faults) > SHOWN_FAULTS:
        console.print(f"and {len(checked.faults) - SHOWN_FAULTS} more; --json lists all")
    console.print()


def _print_nodes(console: Console, checked: Checked) -> None:
    other = sum(checked.unchecked.values())
    console.print(
        f"{checked.nodes} nodes: {checked.valid} valid, {checked.faulty} faulty, {other} not checked"
        + (f"; {checked.unannotated} say nothing, and follow from the others" if checked.unannotated else "")
    )
    for (op, reason), count in checked.unchecked.most_common():
        console.print(f"  not checked: {count} {escape(op)}: {escape(reason)}")
    if checked.implied:
        names = list(checked.implied)
        console.print(
            f"  of {len(names)} weights nothing is said where they are read ({escape(names[0])}"
            + (", …" if len(names) > 1 else "")
            + "): taken as the nodes need them"
        )
    if checked.uneven:
        names = list(checked.uneven)
        shown = escape(names[0]) + (", …" if len(names) > 1 else "")
        console.print(f"  {len(names)} tensors do not divide ({shown}): who has more is for the runtime to say")


def _print_needed(console: Console, checked: Checked) -> None:
    sent = Counter(needed.op for needed in checked.needed if needed.op != FREE)
    if not sent:
        console.print("a runtime has nothing to send" + ("" if not checked.faults else " at the valid nodes"))
    else:
        console.print("a runtime has to add")
    for op, count in sent.most_common():
        places = [needed for needed in checked.needed if needed.op == op]
        over = "/".join(str(n) for n in sorted({needed.devices for needed in places}))
        console.print(f"  {count} {op} over {over} devices")
        for needed in places[:SHOWN_PLACES]:
            console.print(f"      {escape(needed.tensor)} at {escape(needed.node)} ({escape(needed.because)})")
        if count > SHOWN_PLACES:
            console.print(f"      and {count - SHOWN_PLACES} more")
    if checked.collectives[FREE]:
        console.print(f"  {checked.collectives[FREE]} slices of what devices have whole, which send nothing")
