"""What weights and dimensions are to the model: the table of the tokens, the head, what layers add to."""

from __future__ import annotations

import pytest

import tpcompile
from tests.plan.models import TWO_LAYERS, model
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.landmarks import head_weights, residual_dims, token_tables

TANH_GELU = """(float[batch, 16] x) => (float[batch, 16] y)
<float[16, 36] up, float[36, 16] down, float small = {0.044715}>
{ u = MatMul(x, up)  c = Mul(u, u)  d = Mul(c, u)  s = Mul(d, small)  g = Add(u, s)  z = MatMul(g, down)
  y = Add(x, z) }"""
"""Within the activation stands u + f(u), along the width: no product sums over that there."""

SHARED_BIAS = """(float[batch, 8, seq, 8] bias, float[batch, 8, seq, 8] q, float[batch, seq, 24] x)
=> (float[batch, 8, seq, 8] y)
<float[64, 24] o, float[24, 64] up, int64[3] flat = {0, 0, 64}, int64[4] heads = {0, 0, 8, 8}>
{ s = Add(bias, q)  t = Transpose<perm = [0, 2, 1, 3]>(s)  r = Reshape(t, flat)  p = MatMul(r, o)  z = Add(x, p)
  u = MatMul(z, up)  v = Reshape(u, heads)  w = Transpose<perm = [0, 2, 1, 3]>(v)  k = Transpose<perm = [0, 1, 3, 2]>(w)
  scores = MatMul(w, k)  y = Add(scores, bias) }"""
"""Scores to which the bias of an earlier layer is added, as T5 does: heads are summed over in between, and are no
dimension that layers add to."""

TIED = """(int64[batch, seq] ids) => (float[batch, seq, 50] logits)
<float[50, 16] table, float[16, 16] w, float cap = {30.0}>
{ x = Gather(table, ids)  h = MatMul(x, w)  t = Transpose<perm = [1, 0]>(table)  m = MatMul(h, t)
  d = Div(m, cap)  e = Tanh(d)  logits = Mul(e, cap) }"""


def landmarks(text: str) -> tuple[Compilation, dict[str, set[str]]]:
    """The plan's compilation, and the names of tables and heads."""
    work = tpcompile.plan(model(text), 2)
    doors = {value.name: value for value in (*work.program.inputs, *work.program.outputs)}
    tokens, logits = (doors.get(work.roles.get(role, "")) for role in ("tokens", "logits"))
    found = {"tables": token_tables(work.analysis, tokens), "heads": head_weights(work.analysis, logits)}
    return work, {what: {value.name for value in values} for what, values in found.items()}


def residual_sizes(work: Compilation) -> set[int]:
    return {leaf.size for leaf in residual_dims(work.analysis)}


def test_a_decoder() -> None:
    work, found = landmarks(TWO_LAYERS)
    assert found == {"tables": {"table"}, "heads": {"head"}}
    assert residual_sizes(work) == {16}


def test_a_table_that_is_the_head_behind_a_cap() -> None:
    assert landmarks(TIED)[1] == {"tables": {"table"}, "heads": {"table"}}


def test_classes_of_few_are_no_head() -> None:
    text = TWO_LAYERS.replace("float[16, 50] head", "float[16, 3] head").replace("seq, 50] logits", "seq, 3] logits")
    assert landmarks(text)[1] == {"tables": {"table"}, "heads": set()}


@pytest.mark.parametrize(("text", "sizes"), [(TANH_GELU, {16}), (SHARED_BIAS, set())], ids=["activation", "scores"])
def test_not_every_sum_is_a_residual(text: str, sizes: set[int]) -> None:
    assert residual_sizes(landmarks(text)[0]) == sizes
