"""What is added once must be added once, and what is not linear must see the sum (docs/faults.md, section D)."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.faults.ranks import Ranks, model, stored

DEGREES = [2, 3, 5]


@pytest.mark.parametrize("tp", DEGREES)
@pytest.mark.parametrize("scaled", ["", "alpha = 0.5, beta = 2.0, "], ids=["plain", "alpha and beta"])
def test_d1_the_bias_of_a_row_parallel_gemm_is_added_once(scaled: str, tp: int, tmp_path: Path) -> None:
    text = f"""(float[B, 4] x) => (float[B, 3] y) <float[4, 10] w_1, float[10] b_1, float[10, 3] w_2, float[3] b_2>
{{ u = Gemm (x, w_1, b_1) a = Tanh(u) y = Gemm <{scaled}transB = 0> (a, w_2, b_2) }}"""
    ranks = Ranks(model(text), tp, tmp_path)
    assert sum(rows for rows, _ in ranks.shapes("w_2")) == 10
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("tp", DEGREES)
def test_d2_parallel_branches_and_a_residual_are_summed_in_one_reduction(tp: int, tmp_path: Path) -> None:
    text = """(float[B, S, 7] x) => (float[B, S, 7] y)
<float[7, 10] u_1, float[10] b_u1, float[10, 7] d_1, float[7] b_1,
 float[7, 15] u_2, float[15] b_u2, float[15, 7] d_2, float[7] b_2>
{ h_1 = MatMul(x, u_1) i_1 = Add(h_1, b_u1) a_1 = Relu(i_1) o_1 = MatMul(a_1, d_1) p_1 = Add(o_1, b_1)
 h_2 = MatMul(x, u_2) i_2 = Add(h_2, b_u2) a_2 = Tanh(i_2) o_2 = MatMul(a_2, d_2) p_2 = Add(o_2, b_2)
 r = Add(x, p_1) y = Add(r, p_2) }"""
    ranks = Ranks(model(text), tp, tmp_path)
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("tp", DEGREES)
def test_d4_biases_and_scales_are_cut_by_what_they_are_not_by_their_rank(tp: int, tmp_path: Path) -> None:
    text = """(float[B, S, 6] x) => (float[B, S, 4] y)
<float[6, 10] w_1, float[10] b_1, float[10] per_channel, float whole, float[1, 1, 10] b_3d, float[10, 4] w_2>
{ u = MatMul(x, w_1) a = Add(u, b_1) s = Mul(a, whole) c = Mul(s, per_channel) d = Sub(c, b_3d) y = MatMul(d, w_2) }"""
    ranks = Ranks(model(text), tp, tmp_path)
    columns = [shape[1] for shape in ranks.shapes("w_1")]
    assert [shape[0] for shape in ranks.shapes("b_1")] == columns
    assert [shape[0] for shape in ranks.shapes("per_channel")] == columns
    assert [shape[2] for shape in ranks.shapes("b_3d")] == columns
    assert ranks.shapes("whole") == [()] * tp


@pytest.mark.parametrize("stored_once", [True, False], ids=["stored scalar", "scalar input"])
@pytest.mark.parametrize("tp", DEGREES)
def test_d5_a_scalar_added_to_a_pending_sum_is_added_once(stored_once: bool, tp: int, tmp_path: Path) -> None:
    inputs, constant = ("", ", float ten = {10}") if stored_once else (", float ten", "")
    text = f"""(float[B, 4] x{inputs}) => (float[B, 3] y) <float[4, 10] w_1, float[10, 3] w_2{constant}>
{{ u = MatMul(x, w_1) a = Relu(u) m = MatMul(a, w_2) y = Add(m, ten) }}"""
    Ranks(model(text), tp, tmp_path)


@pytest.mark.parametrize("tp", DEGREES)
@pytest.mark.parametrize("op", ["Abs", "Relu", "Sigmoid", "Sqrt", "Exp", "IsNaN", "Sign"])
def test_d7_what_is_not_linear_sees_the_sum(op: str, tp: int, tmp_path: Path) -> None:
    """Partial sums of mixed sign: |a| + |b| is not |a + b|."""
    result, squared = ("bool" if op == "IsNaN" else "float"), "q = Mul(m, m)" if op == "Sqrt" else "q = Identity(m)"
    text = f"""(float[B, 4] x) => ({result}[B, 3] y) <float[4, 10] w_1, float[10, 3] w_2>
{{ u = MatMul(x, w_1) a = Tanh(u) m = MatMul(a, w_2) {squared} y = {op}(q) }}"""
    ranks = Ranks(model(text), tp, tmp_path)
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("tp", DEGREES)
def test_d7_a_product_or_quotient_of_two_pending_sums_sees_both_sums(tp: int, tmp_path: Path) -> None:
    text = """(float[B, 4] x) => (float[B, 3] y, float[B, 3] z)
