"""Scatters that reduce are written in operators that TensorRT knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.sample import Sample
from tests.rules.samples import lookups
from tests.targets.lowering.lowered import build_faults, error_of

BETWEEN = {"i": (-5, 5)}
SAMPLES = [
    *(sample for sample in lookups.SAMPLES if sample.op == "ScatterND" and "adds" in sample.note),
    Sample(
        "ScatterND",
        """(float[5, 7, b, 3] x, int64[s, 4, 2] i, float[s, 4, b, 3] u) => (float[] y)
        { y = ScatterND<reduction = "add">(x, i, u) }""",
        values=BETWEEN,
        note="adds to two axes, from the end",
    ),
    *(
        Sample(
            "ScatterElements",
            f"""({kind}[b, 5, 3] x, int64[b, s, 3] i, {kind}[b, s, 3] u) => ({kind}[] y)
            {{ y = ScatterElements<axis = 1, reduction = "{reduction}">(x, i, u) }}""",
            values=BETWEEN,
            note=f"{reduction} of {kind}",
        )
        for reduction, kind in (
            ("add", "float"),
            ("add", "int64"),
            ("mul", "float"),
            ("max", "float"),
            ("min", "int32"),
        )
    ),
    Sample(
        "ScatterElements",
        """(float[b] x, int32[s] i, float[s] u) => (float[] y) { y = ScatterElements<reduction = "add">(x, i, u) }""",
        values={"i": (-2, 2)},
        note="add to a varying axis",
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < 1e-6


def test_nothing_may_be_added(tmp_path: Path) -> None:
    """As to an expert that no token chose."""
    sample = Sample(
        "ScatterND",
        "(float[b, 5, 3] x, int64[s, 1] i, float[s, 5, 3] u) => (float[] y) "
        '{ y = ScatterND<reduction = "add">(x, i, u) }',
        sizes={"b": 4, "s": 0},
    )
    assert error_of(sample, tmp_path) == 0


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults(SAMPLES, tmp_path) == {}
