"""A drawing of a small graph: boxes in rows, whatever is read above whoever reads it, and lines between.

The layers of Sugiyama, Tagawa and Toda (1981): rows by the longest way from the top, places within a row by the
neighbours' mean, lines through places of their own in the rows they pass. Long lines keep to the right.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOX, SMALL, THREAD = 188, 76, 14
"""Widths in px: of a box, of a small one, of a line that passes a row."""
HEIGHT, GAP, ROW = 44, 14, 76
"""In px: how high a box is, what lies between neighbours, and from row to row."""
WIDEST = 5
"""Boxes in a row at most; more go to the next one."""
SWEEPS = 12


@dataclass
class _Place:
    """A box, or where a line passes a row."""

    node: int
    row: int
    width: int
    x: float = 0.0

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True)
class Drawing:
    """`boxes` are (left, top, width) of each node, `lines` the SVG paths of all edges, all in px."""

    width: int
    height: int
    boxes: tuple[tuple[int, int, int], ...]
    lines: tuple[str, ...]


def draw(reads: Sequence[Sequence[int]], small: Sequence[bool]) -> Drawing:
    """Lay out nodes 0, 1, …: `reads[n]` are earlier nodes, drawn above n; `small` ones get little boxes."""
    rows = _rows(reads, small)
    places = [_Place(node, row, SMALL if small[node] else BOX) for node, row in enumerate(rows)]
    lines: dict[int, list[_Place]] = {}  # lines from one box run together until they part
    for node, sources in enumerate(reads):
        for source in sources:
            line = lines.setdefault(source, [])
            line += [_Place(source, row, THREAD) for row in range(rows[source] + 1 + len(line), rows[node])]
    by_row: list[list[_Place]] = [[] for _ in range(max(rows, default=0) + 1)]
    aside = [line for line in lines.values() if len(line) > 1]
    for place in (*places, *(place for line in lines.values() if len(line) == 1 for place in line)):
        by_row[place.row].append(place)
    strings = [
        [places[source], *lines[source][: rows[node] - rows[source] - 1], places[node]]
        for node, sources in enumerate(reads)
        for source in sources
    ]
    links: dict[int, list[_Place]] = {}
    for upper, lower in (pair for string in strings if len(string) < 4 for pair in itertools.pairwise(string)):
        links.setdefault(id(lower), []).append(upper)
        links.setdefault(id(upper), []).append(lower)
    _arrange(by_row, links)
    width = _pass_by(by_row, aside)
    return Drawing(
        round(width),
        len(by_row) * ROW - (ROW - HEIGHT),
        tuple((round(place.x), place.row * ROW, place.width) for place in places),
        tuple(dict.fromkeys(_line(string) for string in strings)),
    )


def _pass_by(by_row: Sequence[Sequence[_Place]], aside: Sequence[Sequence[_Place]]) -> float:
    """Let long lines go straight down at the right of all rows they pass, short ones inside; returns the width."""
    ends = [max((place.x + place.width for place in row), default=0.0) for row in by_row]
    for line in sorted(aside, key=len):
        x = max(ends[place.row] for place in line) + GAP / 2
        for place in line:
            place.x, ends[place.row] = x, x + THREAD
    return max(ends, default=0.0)


def _rows(reads: Sequence[Sequence[int]], small: Sequence[bool]) -> list[int]:
    """The row of each node: below all that it reads, and where there is room."""
    rows: list[int] = []
    taken: dict[int, int] = {}
    for sources in reads:
        row = max((rows[source] + 1 for source in sources), default=0)
        while taken.get(row, 0) >= WIDEST:
            row += 1
        taken[row] = taken.get(row, 0) + 1
        rows.append(row)
    return rows


def _arrange(by_row: list[list[_Place]], links: Mapping[int, list[_Place]]) -> None:
    """Give every place its x: near the mean of its neighbours, in an order that follows from it."""
    for row in by_row:
        _pack(row, [0.0] * len(row))
    for sweep in range(SWEEPS):
        for row in by_row if sweep % 2 == 0 else reversed(by_row):
            wanted = {id(place): _wanted(place, links.get(id(place), ()), sweep % 2 == 0) for place in row}
            row.sort(key=lambda place: (wanted[id(place)], place.node))
            _pack(row, [wanted[id(place)] for place in row])
    left = min((place.x for row in by_row for place in row), default=0.0)
    for row in by_row:
        for place in row:
            place.x -= left


def _wanted(place: _Place, near: Sequence[_Place], down: bool) -> float:
    """Where the middle of a place would best be: below those above it, or the other way."""
    near = [other for other in near if (other.row < place.row) == down]
    return sum(other.middle for other in near) / len(near) if near else place.middle


def _pack(row: Sequence[_Place], wanted: Sequence[float]) -> None:
    """Neighbours side by side in their order, each as near to where it is wanted as their order lets it.

    Places that would overlap form a block, which stands where its members want it on average.
    """
    blocks: list[tuple[float, float, int]] = []  # left end, width, how many places
    for place, middle in zip(row, wanted, strict=True):
        left, width, count = middle - place.width / 2, float(place.width), 1
        while blocks and blocks[-1][0] + blocks[-1][1] + GAP > left:
            before, its_width, others = blocks.pop()
            left = (before * others + (left - its_width - GAP) * count) / (others + count)
            width, count = its_width + GAP + width, others + count
        blocks.append((left, width, count))
    places = iter(row)
    for left, _, count in blocks:
        for place in itertools.islice(places, count):
            place.x = left
            left += place.width + GAP


def _line(string: Sequence[_Place]) -> str:
    """A curve from the foot of the first place to the head of the last, through those between."""
    upper = string[0]
    path = f"M{upper.middle:.0f} {upper.row * ROW + HEIGHT}"
    for place in string[1:]:
        top = place.row * ROW
        bend = (ROW - HEIGHT) // 2
        path += f"C{upper.middle:.0f} {top - bend} {place.middle:.0f} {top - bend} {place.middle:.0f} {top}"
        if place is not string[-1]:
            path += f"V{top + HEIGHT}"
        upper = place
    return path
