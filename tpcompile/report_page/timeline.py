"""One layer in time: what a rank computes against what it sends, on two lanes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tpcompile.plan.summary import PlanSummary, StepEntry
from tpcompile.plan.words import time_text
from tpcompile.report_page.layers import middle_layer
from tpcompile.report_page.markup import Cell, Column, badge, name, names, operation, shorter, table, text

MOST_BARS = 240
MOST_LISTED = 250
DOES = {"whole": "every rank does all of it", "cut": "works on a part"}
SAID = {"memory": "bound by memory", "compute": "bound by compute", "communication": "communication"}


def timeline(plan: PlanSummary) -> str:
    """Two lanes of bars to scale, an axis, and all of it as a table."""
    layer = middle_layer(plan)
    lasting = [entry for entry in layer.entries if entry.us > 0] if layer is not None else []
    if layer is None or not lasting:
        return "<p>No operator of this model takes time of its own."
    start = min(entry.start_us for entry in lasting)
    end = max(entry.start_us + entry.us for entry in lasting)
    drawn = _longest(lasting, MOST_BARS)
    computed = [entry for entry in drawn if entry.kind != "communication"]
    sent = [entry for entry in drawn if entry.kind == "communication"]
    more = ""
    if len(drawn) < len(lasting):
        rest = sum(entry.us for entry in lasting) - sum(entry.us for entry in drawn)
        more = f"<p><small>{len(lasting) - len(drawn):,} short ones, {time_text(rest)} together, are not drawn.</small>"
    fused = len(layer.entries) - len(lasting)
    joined = f"; {fused:,} more operators are fused into these and take no time of their own" if fused else ""
    return (
        f"<p>{text(layer.title)}: {time_text(end - start)}, of which {time_text(sum(e.us for e in sent))} "
        f"communication{joined}.</p>"
        '<div class="timeline">'
        f"{_lane('compute', computed, start, end)}{_lane('send', sent, start, end)}{_axis(end - start)}</div>"
        f'<p class="told-here" aria-live="polite">Point at a bar, or reach the lanes with Tab and '
        f"walk them with the arrow keys.</p>{more}{as_table('layer', 'The same as a table', layer.entries)}"
    )


def _longest(entries: Sequence[StepEntry], most: int) -> list[StepEntry]:
    """The `most` longest of them, in their order."""
    if len(entries) <= most:
        return list(entries)
    kept = sorted(range(len(entries)), key=lambda place: (-entries[place].us, place))[:most]
    return [entries[place] for place in sorted(kept)]


def _lane(title: str, entries: Sequence[StepEntry], start: float, end: float) -> str:
    span = end - start
    bars = "".join(
        f'<button type="button" class="bar {entry.kind}" style="left:{100 * (entry.start_us - start) / span:.3f}%;'
        f'width:{100 * entry.us / span:.3f}%" {told(entry)}><span>{operation(entry.op)}</span></button>'
        for entry in entries
    )
    return f'<div class="lane-name">{title}</div><div class="lane" role="group" aria-label="{title}">{bars}</div>'


def told(entry: StepEntry) -> str:
    """Attributes by which an entry tells what it is, to those who point at it and to those who hear the page."""
    words = [f"{operation(entry.op)} {text(shorter(entry.name))}"]
    if entry.us:
        words.append(f"{time_text(entry.us)}, {SAID.get(entry.kind, 'fused')}")
    elif entry.kind == "fused":
        words.append("no time of its own")
    if entry.cut:
        words.append(
            {"whole": "every rank does all of it", "cut": "works on a part"}.get(entry.cut, f"{entry.cut} cut")
        )
    if entry.weights:
        words.append(f"reads {', '.join(text(shorter(weight, 80)) for weight in entry.weights[:3])}")
    sought = entry.name if entry.kind == "communication" else entry.weights[0] if entry.weights else ""
    find = f' data-find="{text(shorter(sought))}"' if sought else ""
    return f'tabindex="-1" title="{" · ".join(words)}"{find}'


def _axis(span: float) -> str:
    return f'<div class="lane-name"></div><div class="ticks" aria-hidden="true">{"".join(_ticks(span))}</div>'


def _ticks(span: float) -> Iterator[str]:
    """About four round times."""
    raw = span / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.8)
    for place in range(int(span / step) + 1):
        at = 100 * place * step / span
        kind = ' class="last"' if at > 88 else ""
        yield f'<span style="left:{at:.3f}%"{kind}>{time_text(place * step) if place else "0"}</span>'


def as_table(key: str, title: str, entries: Sequence[StepEntry]) -> str:
    """Entries in words, folded away; times count from the first."""
    start = entries[0].start_us
    columns = (
        Column("op", "operator"), Column("name", "name"), Column("at", "begins", number=True),
        Column("us", "takes", number=True), Column("how", "does"), Column("weights", "weights"),
    )  # fmt: skip
    rows = [
        (operation(entry.op), name(entry.name), Cell(time_text(entry.start_us - start), entry.start_us - start),
         Cell(time_text(entry.us) if entry.us else "—", entry.us),
         badge(entry.cut) if entry.cut else '<span class="badge communication"><i></i>sends</span>',
         names(entry.weights))
        for entry in entries[:MOST_LISTED]
    ]  # fmt: skip
    left = len(entries) - len(rows)
    more = f"<p><small>and {left:,} more</small>" if left else ""
    kinds = [entry.cut for entry in entries[:MOST_LISTED]]
    return (
        f"<details><summary>{text(title)}: {len(entries):,} operators and collectives</summary>"
        f"{table(key, title, columns, rows, kinds)}{more}</details>"
    )
