"""The reference of mixtures of experts gives ONNX Runtime's numbers where that has a kernel for CPUs."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tests.rules.forced import run_whole
from tests.rules.reference_experts import MoE, QMoE
from tests.rules.sample import Sample
from tests.rules.samples.experts import SAMPLES


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_it_is_what_onnxruntime_computes(sample: Sample) -> None:
    model = sample.model()
    feeds = sample.feeds(model)
    found = np.asarray(ReferenceEvaluator(model, new_ops=[MoE, QMoE]).run(None, feeds)[0])
    rounds = "8 bits in blocks" in sample.note  # its kernel makes 8 bits of activations as well
    limit = (2e-2 if rounds else 1e-5) * np.abs(found).max()
    np.testing.assert_allclose(run_whole(model, feeds)[0], found, rtol=0, atol=limit)
