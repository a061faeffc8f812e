"""`tpcompile diff A B`: two runs of a model, value by value in the order of computation.

Each is a folder that `tprun --dump` wrote or an .npz of whole values. Parts of ranks are put together as the folder
says they lie; what it says nothing of is the same on all ranks, or each rank's own (then it is held only against
another folder of as many ranks).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tpcompile.errors import Fault, NumbersDiffer, refuse
from tpcompile.run import arrays
from tpcompile.run.dump import FILE_NAME
from tpcompile.run.one_rank import CHECK_TOLERANCE
from tpcompile.verify.compare import assembled, relative_error, summed
from tpcompile.verify.files import Array

REMEDY = "What is wrong lies in that node, or between it and the values before it that agree"


@dataclass(frozen=True)
class Recording:
    """The values of one run: `nodes` names and makers in order ("" where not known), arrays per rank, places."""

    path: Path
    nodes: Mapping[str, str]
    ranks: Sequence[Mapping[str, Array]]
    places: Mapping[str, Any]

    def value(self, name: str) -> Array | list[Array]:
        """The whole value, or the parts of all ranks where they are each rank's own.

        Raises:
            Refused: TP506 parts that do not fit what is said of them.
        """
        parts = [values[name] for values in self.ranks if name in values]
        place = self.places.get(name)
        if len(parts) < len(self.ranks):
            raise self._refused(name, "is not there for every rank")
        if place is None:
            same = all(relative_error(parts[0], part) <= tolerance(parts[0]) for part in parts)
            return parts[0] if same else parts
        try:
            if "partial" in place:
                groups = place["partial"] or [list(range(len(parts)))]
                group_of = {rank: group for group in groups for rank in group}
                parts = [summed([parts[other] for other in group_of[rank]]) for rank in range(len(parts))]
            whole = assembled(parts, place["axis"], place["ranges"]) if place.get("axis") is not None else parts[0]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise self._refused(name, f"lies in a way that makes no sense ({error})") from error
        if isinstance(whole, str):
            raise self._refused(name, whole)
        return whole

    def _refused(self, name: str, fact: str) -> Exception:
        return refuse("TP506", f"{self.path} {name}", fact, "Write the dump again, of all ranks in one run")


def tolerance(array: Array) -> float:
    """The relative error that is allowed for values of this type."""
    return CHECK_TOLERANCE.get(array.dtype.itemsize, 2e-2) if array.dtype.kind not in "iub" else 0.0


def read_recording(path: Path) -> Recording:
    """A dump folder or an .npz file.

    Raises:
        Refused: TP506 the folder is no dump; TP609 an .npz that cannot be read.
    """
    if not path.is_dir():
        values = arrays.read(path, {})
        return Recording(path, dict.fromkeys(values, ""), [values], {})
    try:
        content = json.loads((path / FILE_NAME).read_text(encoding="utf-8"))
        nodes = {str(name): str(told["node"]) for name, told in content["values"].items()}
        places = {str(name): told["placement"] for name, told in content["values"].items()}
        ranks = [arrays.read(path / f"rank{rank}.npz", {}) for rank in range(int(content["ranks"]))]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fact = f"holds no readable {FILE_NAME} ({type(error).__name__})"
        raise refuse("TP506", str(path), fact, "Give a folder that `tprun --dump` wrote, or an .npz file") from None
    return Recording(path, nodes, ranks, places)


@dataclass(frozen=True)
class Departure:
    """A value that differs: where most, what both have there, the relative error and what is allowed."""

    name: str
    node: str
    error: float
    allowed: float
    where: str


@dataclass(frozen=True)
class Comparison:
    """`departures` in the order of computation; `compared` values in all; `skipped` are in one run alone, or own."""

    departures: tuple[Departure, ...]
    compared: int
    skipped: tuple[str, ...]


def compare(a: Recording, b: Recording) -> Comparison:
    """Every value that both hold, in the order of the one that knows it.

    Raises:
        Refused: TP506 nothing in common.
    """
    leader = a if any(a.nodes.values()) or not any(b.nodes.values()) else b
    common = [name for name in leader.nodes if name in a.nodes and name in b.nodes]
    found: list[Departure] = []
    skipped = [name for name in [*a.nodes, *b.nodes] if name not in a.nodes or name not in b.nodes]
    compared = 0
    for name in common:
        mine, theirs = a.value(name), b.value(name)
        if isinstance(mine, list) != isinstance(theirs, list) or (
            len(a.ranks) != len(b.ranks) and isinstance(mine, list)
        ):
            skipped.append(name)
            continue
        compared += 1
        pairs = (
            zip(mine, theirs, strict=True) if isinstance(mine, list) and isinstance(theirs, list) else [(mine, theirs)]
        )
        found.extend(list(_departures(name, leader.nodes[name], pairs))[:1])
    if not compared:
        raise refuse("TP506", f"{a.path} and {b.path}", "have no value in common that can be compared",
                     "Dump values of the same names: `tprun --dump '*'`")  # fmt: skip
    return Comparison(tuple(found), compared, tuple(skipped))


def _departures(name: str, node: str, pairs: Any) -> Iterator[Departure]:
    for rank, (mine, theirs) in enumerate(pairs):
        error, allowed = relative_error(mine, theirs), tolerance(mine)
        if error > allowed:
            place = f"on rank {rank} " if rank else ""
            yield Departure(name, node, error, allowed, place + _largest(mine, theirs))


def _largest(a: Array, b: Array) -> str:
    """Where two arrays differ most, and what they have there."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {a.dtype.name}{list(a.shape)} in A, {b.dtype.name}{list(b.shape)} in B"
    with np.errstate(invalid="ignore"):
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
    gap = np.where(np.isnan(gap), np.where(np.isnan(a) == np.isnan(b), 0, math.inf) if a.dtype.kind == "f" else 0, gap)
    at = np.unravel_index(int(np.argmax(gap)), gap.shape)
    return f"is {a[at]:.6g} in A and {b[at]:.6g} in B at {[int(i) for i in at]}"


def add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tpcompile diff` takes."""
    for name in ("a", "b"):
        parser.add_argument(name, type=Path, metavar=name.upper(), help="a folder of `tprun --dump`, or an .npz file")
    parser.add_argument("--json", action="store_true", help="print JSON for machines")


def diff_command(arguments: argparse.Namespace) -> int:
    """Run `tpcompile diff`; 0 where all values agree, 3 where not. Raises what it cannot read (TP506, TP609)."""
    found = compare(read_recording(arguments.a), read_recording(arguments.b))
    if arguments.json:
        departures = [vars(departure) for departure in found.departures]
        print(json.dumps({"compared": found.compared, "departures": departures, "skipped": found.skipped}, indent=1))
        return NumbersDiffer.exit_code if found.departures else 0
    if found.skipped:
        print(f"not compared: {len(found.skipped)} (in one run alone, or each rank's own)")
    if not found.departures:
        print(f"{found.compared} values agree")
        return 0
    first = found.departures[0]
    error = f"relative error {first.error:.1e} ({first.allowed:.0e} allowed)"
    others = f"{len(found.departures) - 1} others of {found.compared} depart"
    fact = f"is the first value that departs: it {first.where}, {error}; {others}"
    where = f"{first.name} (made by {first.node})" if first.node else first.name
    print(Fault("TP533", where, fact, REMEDY), file=sys.stderr)
    return NumbersDiffer.exit_code
