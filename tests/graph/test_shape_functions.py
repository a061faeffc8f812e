"""Shape functions: what they say of every operator is held against what a run gives."""

from __future__ import annotations

import onnx
import pytest

from tests.rules.forced import run_whole
from tests.rules.sample import Sample
from tests.rules.samples import SAMPLES
from tpcompile import pipeline
from tpcompile.graph.doors import open_model
from tpcompile.graph.program import Program
from tpcompile.graph.samples import Samples
from tpcompile.graph.shape_functions import SHAPE_FUNCTIONS, shape_function
from tpcompile.graph.shapes import infer_shapes
from tpcompile.plan.request import Request

WITHOUT_SCHEMA = [sample for sample in SAMPLES if sample.key in SHAPE_FUNCTIONS]


def inferred(model: onnx.ModelProto) -> tuple[Program, Samples]:
    """The program with what the walk alone finds, and its samples."""
    program = pipeline.start(open_model(model), Request()).program
    return program, infer_shapes(program).samples


@pytest.mark.parametrize("sample", WITHOUT_SCHEMA, ids=str)
def test_outputs_have_the_shapes_and_types_of_a_run(sample: Sample) -> None:
    model = sample.model()
    program, samples = inferred(model)
    for value, array in zip(program.outputs, run_whole(model, sample.feeds(model)), strict=True):
        assert value.sizes is not None
        assert [samples.at(sizes, sample.sizes) for sizes in value.sizes] == [*array.shape], value.name
        assert value.dtype == array.dtype.name


def only(graph: str) -> list[str | None]:
    """The first output's sizes in symbols, [] where nothing is known."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g {graph}')
    program, samples = inferred(model)
    return [samples.describe(sizes) for sizes in program.outputs[0].sizes or ()]


CACHED = """(float[b, s, 64] q, float[b, s, 32] k, float[b, s, 32] v, float[b, 2, {past}, 16] pk,
float[b, 2, {past}, 16] pv, int32[b] n) => (float[] nk) <int32 t = {{{total}}}>
{{ y, nk, nv = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2{more}>(q, k, v, pk, pv, n, t) }}"""


@pytest.mark.parametrize(
    "past, total, more, length",
    [
        ("p", 9, "", "p + s"),
        ("32", 9, "", "32"),
        ("8", 9, "", "9"),
        ("p", 9, ", local_window_size = 4, sliding_window_cache = 1", "p"),
    ],
    ids=["grows", "a buffer", "a fixed past grows", "a window"],
)
def test_a_cache_grows_unless_it_is_a_buffer(past: str, total: int, more: str, length: str) -> None:
    assert only(CACHED.format(past=past, total=total, more=more))[2] == length


def test_operands_that_do_not_fit_have_no_shape() -> None:
    assert not only("(float[b, 3, 6] x, float[4, 6, 5] w) => (float[] y) { y = com.microsoft.FusedMatMul(x, w) }")


def test_a_second_function_for_an_operator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^com\.microsoft\.BiasGelu has a shape function already$"):
        shape_function("com.microsoft", "BiasGelu")(lambda op: [])
