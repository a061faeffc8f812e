"""What each rank holds, as stacked bars beside what a device has room for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from tpcompile.plan.summary import PlanSummary, RankHolds
from tpcompile.plan.words import bytes_text
from tpcompile.report_page.markup import stacked, text

HELD = ("weights", "caches", "activations")
MOST_ROWS = 32
NEAR = 4
"""A device's memory is drawn to scale up to this many times the largest bar."""


@dataclass(frozen=True)
class _Bar:
    label: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def memory_bars(plan: PlanSummary) -> str:
    """A bar for each rank (alike neighbours share one), one for a device that holds the whole model, and the limit."""
    found = plan.estimate
    bars = [_Bar(_label(alike), _parts(alike[0])) for alike in _alike(plan.ranks)]
    left = len(bars) - MOST_ROWS
    bars = bars[:MOST_ROWS]
    if plan.tp > 1:
        bars.append(_Bar("one device", {kind: getattr(found.whole, kind) for kind in HELD}))
    room = found.topology.device.memory_bytes
    largest = max((bar.total for bar in bars), default=0.0) or 1.0
    to_scale = room <= NEAR * largest
    scale = max(largest, room) / 0.97 if to_scale else largest / 0.8
    limit = 100 * room / scale if to_scale else 97.0
    shown = "".join(
        f'<div class="bar-row{" over" if bar.total > room else ""}"><span>{text(bar.label)}</span>'
        f'<div class="track">{stacked(bar.parts, scale)}</div><b>{bytes_text(bar.total)}'
        f"{' <em>too much</em>' if bar.total > room else ''}</b></div>"
        for bar in bars
    )
    far = "" if to_scale else f", {room / largest:,.0f} times the longest bar: not to scale"
    more = f"<p><small>and {left:,} more rows of ranks, within the same limits" if left > 0 else ""
    return (
        f'<div class="bars limited{"" if to_scale else " far"}" style="--limit:{limit:.3f}%" aria-hidden="true">{shown}'
        f'<div class="bar-row axis"><span></span><div class="track"></div><b></b></div></div>'
        f'<p class="limit-said"><i class="key limit"></i>{bytes_text(room)}: what one '
        f"{text(found.topology.device.name)} holds{far}</p>{_figures(bars)}{more}"
    )


def _figures(bars: Iterable[_Bar]) -> str:
    head = "".join(f'<th scope="col"><i class="key {kind}"></i>{kind}' for kind in HELD)
    body = "".join(
        f'<tr><th scope="row">{text(bar.label)}'
        + "".join(f"<td>{bytes_text(bar.parts[kind])}" for kind in HELD)
        + f"<td>{bytes_text(bar.total)}"
        for bar in bars
    )
    return (
        '<div class="scroll plain"><table class="figures"><caption class="unseen">What ranks hold</caption>'
        f'<thead><tr><td>{head}<th scope="col">together</thead><tbody>{body}</tbody></table></div>'
    )


def _parts(held: RankHolds) -> dict[str, float]:
    return {kind: getattr(held, kind) for kind in HELD}


def _alike(ranks: Iterable[RankHolds]) -> list[list[RankHolds]]:
    return [list(found) for _, found in itertools.groupby(ranks, lambda rank: tuple(_parts(rank).values()))]


def _label(alike: list[RankHolds]) -> str:
    first, last = alike[0].rank, alike[-1].rank
    return f"rank {first}" if first == last else f"ranks {first} to {last}"
