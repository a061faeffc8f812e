"""Gelu variants are written in operators that TensorRT knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.sample import Sample
from tests.targets.lowering.lowered import build_faults, error_of

SAMPLES = [
    Sample("com.microsoft.QuickGelu", "(float[b,s,6] x) => (float[b,s,6] y) { y = com.microsoft.QuickGelu(x) }"),
    Sample(
        "com.microsoft.QuickGelu",
        "(float16[b,s,6] x) => (float16[b,s,6] y) { y = com.microsoft.QuickGelu<alpha = 1.3>(x) }",
        note="half precision",
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < (2e-3 if "half" in sample.note else 1e-6)


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults(SAMPLES, tmp_path) == {}
