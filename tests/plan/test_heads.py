"""Heads that do not divide: uneven, grouped, fewer than ranks. No rank straddles a kv head; the numbers stay."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpcompile
from tests.plan.models import LIMIT, attention, error_of, held

SIZE = 4
"""Elements of a head."""


def heads(bundle: Path, weight: str, count: int) -> list[list[int]]:
    """The heads that each rank holds of q, k or v."""
    found = []
    for ranges in held(bundle, weight):
        columns = None if ranges is None else ranges[1]
        spans = [[0, count * SIZE]] if columns is None else columns
        assert all(start % SIZE == 0 and stop % SIZE == 0 for start, stop in spans), "a head is in pieces"
        found.append([head for start, stop in spans for head in range(start // SIZE, stop // SIZE)])
    return found


@pytest.mark.parametrize(
    ("tp", "q_heads", "kv_heads", "q_each", "kv_each"),
    [
        (4, 14, 14, [4, 4, 3, 3], [4, 4, 3, 3]),
        (5, 12, 12, [3, 3, 2, 2, 2], [3, 3, 2, 2, 2]),
        (6, 12, 12, [2] * 6, [2] * 6),
        (7, 12, 12, [2, 2, 2, 2, 2, 1, 1], [2, 2, 2, 2, 2, 1, 1]),
        (2, 14, 2, [7, 7], [1, 1]),
        (4, 14, 2, [4, 3, 4, 3], [1, 1, 1, 1]),
        (8, 16, 4, [2] * 8, [1] * 8),
        (6, 12, 4, [2] * 6, [2] * 6),
        (7, 14, 2, [2] * 7, [2] * 7),
        (2, 12, 1, [6, 6], [1, 1]),
        (4, 12, 1, [3, 3, 3, 3], [1, 1, 1, 1]),
        (2, 12, 3, [6, 6], [3, 3]),
        (4, 24, 3, [6, 6, 6, 6], [3, 3, 3, 3]),
    ],
)
def test_heads_of_each_rank(
    tp: int, q_heads: int, kv_heads: int, q_each: list[int], kv_each: list[int], tmp_path: Path
) -> None:
    source = attention(q_heads, kv_heads, SIZE)
    bundle = tpcompile.compile(source, tp, tmp_path / "b")
    assert error_of(source, tmp_path / "b") <= LIMIT
    assert [call.op for call in bundle.manifest.collectives] == ["all_reduce"]
    queries, keys = heads(tmp_path / "b", "q", q_heads), heads(tmp_path / "b", "k", kv_heads)
    assert heads(tmp_path / "b", "v", kv_heads) == keys
    assert sorted(map(len, queries)) == sorted(q_each) and sorted(map(len, keys)) == sorted(kv_each)
    group = q_heads // kv_heads
    for mine, served in zip(queries, keys, strict=True):
        assert {head // group for head in mine} <= set(served), "a query without its key"


def test_fourteen_heads_over_four_ranks(tmp_path: Path) -> None:
    tpcompile.compile(attention(14, 14), 4, tmp_path / "b")
    assert [len(mine) for mine in heads(tmp_path / "b", "q", 14)] == [4, 4, 3, 3]


def test_two_kv_heads_over_four_ranks(tmp_path: Path) -> None:
    tpcompile.compile(attention(14, 2), 4, tmp_path / "b")
    assert [len(mine) for mine in heads(tmp_path / "b", "q", 14)] == [4, 3, 4, 3]
    assert heads(tmp_path / "b", "k", 2) == [[0], [0], [1], [1]]


@pytest.mark.parametrize(("tp", "kv_heads"), [(5, 4), (7, 4), (4, 3), (8, 4)])
def test_ranks_that_suit_neither_kind_of_head(tp: int, kv_heads: int, tmp_path: Path) -> None:
    """Whatever is cut instead, the numbers stay."""
    source = attention(12, kv_heads)
    bundle = tpcompile.compile(source, tp, tmp_path / "b", objective="memory")
    assert error_of(source, tmp_path / "b") <= LIMIT
    assert bundle.plan is not None and bundle.plan.cuts_something