<float[4, 10] w_1, float[10, 3] w_2, float[10, 3] w_3>
{ u = MatMul(x, w_1) a = Tanh(u) m = MatMul(a, w_2) n = MatMul(a, w_3) y = Mul(m, n) z = Div(m, n) }"""
    ranks = Ranks(model(text), tp, tmp_path)
    assert ranks.collectives == {"all_reduce": 2}


@pytest.mark.parametrize("tp", DEGREES)
def test_d8_a_pending_sum_plus_a_value_that_is_whole(tp: int, tmp_path: Path) -> None:
    """A shared expert's partial sum and routed experts that were reduced before."""
    text = """(float[B, 4] x) => (float[B, 3] y)
<float[4, 10] w_1, float[10, 3] w_2, float[4, 15] e_1, float[15, 3] e_2, float[3] b>
{ u = MatMul(x, w_1) a = Relu(u) shared = MatMul(a, w_2)
 v = MatMul(x, e_1) c = Relu(v) routed = MatMul(c, e_2) once = Softmax <axis = -1> (routed)
 s = Add(shared, once) y = Add(s, b) }"""
    ranks = Ranks(model(text), tp, tmp_path)
    assert ranks.collectives == {"all_reduce": 2}


@pytest.mark.parametrize("tp", DEGREES)
def test_d8_a_pending_sum_read_twice_is_reduced_once(tp: int, tmp_path: Path) -> None:
    text = """(float[B, 4] x) => (float[B, 3] y, float[B, 3] m) <float[4, 10] w_1, float[10, 3] w_2>
{ u = MatMul(x, w_1) a = Relu(u) m = MatMul(a, w_2) t = Tanh(m) y = Sub(m, t) }"""
    ranks = Ranks(model(text), tp, tmp_path)
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("tp", DEGREES)
def test_d9_the_output_of_every_collective_is_read(tp: int, tmp_path: Path) -> None:
    text = """(float[B, 4] x) => (float[B, 3] y) <float[4, 10] w_1, float[10, 3] w_2, float[3] b>
{ u = MatMul(x, w_1) a = Relu(u) m = MatMul(a, w_2) s = Softmax <axis = -1> (m) y = Add(s, b) }"""
    ranks = Ranks(model(text), tp, tmp_path)
    for proto in ranks.models:
        assert unread(proto) == []


def unread(proto: onnx.ModelProto) -> list[str]:
    """Collectives whose output nothing reads."""
    read = {name for node in proto.graph.node for name in node.input} | {value.name for value in proto.graph.output}
    return [node.name for node in proto.graph.node if node.op_type == "DistCollective" and node.output[0] not in read]


def test_biases_lie_on_the_rank_that_starts_the_sum(tmp_path: Path) -> None:
    text = """(float[B, 4] x) => (float[B, 3] y) <float[4, 10] w_1, float[10, 3] w_2, float[3] b>
{ u = MatMul(x, w_1) a = Relu(u) m = MatMul(a, w_2) y = Add(m, b) }"""
    proto = model(text)
    ranks = Ranks(proto, 3, tmp_path)
    held = [stored(each, "b") for each in ranks.models]
    assert (held[0] == stored(proto, "b")).all() and not any(each.any() for each in held[1:])
