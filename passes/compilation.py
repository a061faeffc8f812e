"""What the passes share: the model, what is known of it so far, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tpcompile.dims.analysis import Analysis
from tpcompile.graph.local import LocalProgram
from tpcompile.graph.program import Program, Value
from tpcompile.graph.samples import Samples
from tpcompile.graph.state import StatePair
from tpcompile.plan.plan import Plan
from tpcompile.plan.problem import Problem
from tpcompile.plan.request import Request
from tpcompile.plan.solve import Solver, Wish
from tpcompile.plan.topology import Topology

T = TypeVar("T")


class NotYet(Exception):
    """A pass asked for what a later pass makes: the order in `tpcompile.pipeline` is wrong."""


class Later(Generic[T]):
    """An attribute that a pass fills in; reading it before raises `NotYet`."""

    def __set_name__(self, owner: type[object], name: str) -> None:
        self.name = name

    def __get__(self, work: object, owner: type[object]) -> T:
        try:
            found: T = vars(work)[self.name]
        except KeyError:
            raise NotYet(f"no {self.name} yet") from None
        return found

    def __set__(self, work: object, value: T) -> None:
        vars(work)[self.name] = value


@dataclass(repr=False)
class Compilation:
    """One model on its way through the passes.

    `source` is what its front reads: `graph.read.SourceModel`, or `torch.capture.Captured`. Passes that serve both
    know of it that it has a `file`, the name to tell people.
    """

    source: Any
    request: Request
    program: Program
    warnings: list[str] = field(default_factory=list)
    state: list[StatePair] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    cut_doors: frozenset[Value] = frozenset()
    model_notes: int = 0
    """How many of the warnings speak of the model alone, not of the plan."""
    samples = Later[Samples]()
    analysis = Later[Analysis]()
    problem = Later[Problem]()
    topology = Later[Topology]()
    plan = Later[Plan]()
    solver = Later[Solver | None]()
    wishes = Later[list[Wish] | None]()
    """What pins and the recipe came to; None where a plan file decided alone."""
    local = Later[LocalProgram]()

    def __repr__(self) -> str:
        done = [name for name in ("samples", "analysis", "problem", "plan", "local") if name in vars(self)]
        return f"Compilation({self.source.file!r}, tp={self.request.tp}, has {', '.join(done) or 'nothing yet'})"


class Pass(Protocol):
    """A step of the pipeline: a frozen dataclass with a verb for a name."""

    name: ClassVar[str]

    def run(self, work: Compilation) -> str:
        """Do it, and say in a line what was done ("" for nothing worth telling)."""
