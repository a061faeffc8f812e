"""The graph by layer: what reads weights, sends, or takes time, and how each lies; alike layers once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tpcompile.plan.summary import PlanSummary, StepEntry
from tpcompile.plan.words import time_text
from tpcompile.report_page.drawing import HEIGHT, draw
from tpcompile.report_page.layers import Section, constants, middle_layer, sections
from tpcompile.report_page.markup import HOW, operation, shorter, text, times
from tpcompile.report_page.timeline import as_table, told

MOST_DRAWN = 64
"""Boxes of a section."""
NOTABLE = 0.03
"""An operator that takes this share of its section's time is drawn, whether or not it reads a weight."""
LABEL = 20
"""Characters in a box."""
USUAL = 0.3
"""A part of a name that ends so many of the weights' names tells nothing: "weight"."""


@dataclass(frozen=True)
class _Kept:
    """What is drawn of a section: entries, those among them that each reads, and how many are left out at the end."""

    entries: tuple[StepEntry, ...]
    reads: tuple[tuple[int, ...], ...]
    left: int


def graph(plan: PlanSummary) -> str:
    """A drawing of each section, and in words below what the timeline does not list."""
    found = sections(plan)
    drawer = _Drawer(plan)
    parts = "".join(drawer.drawn(section) for section in found)
    others = (section for section in found if section != middle_layer(plan))
    lists = "".join(
        as_table(f"list-{place}", f"{section.title}, as a table", section.entries)
        for place, section in enumerate(others)
    )
    return f'<div class="parts">{parts}</div>{lists}'


class _Drawer:
    """Draws the sections of one plan."""

    def __init__(self, plan: PlanSummary) -> None:
        self.plan, self.few = plan, constants(plan)
        named = [row.name for row in plan.weights if row.name not in self.few]
        counts = Counter(part.strip("./") for name in named for part in set(_parts(name)))
        self.usual = {part for part, count in counts.items() if count > USUAL * len(named)}

    def drawn(self, section: Section) -> str:
        kept = self.kept(section)
        drawn = sum(entry.kind != "input" for entry in kept.entries)
        said = f"{drawn:,} of {len(section.entries):,} operators and collectives"
        if kept.left:
            said += f"; {kept.left:,} more would follow"
        return (
            f'<div class="part"><h3>{text(section.title)}{times(section.count)} <small>{said}</small></h3>'
            f'<div class="scroll plain canvas" tabindex="0" role="region" aria-label="{text(section.title)}">'
            f"{self._picture(kept)}</div></div>"
        )

    def kept(self, section: Section) -> _Kept:
        """Contract what is not notable.

        An entry that is not drawn stands for the drawn one that it follows from. One that two drawn ones meet in is
        drawn too (a residual, a gate), so the others have one at most, and this takes time linear in the graph.
        """
        threshold = NOTABLE * sum(entry.us for entry in section.entries)
        inside, stands_for = set(section.places), dict[int, int | None]()
        entries: list[StepEntry] = []
        reads: list[tuple[int, ...]] = []
        left = 0
        outside = _Outside(section, self.plan)
        for place, entry in zip(section.places, section.entries, strict=True):
            found = [stands_for.get(source) if source in inside else outside.place(source) for source in entry.reads]
            above = tuple(sorted({source for source in found if source is not None}))
            weighs = not self.few.issuperset(entry.weights)
            own = weighs or entry.kind == "communication" or (entry.us and entry.us >= threshold)
            if not own and len(above) < 2:
                stands_for[place] = above[0] if above else None
            elif len(entries) >= MOST_DRAWN:
                left += 1
                stands_for[place] = None
            else:
                stands_for[place] = len(entries)
                entries.append(replace(entry, weights=tuple(name for name in entry.weights if name not in self.few)))
                reads.append(above)
        if not outside.used:
            return _Kept(tuple(entries), tuple(reads), left)
        shifted = (tuple(source + 1 for source in above) for above in reads)
        return _Kept((outside.entry, *entries), ((), *shifted), left)

    def _picture(self, kept: _Kept) -> str:
        small = [_is_small(entry) for entry in kept.entries]
        found = draw(kept.reads, small)
        lines = "".join(f'<path d="{path}"/>' for path in found.lines)
        boxes = "".join(self._boxes(kept.entries, found.boxes, small))
        return (
            f'<div class="drawing" style="width:{found.width}px;height:{found.height}px">'
            f'<svg width="{found.width}" height="{found.height}" aria-hidden="true">{lines}</svg>'
            f'<div role="group" aria-label="operators and collectives, in order">{boxes}</div></div>'
        )

    def _boxes(
        self, entries: Sequence[StepEntry], places: Sequence[tuple[int, int, int]], small: Sequence[bool]
    ) -> Iterator[str]:
        for entry, (left, top, width), little in zip(entries, places, small, strict=True):
            at = f'style="left:{left}px;top:{top}px;width:{width}px;height:{HEIGHT}px"'
            if entry.kind == "input":
                yield f'<span class="box input" {at}>{text(entry.name)}</span>'
                continue
            how = "communication" if entry.kind == "communication" else entry.cut if entry.cut in HOW else "whole"
            label = "" if little else f"<b>{text(self._label(entry))}</b>"
            lasts = "" if little or not entry.us else f" · {time_text(entry.us)}"
            yield (
                f'<button type="button" class="box {how}{" small" if little else ""}" {at} {told(entry)}>'
                f"<i></i><span>{label}<small>{operation(entry.op)}{lasts}</small></span></button>"
            )

    def _label(self, entry: StepEntry) -> str:
        """What tells a box from its neighbours: the weight it reads, or the end of its name."""
        if entry.kind == "communication":
            return "sum over ranks" if entry.op == "all_reduce" else self._end(entry.name)
        return self._end(entry.weights[0] if entry.weights else entry.name)

    def _end(self, value: str) -> str:
        """The last parts of a name that fit in a box, two of them at least; without those that end most names."""
        parts = _parts(value)
        while len(parts) > 1 and parts[-1].strip("./") in self.usual:
            parts.pop()
        while len(parts) > 2 and sum(map(len, parts)) > LABEL:
            parts.pop(0)
        return shorter("".join(parts).strip("./"), LABEL)


class _Outside:
    """What came before a section, as one box: of a layer the layer before it, of others anything before them.

    Numbered −1 until it is known whether it is needed.
    """

    def __init__(self, section: Section, plan: PlanSummary) -> None:
        self.plan, self.used = plan, False
        self.first = section.places[0]
        self.layer = section.entries[0].layer
        before = "the layer before" if section.count > 1 else "the last layer"
        self.entry = StepEntry(before, "", "input", 0.0, 0.0, self.layer, "", ())

    def place(self, source: int) -> int | None:
        """−1 where an entry before the section is one that the box stands for."""
        if self.plan.layers < 2 or self.plan.step[source].layer != self.layer - 1 or self.layer < 1:
            return None
        self.used = True
        return -1


def _is_small(entry: StepEntry) -> bool:
    return not entry.weights and not entry.us


def _parts(value: str) -> list[str]:
    """A name in parts, each with the dot or slash behind it."""
    return re.split(r"(?<=[./])(?=.)", value)
