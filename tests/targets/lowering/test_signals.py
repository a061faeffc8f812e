"""Transforms, convolutions with a state and cuts without axes are written in operators that TensorRT knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.sample import Sample
from tests.rules.samples import fused, images, joins, norms, recurrences
from tests.targets.lowering.lowered import build_faults, error_of

OPERATORS = ("DFT", "CausalConvWithState", "LinearAttentionGate")
SAMPLES = [
    *(
        sample
        for family in (norms, images, recurrences, fused)
        for sample in family.SAMPLES
        if sample.key[1] in OPERATORS
    ),
    *(sample for sample in joins.SAMPLES if str(sample) == "Slice no axes"),
    *(
        Sample(
            "DFT",
            f"""(float[b, s, 5, {parts}] x) => (float[] y) <int64 axis = {{{axis}}}>
            {{ y = DFT<{more}>(x, "", axis) }}""".replace("<>", ""),
            opset=20,
            note=f"{parts} parts of axis {axis} {more}",
            sizes={"b": 2, "s": 6},
        )
        for parts, axis, more in (
            (1, 1, "onesided = 1"),
            (1, 2, "onesided = 1"),
            (2, 1, "inverse = 1"),
            (2, -2, "inverse = 1"),
            (2, 1, ""),
            (1, 2, ""),
        )
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < 2e-6


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults(SAMPLES, tmp_path) == {}
