"""Norms, activations and products of ONNX Runtime are written in operators that TensorRT knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.rules.sample import Sample
from tests.rules.samples import fused, norms
from tests.targets.lowering.lowered import build_faults, error_of, lowered, run
from tpcompile.targets.lowering.registry import LOWERINGS

HALF = "half precision"
SAMPLES = [
    *(
        sample
        for sample in (*fused.SAMPLES, *norms.SAMPLES)
        if sample.key in LOWERINGS and sample.note != "two axes"  # which TensorRT takes as they are
    ),
    Sample(
        "com.microsoft.QuickGelu", "(float16[b,s,6] x) => (float16[] y) { y = com.microsoft.QuickGelu(x) }", note=HALF
    ),
    Sample(
        "com.microsoft.FastGelu", "(float16[b,s,6] x) => (float16[] y) { y = com.microsoft.FastGelu(x) }", note=HALF
    ),
    Sample(
        "com.microsoft.BiasGelu",
        "(float16[b,s,6] x) => (float16[] y) <float16[6] c> { y = com.microsoft.BiasGelu(x, c) }",
        note=HALF,
    ),
    Sample(
        "com.microsoft.SkipLayerNormalization",
        """(float16[b,s,10] x, float16[b,s,10] z) => (float16[] y, float16[] r) <float16[10] w, float16[10] c>
        { y, m, d, r = com.microsoft.SkipLayerNormalization<epsilon = 0.01>(x, z, w, c) }""",
        note=HALF,
        opset=14,
    ),
    Sample(
        "com.microsoft.SkipSimplifiedLayerNormalization",
        """(float16[b,s,10] x, float16[b,s,10] z) => (float16[] y, float16[] r) <float16[10] w>
        { y, m, d, r = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.01>(x, z, w) }""",
        note=HALF,
    ),
    Sample(
        "com.microsoft.FusedMatMul",
        """(float16[b,s,6] x) => (float16[] y) <float16[10,6] w>
        { y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.3>(x, w) }""",
        note=HALF,
    ),
    Sample("MatMul", "(float[6] x, float[b,6,s] z) => (float[] y) { y = MatMul(x, z) }", note="vector left"),
    Sample("MatMul", "(float[b,s,6] x, float[6] z) => (float[] y) { y = MatMul(x, z) }", note="vector right"),
    Sample("MatMul", "(float[6] x, float[6] z) => (float[] y) { y = MatMul(x, z) }", note="vectors"),
    *(
        Sample(
            "com.microsoft.FusedGemm",
            f"""(float[7,6] x) => (float[] y) <float[6,10] w>
            {{ y = com.microsoft.FusedGemm<activation = "{kind}"{more}>(x, w) }}""",
            note=kind,
        )
        for kind, more in (
            ("LeakyRelu", ", activation_alpha = 0.3"),
            ("Sigmoid", ""),
            ("HardSigmoid", ", activation_alpha = 0.3, activation_beta = 0.6"),
        )
    ),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < (2e-3 if sample.note == HALF else 1e-5)


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults(SAMPLES, tmp_path) == {}


def test_a_clamped_gate_follows_its_formula(tmp_path: Path) -> None:
    sample = Sample(
        "com.microsoft.SwiGLU",
        """(float[b,s,6] x, float[b,s,6] z) => (float[] y)
        { y = com.microsoft.SwiGLU<activation_alpha = 1.7, activation_beta = 1.0, limit = 0.7>(x, z) }""",
    )
    feeds = sample.feeds(sample.model())
    gate, up = np.minimum(feeds["x"], 0.7), np.clip(feeds["z"], -0.7, 0.7)
    (y,) = run(lowered(sample, tmp_path).model, tmp_path, feeds)
    assert y == pytest.approx(gate / (1 + np.exp(-1.7 * gate)) * (up + 1), rel=1e-5)
