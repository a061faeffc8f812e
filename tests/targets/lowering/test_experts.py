"""Mixtures of experts are written in operators that TensorRT knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx.reference import ReferenceEvaluator

from tests.rules.reference_experts import QMoE
from tests.rules.sample import Sample
from tests.rules.samples import experts
from tests.targets.lowering.lowered import build_faults, error_of, largest_error, lowered, run

HALF = Sample(
    "com.microsoft.MoE",
    """(float16[6, 8] x, float16[6, 5] r) => (float16[] y) <float16[5, 12, 8] w, float16[5, 8, 12] v>
    { y = com.microsoft.MoE<k = 2, activation_type = "silu">(x, r, w, "", v) }""",
    note="half precision",
)
SAMPLES = [
    *experts.SAMPLES,
    Sample(
        "com.microsoft.MoE",
        """(float[6, 8] x, float[6, 5] r) => (float[] y) <float[5, 24, 8] w, float[5, 24] c, float[5, 8, 12] v>
        { y = com.microsoft.MoE<k = 3, activation_type = "swiglu", swiglu_fusion = 1, activation_alpha = 1.7,
          activation_beta = 1.0, swiglu_limit = 1.5>(x, r, w, c, v) }""",
        note="clamped, shares of all",
    ),
    Sample(
        "com.microsoft.QMoE",
        """(float[6, 32] x, float[6, 5] r) => (float[] y)
        <uint8[5, 48, 16] w, float[5, 48] s, uint8[5, 32, 24] v, float[5, 32] t>
        { y = com.microsoft.QMoE<k = 2, activation_type = "silu">(x, r, w, s, "", v, t) }""",
        note="shares of the chosen ones, without being told",
        values={"s": (0.01, 0.03), "t": (0.01, 0.03)},
    ),
    *(
        Sample(
            "com.microsoft.QMoE",
            f"""(float[6, 32] x, float[6, 5] r, float[6, 5] m) => (float[] y)
            <uint8[5, 48, 16] w, float[5, 48] s, uint8[5, 32, 24] v, float[5, 32] t> {{
                y = com.microsoft.QMoE<k = 2, normalize_routing_weights = {normalised}, activation_type = "silu">
                    (x, r, w, s, "", v, t, "", "", "", "", "", "", "", m)
            }}""",
            note=f"shares of their own, normalised: {normalised}",
            values={"s": (0.01, 0.03), "t": (0.01, 0.03), "m": (0.1, 1)},
        )
        for normalised in (0, 1)
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    if "8 bits in blocks" not in sample.note:  # for which ONNX Runtime rounds activations
        assert error_of(sample, tmp_path) < 1e-5
        return
    feeds = sample.feeds(sample.model())
    exact = ReferenceEvaluator(sample.model(), new_ops=[QMoE]).run(None, feeds)
    assert largest_error(exact, run(lowered(sample, tmp_path).model, tmp_path, feeds)) < 1e-5


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults([*SAMPLES, HALF], tmp_path) == {}
