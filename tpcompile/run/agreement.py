"""What ranks must agree on before they run: faults told once for all, and parts that belong together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tpcompile.bundle.manifest import FILE_NAME
from tpcompile.errors import Fault, Refused, TpcompileError, refuse
from tpcompile.run.executor import RankModel
from tpcompile.run.mpi import World
from tpcompile.run.watchdog import Watchdog

Made = TypeVar("Made")


def together(
    world: World, watchdog: Watchdog, what: str, make: Callable[[], Made], say: Callable[[Made], Any]
) -> tuple[Made, list[Any]]:
    """What `make` gives on this rank, and what all ranks `say` of theirs, in the order of ranks.

    `make` must wait for nobody. `what` names the wait for the others, who may be slower.

    Raises:
        Refused: on all ranks the same, where any of them refused.
    """
    made: list[Made] = []
    faults: list[list[str]] = []
    try:
        made.append(make())
    except TpcompileError as error:
        faults = [[fault.code, fault.where, fault.fact, fault.remedy] for fault in error.faults]
    watchdog.waits(what, loading=True)
    said = world.exchange([faults, *map(say, made)])
    watchdog.goes_on()
    if any(found for found, *_ in said):
        raise Refused(*gathered([found for found, *_ in said]))
    return made[0], [found for _, found in said]


def identity(folder: Path, model: RankModel) -> dict[str, Any]:
    """What must fit between ranks: the compile they come from, and the collectives they will run in order."""
    compiled = hashlib.sha256((folder / FILE_NAME).read_bytes()).hexdigest()
    return {"compile": compiled, "collectives": model.calls()}


def gathered(said: list[list[list[str]]]) -> list[Fault]:
    """The faults of all ranks, each once, with the ranks that have it (none named where all do)."""
    owners: dict[tuple[str, ...], list[int]] = {}
    for rank, faults in enumerate(said):
        for fault in dict.fromkeys(map(tuple, faults)):
            owners.setdefault(fault, []).append(rank)
    found = []
    for (code, where, fact, remedy), ranks in owners.items():
        name = f"rank {', '.join(map(str, ranks))}: "
        found.append(Fault(code, where if len(ranks) == len(said) else name + where, fact, remedy))
    return found


def check_same(said: list[dict[str, Any]]) -> None:
    """Refuse (TP608) ranks that come from different compiles or would meet in different collectives."""
    remedy = "All ranks need files of one compile: copy the whole bundle to every machine again"
    for rank, other in enumerate(said):
        ours, theirs = said[0]["collectives"], other["collectives"]
        kinds = [[name for name, *_ in found] for found in (ours, theirs)]
        if kinds[0] != kinds[1]:
            at = next((i for i, (a, b) in enumerate(zip(*kinds, strict=False)) if a != b), min(map(len, kinds)))
            a, b = ((found[at] if at < len(found) else "no more") for found in kinds)
            raise refuse("TP608", f"rank {rank}", f"collective {at} is {b}, on rank 0 {a}", remedy)
        if other["compile"] != said[0]["compile"]:
            raise refuse("TP608", f"rank {rank}", "its bundle.json is of another compile than that of rank 0", remedy)
    for rank, other in enumerate(said):
        theirs = other["collectives"]
        for index, (name, group, _) in enumerate(theirs):
            members = group or range(len(said))
            known = [said[member]["collectives"][index] for member in members if 0 <= member < len(said)]
            if rank not in members or len(known) < len(members) or any(call != theirs[index] for call in known):
                fact = f"collective {index}, {name}: the ranks of its group {list(members)} do not agree on it"
                raise refuse("TP608", f"rank {rank}", fact, remedy)
