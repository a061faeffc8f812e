"""What goes wrong, and how it is said: every fault has a code, a place, a fact and a remedy.

Codes by hundreds: TP1xx what the user asked for (degree, pins, plan, sizes), TP2xx reading the model,
TP3xx the graph (operators, shapes), TP4xx writing, TP5xx verification, TP6xx running, TP7xx torch
and TensorRT. `docs/errors.md` has an entry for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: `code` (TPnnn), `where` (file, node, tensor), `fact` (what we saw), `remedy`."""

    code: str
    where: str
    fact: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{self.code} {place}{self.fact}. {self.remedy}"


class TpcompileError(Exception):
    """Base of all errors tpcompile raises on purpose; `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(self, *faults: Fault) -> None:
        self.faults = faults
        super().__init__("\n".join(str(fault) for fault in faults))


class Refused(TpcompileError):
    """The input or the request cannot be served; the text says what would work (exit code 2)."""

    exit_code = 2


class NumbersDiffer(TpcompileError):
    """The compiled model does not give the source model's numbers (exit code 3)."""

    exit_code = 3


class RankFailed(TpcompileError):
    """A rank raised, ended early, or did not answer within its time limit (exit code 4)."""

    exit_code = 4


def refuse(code: str, where: str, fact: str, remedy: str) -> Refused:
    """A `Refused` with one fault, to be raised by the caller."""
    return Refused(Fault(code, where, fact, remedy))


def raise_all(faults: Iterable[Fault]) -> None:
    """Raise one `Refused` that holds every fault; do nothing where there is none."""
    found = tuple(faults)
    if found:
        raise Refused(*found)
