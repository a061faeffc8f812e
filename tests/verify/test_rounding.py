"""Sources that round activations: one step here and there is no fault, a fault is one all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tpcompile
from tests.rules.sample import drawn
from tests.verify.bundles import edit_rank, store, stored
from tpcompile.errors import NumbersDiffer
from tpcompile.verify.command import verify_bundle
from tpcompile.verify.rounding import rounded_values

DYNAMIC = """(float[batch, 3, 32] x) => (float[batch, 3, 32] y)
<float[32, 64] first, uint8[64, 32] second, float scale, uint8 zero, float[32] bias>
{
    hidden = MatMul(x, first)
    positive = Relu(hidden)
    few, step, middle = DynamicQuantizeLinear(positive)
    whole = MatMulInteger(few, second, middle, zero)
    number = Cast<to = 1>(whole)
    both = Mul(step, scale)
    product = Mul(number, both)
    y = Add(product, bias)
}"""


def dynamic() -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> dynamic {DYNAMIC}')
    made = {name for node in model.graph.node for name in node.output}
    for info in [info for info in model.graph.value_info if info.name not in made]:
        tensor = info.type.tensor_type
        array = drawn(info.name, tensor.elem_type, [dim.dim_value for dim in tensor.shape.dim])
        array = np.array({"scale": 0.01, "zero": 117}.get(info.name, array)).astype(array.dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, info.name))
        model.graph.value_info.remove(info)
    return model


def test_what_comes_after_rounding_is_rounded() -> None:
    named = {"few", "step", "middle", "whole", "number", "both", "product", "y"}
    assert rounded_values(dynamic().graph) == named


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_a_bundle_of_it_passes(tmp_path: Path, tp: int) -> None:
    tpcompile.compile(dynamic(), tp, tmp_path / "out", objective="memory")
    report = verify_bundle(tmp_path / "out", dynamic())
    assert [str(fault) for fault in report.faults] == []
    assert report.trials[0].limits == {"y": 0.02}


def test_a_bias_that_counts_twice_is_found(tmp_path: Path) -> None:
    tpcompile.compile(dynamic(), 2, tmp_path / "out", objective="memory")
    for rank in range(2):
        edit_rank(tmp_path / "out", rank, lambda model: store(model, "bias", 2 * stored(model, "bias")))
    with pytest.raises(NumbersDiffer):
        verify_bundle(tmp_path / "out", dynamic()).raise_if_bad()
