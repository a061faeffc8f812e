"""`tpcompile plan --why GLOB`: why dimensions lie as they do, for people and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from tpcompile.passes.choose_plan import ChoosePlan, nominal_sizes
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.cost import OBJECTIVES
from tpcompile.plan.solve import Solver
from tpcompile.plan.why import Asked, Term, Why
from tpcompile.plan.words import SPOKEN, bytes_text, time_text
from tpcompile.plan_report import shortened

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = 8
LEAST = 0.5
"""Bytes of a term that is shown."""
NAME = 40
"""Columns that a name gets within a sentence."""


def why(work: Compilation, pattern: str) -> list[Why]:
    """What decided on all that a pattern names. Raises Refused TP142 where that is nothing."""
    solver = work.solver or Solver(work.problem, ChoosePlan().prices(work, priced_by(work)))
    return Asked(work.analysis, solver, work.plan, work.wishes or [], work.topology, nominal_sizes(work)).about(pattern)


def priced_by(work: Compilation) -> str:
    """The objective that a plan is priced by: its own, which a plan file tells, where there is such a one."""
    return work.plan.objective if work.plan.objective in OBJECTIVES else work.request.objective


def why_json(work: Compilation, found: Sequence[Why]) -> dict[str, Any]:
    """The answers for machines."""
    return {"tp": work.plan.mesh.tp, "why": [asdict(about) for about in found]}


def print_why(work: Compilation, found: Sequence[Why]) -> None:
    """The answers on stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    if not work.wishes and work.solver is None:
        console.print("beside the plan file, which decided alone:\n")
    console.print(f"[bold]{escape(work.source.file)}[/] on {work.plan.mesh.tp} ranks, {priced_by(work)}\n")
    for about in found[:SHOWN]:
        _print_one(console, about)
    if len(found) > SHOWN:
        console.print(f"… and {len(found) - SHOWN} smaller ones: name fewer")


def _print_one(console: Console, about: Why) -> None:
    times = f"  ×{about.count}" if about.count > 1 else ""
    lies = f"cut over sub-axes {list(about.axes)}" if about.axes else "whole"
    name = escape(shortened(about.name, console.width - len(lies) - len(times) - 4))
    console.print(f"[bold]{name}[/]{times}: {lies}", soft_wrap=True)
    for text in (about.reason, *about.blocked):
        if text:
            _print_inside(console, escape(text))
    if about.remedy:
        _print_inside(console, f"[dim]→ {escape(about.remedy)}[/]")
    for other in about.excludes[:SHOWN]:
        name = escape(shortened(other.name, NAME))
        _print_inside(console, f"cannot be cut over the same ranks as {name}: {escape(other.where)}")
    if about.option:
        _print_price(console, about)
    console.print()


def _print_inside(console: Console, text: str) -> None:
    """A text below a heading, all of its lines a little to the right."""
    from rich.padding import Padding

    console.print(Padding(text, (0, 0, 0, 2), expand=False))


def _print_price(console: Console, about: Why) -> None:
    from rich.table import Table

    otherwise = "whole" if about.axes else "cut"
    _print_inside(console, f"were it {otherwise}, the price of a step would change by, in bytes read:")
    shown = Table.grid(padding=(0, 2, 0, 0))
    shown.add_column(justify="right", min_width=12, no_wrap=True)
    shown.add_column(overflow="fold")
    terms = [term for term in about.terms if max(abs(term.price), abs(term.nbytes)) >= LEAST]
    for term in terms[:SHOWN]:
        shown.add_row(_signed(term.price), escape(_told(term)))
    rest: Sequence[Term] = terms[SHOWN:]
    if rest:
        shown.add_row(_signed(sum(term.price for term in rest)), f"{len(rest)} smaller terms")
    us = ("+" if about.step_us >= 0 else "−") + time_text(abs(about.step_us))
    shown.add_row(f"[bold]{_signed(about.price)}[/]", f"in all; by the estimate a step would take {us}")
    console.print(shown)
    if about.changes:
        more = f" and {len(about.changes) - SHOWN} more" if len(about.changes) > SHOWN else ""
        changes = [f"{shortened(name, NAME)} {how}" for name, _, how in (text.partition(" ") for text in about.changes)]
        _print_inside(console, f"with {escape(', '.join(changes[:SHOWN]))}{more}")
    _print_inside(console, f"[dim]→ {escape(about.option)} forces it[/]")


def _signed(nbytes: float) -> str:
    return ("+" if nbytes >= 0 else "−") + bytes_text(abs(nbytes))


def _told(term: Term) -> str:
    us = ("+" if term.us >= 0 else "−") + time_text(abs(term.us))
    if term.what == "cuts":
        return "the cuts themselves"
    more = f" and {term.of - len(term.values)} more" if term.of > len(term.values) else ""
    values = ", ".join(shortened(value, NAME) for value in term.values) + more
    if term.what == "read":
        return f"{values}: {_signed(term.nbytes)} a rank, {us}"
    count = f"{term.count:+g}".replace("-", "−")
    return f"{count} {SPOKEN[term.what]} of {values}: {_signed(term.nbytes)} sent, {us}"
