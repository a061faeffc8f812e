#!/usr/bin/env python3
"""Draw `docs/layer.svg`, the README's picture of one transformer layer on four ranks: python docs/draw_layer.py"""

from __future__ import annotations

from pathlib import Path

RANKS = 4
COLOURS = ["#4c78a8", "#f58518", "#54a24b", "#b279a2"]
INK, FAINT, PAPER = "#24292f", "#d7dce2", "#ffffff"
LEFT, TOP, LANE = 66, 74, 64
"""Pixels: where the first column begins, where the first lane begins, the height of a lane."""
BOX, PILL, BAR, GAP = 44, 76, 26, 22
"""Pixels: side of a weight, width of a value, width of an AllReduce, space between columns."""
WIDTH, HEIGHT = 860, TOP + RANKS * LANE + 66


class Picture:
    """SVG elements in the order in which they are painted."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.x: float = LEFT

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str, radius: float = 3) -> None:
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" fill="{fill}"/>'
        )

    def text(self, x: float, y: float, words: str, size: int = 13, fill: str = INK, weight: str = "normal") -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{fill}" font-weight="{weight}"'
            f' text-anchor="middle">{words}</text>'
        )

    def step(self, width: float) -> float:
        """The left edge of the next column, `width` wide, with an arrow into it on every lane."""
        left = self.x
        if left > LEFT:
            for rank in range(RANKS):
                path = f"M{left - GAP + 2:g} {lane(rank):g}h{GAP - 6:g}"
                self.parts.append(f'<path d="{path}" stroke="{INK}" stroke-width="1.3" marker-end="url(#tip)"/>')
        self.x += width + GAP
        return left

    def heading(self, middle: float, title: str, note: str) -> None:
        """The words above a column."""
        self.text(middle, TOP - 34, title, 14, weight="bold")
        self.text(middle, TOP - 16, note, 12)

    def weight(self, title: str, cut: str) -> None:
        """A weight on every rank, only the rank's own part in colour: `cut` is "column" or "row"."""
        x, part = self.step(BOX), BOX / RANKS
        self.heading(x + BOX / 2, title, f"{cut} cut")
        for rank in range(RANKS):
            y = lane(rank) - BOX / 2
            self.rectangle(x, y, BOX, BOX, FAINT)
            if cut == "column":
                self.rectangle(x + rank * part, y, part, BOX, COLOURS[rank], 1)
            else:
                self.rectangle(x, y + rank * part, BOX, part, COLOURS[rank], 1)

    def value(self, words: list[str], title: str, note: str) -> None:
        """What each rank computes for itself."""
        x = self.step(PILL)
        self.heading(x + PILL / 2, title, note)
        for rank in range(RANKS):
            self.rectangle(x, lane(rank) - 14, PILL, 28, COLOURS[rank], 14)
            self.text(x + PILL / 2, lane(rank) + 4, words[rank], 12, PAPER)

    def whole(self, title: str, note: str) -> None:
        """A value that is the same on every rank."""
        width = PILL * 0.75
        x = self.step(width)
        self.heading(x + width / 2, title, note)
        for rank in range(RANKS):
            self.rectangle(x, lane(rank) - 14, width, 28, INK, 14)
            self.text(x + width / 2, lane(rank) + 4, "whole", 12, PAPER)

    def all_reduce(self) -> None:
        """A bar across all lanes: every rank gives its partial sum and gets the total."""
        x = self.step(BAR)
        self.rectangle(x, TOP, BAR, RANKS * LANE, "#cf222e", 6)
        middle_x, middle_y = x + BAR / 2, TOP + RANKS * LANE / 2
        self.parts.append(f'<g transform="rotate(-90 {middle_x:g} {middle_y:g})">')
        self.text(middle_x, middle_y + 5, "AllReduce (sum)", 14, PAPER, "bold")
        self.parts.append("</g>")

    def svg(self) -> str:
        tip = '<marker id="tip" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
                f'<defs>{tip}<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
                *self.parts,
                "</svg>\n",
            ]
        )


def lane(rank: int) -> float:
    """The height of the middle of a rank's lane."""
    return TOP + LANE * (rank + 0.5)


def draw() -> str:
    picture = Picture()
    picture.rectangle(0, 0, WIDTH, HEIGHT, PAPER, 8)
    for rank in range(RANKS):
        picture.text(32, lane(rank) + 5, f"rank {rank}", 13, COLOURS[rank], "bold")
    picture.whole("x", "in")
    picture.weight("Q K V", "column")
    picture.value(["heads 0-2", "heads 3-5", "heads 6-8", "heads 9-11"], "attention", "own heads")
    picture.weight("output", "row")
    picture.all_reduce()
    picture.whole("+ norm", "same")
    picture.weight("up", "column")
    picture.value(["quarter 0", "quarter 1", "quarter 2", "quarter 3"], "activation", "own quarter")
    picture.weight("down", "row")
    picture.all_reduce()
    picture.whole("+ norm", "out")
    foot = TOP + RANKS * LANE
    picture.text(
        WIDTH / 2, foot + 26, "Coloured: what a rank keeps of each weight and computes. Grey: what it never loads.", 13
    )
    picture.text(
        WIDTH / 2,
        foot + 46,
        "Between a column cut and a row cut nothing is sent; each pair ends in one sum over ranks.",
    )
    return picture.svg()


if __name__ == "__main__":
    (Path(__file__).parent / "layer.svg").write_text(draw(), encoding="utf-8")
