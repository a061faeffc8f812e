"""report.html: a plan as one file that needs nothing else, fetches nothing, and is the same for the same plan."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from string import Template

from tpcompile import __version__
from tpcompile.plan.summary import PlanSummary
from tpcompile.report_page import graph, headline, memory, tables, timeline
from tpcompile.report_page.markup import HOW, badge, name, shorter, text


def report_page(plan: PlanSummary) -> str:
    """The whole page. Only the one script that comes along may run in it: its hash stands in the page's policy."""
    style, script = _data("page.css"), _data("page.js")
    digest = hashlib.sha256(f"\n{script}".encode()).digest()
    ranks = headline.ranks_text(plan)
    return Template(_data("page.html")).substitute(
        version=text(__version__),
        title=text(f"{shorter(plan.source, 60)} on {ranks}"),
        heading=f"{name(plan.source, 80)} on {ranks}",
        script_hash=f"sha256-{base64.b64encode(digest).decode()}",
        style=style,
        script=script,
        facts=headline.facts(plan),
        headline=headline.headline(plan),
        advice=headline.advice(plan),
        step=headline.step_bars(plan),
        memory=memory.memory_bars(plan),
        timeline=timeline.timeline(plan),
        graph=graph.graph(plan),
        legend=_legend(plan),
        cut=tables.cut_dimensions(plan),
        whole=tables.whole_dimensions(plan),
        choices=tables.how_weights_lie(plan),
        weights=tables.weights(plan),
        collectives=tables.collectives(plan),
    )


def _legend(plan: PlanSummary) -> str:
    """Badges of what the drawings hold."""
    found = {entry.cut for entry in plan.step}
    sends = '<span class="badge communication"><i></i>collective</span>'
    return "".join(badge(how) for how in HOW if how in found) + (sends if plan.collectives else "")


def _data(file: str) -> str:
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
