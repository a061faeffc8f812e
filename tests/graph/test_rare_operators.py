"""Sizes that come out of operators that are rare in shape arithmetic: onnx's reference implementation knows them."""

from __future__ import annotations

from tests.graph.models import source
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.program import Program
from tpcompile.graph.shapes import infer_shapes

HEAD = """g (float[batch, 6] x) => (float[] y)
<int64 depth = {3}, int64[2] pair = {1, 4}, int64[1] one = {1}, int64[1] minus = {-1}, int64[2] nines = {9, 9}>
"""


def inferred(body: str) -> Program:
    program = to_program(source(HEAD + body))
    infer_shapes(program)
    return program


def test_repeats_of_one_axis() -> None:
    """As legacy exports spell repeat_interleave: [1, 4, 1] is a OneHot."""
    program = inferred("{ h = OneHot(one, depth, pair) r = Reshape(h, minus) u = Unsqueeze(x, one) y = Tile(u, r) }")
    sizes = program.outputs[0].sizes
    assert sizes is not None
    assert sizes[0] == program.inputs[0].sizes[0]  # type: ignore[index]
    assert sizes[1:] == ((4, 4), (6, 6))


def test_the_largest_and_an_element_written() -> None:
    program = inferred("{ t, i = TopK(pair, one) w = ScatterElements(nines, one, t) y = Add(x, w) }")
    values = {name: value.known[0].tolist() for name, value in program.values.items() if value.known is not None}
    assert [values[name] for name in "tiw"] == [[4], [1], [9, 4]]


def test_what_onnx_cannot_evaluate_is_not_known() -> None:
    program = inferred("{ t, i = TopK<axis = 3>(pair, one) y = Expand(x, t) }")
    assert program.values["t"].known is None
