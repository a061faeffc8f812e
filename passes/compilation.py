"""What the passes share: the model, what is known of it so far, and what was decided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

from tpcompile.dims.analysis import Analysis
from tpcompile.graph.local import LocalProgram
from tpcompile.graph.program import Program, Value
from tpcompile.graph.read import SourceModel
from tpcompile.graph.samples import Samples
from tpcompile.graph.state import StatePair
from tpcompile.plan.plan import Plan
from tpcompile.plan.problem import Problem
from tpcompile.plan.request import Request

T = TypeVar("T")


@dataclass
class Compilation:
    """One model on its way through the passes; what a pass has not reached yet raises `NotYet` when asked for."""

    source: SourceModel
    request: Request
    program: Program
    warnings: list[str] = field(default_factory=list)
    state: list[StatePair] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    cut_doors: frozenset[Value] = frozenset()
    _samples: Samples | None = None
    _analysis: Analysis | None = None
    _problem: Problem | None = None
    _plan: Plan | None = None
    _local: LocalProgram | None = None

    @property
    def samples(self) -> Samples:
        return _reached(self._samples, "samples")

    @property
    def analysis(self) -> Analysis:
        return _reached(self._analysis, "analysis")

    @property
    def problem(self) -> Problem:
        return _reached(self._problem, "problem")

    @property
    def plan(self) -> Plan:
        return _reached(self._plan, "plan")

    @property
    def local(self) -> LocalProgram:
        return _reached(self._local, "local program")


class NotYet(Exception):
    """A pass asked for what a later pass makes: the order in `tpcompile.pipeline` is wrong."""


def _reached(found: T | None, what: str) -> T:
    if found is None:
        raise NotYet(f"no {what} yet")
    return found


class Pass(Protocol):
    """A step of the pipeline: a frozen dataclass with a verb for a name."""

    name: ClassVar[str]

    def run(self, work: Compilation) -> str:
        """Do it, and say in a line what was done ("" for nothing worth telling)."""


Between = Callable[[Pass, Compilation, str], None]
"""Called after each pass, with what it says it did: for timing, dumps and checks."""
