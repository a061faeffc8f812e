"""HTML from texts that nobody vouches for, and what all parts of the page say alike: names, badges, tables.

Every text of a model reaches the page through `text`, here.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpcompile.plan.words import SPOKEN

LONGEST_NAME = 200
"""Characters of a name that are shown; what is left out of a longer one is its middle."""
HOW = {
    "column": "column",
    "row": "row",
    "vocab": "vocab",
    "expert": "expert",
    "gathered": "gathered",
    "cut": "part",
    "whole": "whole",
}
"""What a node or a weight is of the whole → what its badge says; the page's style knows each by the first word."""
_TURNS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_PICTURES = (
    {code: 0x2400 + code for code in range(32)}
    | {127: 0x2421, 0x2028: 0x2424, 0x2029: 0x2424}
    | dict.fromkeys(_TURNS, 0xFFFD)
)
"""Control characters as the signs that stand for them; those that turn the direction of writing as no character."""


def text(value: object) -> str:
    """Any text as HTML that shows it: nothing in it is markup, nor does it control anything."""
    shown = str(value).translate(_PICTURES).encode("utf-8", "replace").decode("utf-8")
    return html.escape(shown, quote=True)


def shorter(value: str, width: int = LONGEST_NAME) -> str:
    """A name in `width` characters: names differ at their end, and less so at their beginning."""
    if len(value) <= width:
        return value
    head = width // 4
    return f"{value[:head]}…{value[len(value) - (width - head - 1) :]}"


def name(value: str, width: int = LONGEST_NAME) -> str:
    """A name of the model; pointing at it tells all of one that is shortened."""
    shown = shorter(value, width)
    more = f' title="{text(shorter(value, 4 * LONGEST_NAME))}"' if shown != value else ""
    return f"<code{more}>{text(shown)}</code>"


def names(values: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(name(value, 60) for value in values[:most])
    return shown + (f" and {len(values) - most:,} more" if len(values) > most else "")


def times(count: int) -> str:
    """ " × 32" behind what stands for that many alike ones."""
    return f' <span class="times">× {count:,}</span>' if count > 1 else ""


def badge(how: str) -> str:
    """How something lies, told by word, colour and pattern."""
    kind = how if how in HOW else "whole"
    return f'<span class="badge {kind}"><i></i>{text(HOW.get(how, how))}</span>'


def operation(op: str) -> str:
    """An operator or a collective, as people say it."""
    return text(SPOKEN.get(op, shorter(op, 40)))


@dataclass(frozen=True)
class Column:
    """A column of a table: `key` names it in the page's address, `number` where cells hold numbers."""

    key: str
    title: str
    number: bool = False


@dataclass(frozen=True)
class Cell:
    """What a cell shows, as HTML, and what it is sorted by: itself where None."""

    html: str
    sort: float | None = None


Row = Sequence[Cell | str]


def table(key: str, caption: str, columns: Sequence[Column], rows: Iterable[Row], kinds: Iterable[str] = ()) -> str:
    """A table that the page's script makes searchable and sortable; `kinds` tells of each row how it lies, if given.

    End tags of cells and rows are left out, as HTML allows: a page has thousands.
    """
    head = "".join(
        f'<th scope="col" data-key="{column.key}"{" class=n" if column.number else ""}>{text(column.title)}</th>'
        for column in columns
    )
    told = iter(kinds)
    body = "\n".join(_row(row, columns, next(told, "")) for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f'<table id="{key}"><caption class="unseen">{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(row: Row, columns: Sequence[Column], kind: str) -> str:
    cells = []
    for place, (cell, column) in enumerate(zip(row, columns, strict=True)):
        found = cell if isinstance(cell, Cell) else Cell(cell)
        value = "" if found.sort is None else f" data-v={found.sort:.6g}"
        style = " class=n" if column.number else ""
        cells.append(f"<th scope=row{value}{style}>{found.html}" if not place else f"<td{value}{style}>{found.html}")
    return f"<tr{f' data-how={kind}' if kind in HOW else ''}>{''.join(cells)}"


def stacked(parts: Mapping[str, float], scale: float) -> str:
    """A bar of parts, each named by its class; `scale` is what the width stands for."""
    return "".join(
        f'<span class="{kind}" style="width:{100 * size / scale:.3f}%"></span>'
        for kind, size in parts.items()
        if size > 0
    )
