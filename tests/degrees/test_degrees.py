"""Heads, FFN and vocabularies that ranks do not divide: numbers, shares, collectives, caches, whole heads.

A small fixed part; `python -m tests.degrees` runs the whole grid, in any number of minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.degrees.checked import faults
from tests.degrees.decoders import Decoder

CASES: list[tuple[int, int, int, dict[str, Any]]] = [
    (4, 14, 14, {"fused": True}),
    (4, 14, 2, {"biases": True}),
    (3, 14, 2, {"written": "packed", "head_size": 16}),
    (7, 14, 2, {"written": "onnx", "head_norms": True}),
    (4, 6, 6, {"tied": True, "vocabulary": 997}),
    (4, 6, 3, {"written": "gqa", "head_size": 16, "biases": True}),
    (8, 20, 20, {"written": "onnx", "caches": False}),
    (8, 20, 4, {"fused": True, "head_norms": True, "head_size": 6}),
    (2, 15, 3, {"written": "packed", "head_size": 16, "biases": True}),
    (8, 15, 5, {"written": "onnx", "fused": True}),
    (3, 10, 5, {"caches": False, "fused": True, "biases": True}),
    (5, 7, 7, {"written": "gqa", "head_size": 16, "tied": True}),
    (6, 7, 1, {"head_norms": True}),
    (6, 12, 1, {"written": "packed", "head_size": 16}),
    (3, 5, 1, {"fused": True, "tied": True}),
    (8, 3, 3, {"written": "onnx", "ffn": 11 * 7}),
    (5, 6, 3, {"caches": False, "ffn": 352}),
    (7, 20, 4, {"biases": True}),
    (6, 16, 2, {"head_size": 16, "head_norms": True, "biases": True}),
    (3, 12, 1, {"head_size": 10, "written": "onnx", "tied": True, "vocabulary": 623}),
    (8, 5, 5, {"head_size": 6, "hidden": 30, "ffn": 78, "vocabulary": 1051}),
]


def shape_of(heads: int, kv: int, **rest: Any) -> Decoder:
    """A decoder as wide as its heads, with an FFN two and a half times as wide and an odd vocabulary."""
    width = heads * rest.get("head_size", 8)
    return Decoder(heads, kv, **({"hidden": width, "ffn": 5 * width // 2 + 1, "vocabulary": 503 + width} | rest))


@pytest.mark.parametrize(
    ("tp", "shape"),
    [
        pytest.param(tp, shape_of(heads, kv, **rest), id=f"tp{tp}-{heads}-{kv}-{k}")
        for k, (tp, heads, kv, rest) in enumerate(CASES)
    ],
)
def test_a_decoder_on_ranks_that_do_not_divide_it(tp: int, shape: Decoder, tmp_path: Path) -> None:
    assert faults(shape, tp, tmp_path / "bundle") == []
