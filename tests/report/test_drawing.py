"""Drawings: boxes that do not meet, lines that lead down from what is read to who reads it."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from tpcompile.report_page.drawing import BOX, GAP, HEIGHT, ROW, SMALL, WIDEST, draw


@pytest.mark.parametrize("seed", range(12))
def test_boxes_stand_apart_and_lines_lead_down(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(1, 64)
    reads = [sorted(chance.sample(range(node), min(node, chance.randrange(4)))) for node in range(count)]
    found = draw(reads, [chance.random() < 0.3 for _ in range(count)])
    for node, (left, top, width) in enumerate(found.boxes):
        assert width in (BOX, SMALL) and top % ROW == 0
        assert left >= 0 and left + width <= found.width and top + HEIGHT <= found.height
        assert all(found.boxes[source][1] < top for source in reads[node])
    for top in {top for _, top, _ in found.boxes}:
        row = sorted(box for box in found.boxes if box[1] == top)
        assert len(row) <= WIDEST
        assert all(b[0] - a[0] - a[2] >= GAP - 1 for a, b in itertools.pairwise(row))
    assert len(found.lines) == len({(source, node) for node, sources in enumerate(reads) for source in sources})
    for line in found.lines:
        heights = [int(part) for part in re.findall(r"V(\d+)|(?:[\d-]+ ){5}(\d+)", line) for part in part if part]
        assert heights == sorted(heights)


def test_a_residual_goes_straight_down() -> None:
    found = draw([(), (0,), (1,), (2,), (0, 3)], [False] * 5)
    (residual,) = (line for line in found.lines if line.count("C") == 4)
    passing = {x for x in re.findall(r"(\d+) \d+V", residual)}
    assert len(passing) == 1


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw([], []).boxes == ()
