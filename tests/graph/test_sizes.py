"""Sizes: which symbols the graph itself says are one, or a number; tables that end do not make numbers of symbols."""

from __future__ import annotations

import pytest

from tests import zoo
from tests.graph.models import source
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.program import Program, Sizes
from tpcompile.graph.read import checked
from tpcompile.graph.samples import Samples
from tpcompile.graph.shapes import infer_shapes


def walked(text: str) -> tuple[Program, Samples]:
    program = to_program(source(text))
    return program, infer_shapes(program).samples


def sizes(program: Program, name: str) -> tuple[Sizes, ...]:
    found = program.values[name].sizes
    assert found is not None
    return found


def test_a_length_baked_into_a_reshape_is_a_number() -> None:
    """torch's tracer writes the length of the example into nn.MultiheadAttention, whatever axes are said to be free."""
    program, samples = walked("""g (float[batch, seq, 6] x) => (float[seq, n, 3] y)
    <int64[1] width = {3}, int64[1] length = {7}, int64[1] two = {2}>
    { t = Transpose<perm = [1, 0, 2]>(x)  s = Shape<start = 0, end = 1>(x)  b = Mul(s, two)
      target = Concat<axis = 0>(length, b, width)  y = Reshape(t, target) }""")
    assert samples.symbols["seq"] == (7, 7)
    batch = samples.symbols["batch"]
    assert len(set(batch)) == 2
    assert sizes(program, "x") == (batch, (7, 7), (6, 6))
    assert sizes(program, "y") == ((7, 7), tuple(2 * size for size in batch), (3, 3))


def test_a_table_of_64_positions_leaves_lengths_free() -> None:
    program, samples = walked("""g
    (float[batch, heads, seq, 4] q, float[batch, heads, past, 4] cache, float[a, b] other,
     float[1, 1, 64, 64] table)
    => (float[batch, heads, seq, total] y, float[a, b] z)
    <int64[1] limit = {64}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] three = {3}>
    { s = Shape<start = 2, end = 3>(q)  p = Shape<start = 2, end = 3>(cache)  t = Add(s, p)
      low = Min(p, limit)  high = Min(t, limit)  rows = Slice(table, low, high, two)
      mask = Slice(rows, zero, high, three)
      k = Concat<axis = 2>(cache, q)  k_t = Transpose<perm = [0, 1, 3, 2]>(k)  scores = MatMul(q, k_t)
      y = Add(scores, mask)  z = Neg(other) }""")
    seq, past = samples.symbols["seq"], samples.symbols["past"]
    assert len(set(seq)) == 2 and len(set(past)) == 2
    total = tuple(a + b for a, b in zip(seq, past, strict=True))
    assert max(total) <= 64
    assert sizes(program, "y")[2:] == sizes(program, "mask")[2:] == (seq, total)


def test_two_caches_with_names_of_their_own_are_of_one_length() -> None:
    program, samples = walked("""g (float[b, 2, s, 4] x, float[b1, 2, p1, 4] keys, float[b2, 2, p2, 4] values)
    => (float[b, 2, s, 4] y)
    { k = Concat<axis = 2>(keys, x)  v = Concat<axis = 2>(values, x)  k_t = Transpose<perm = [0, 1, 3, 2]>(k)
      a = MatMul(x, k_t)  y = MatMul(a, v) }""")
    assert samples.symbols["p1"] == samples.symbols["p2"] != samples.symbols["s"]
    assert samples.symbols["b"] == samples.symbols["b1"] == samples.symbols["b2"]
    assert sizes(program, "k") == sizes(program, "v")


def test_a_mask_covers_past_and_new_tokens() -> None:
    """OPT counts positions by the mask and drops those of the past: what is left is as long as the tokens."""
    program, samples = walked("""g (float[batch, seq, 4] x, int64[batch, total] mask, float[batch, 2, past, 4] cache)
    => (float[batch, seq, 4] y)
    <int64[1] one = {1}, int64 axis = {1}, int64[1] end = {9223372036854775807}>
    { counted = CumSum(mask, axis)  p = Shape<start = 2, end = 3>(cache)  new = Slice(counted, p, end, one)
      positions = Cast<to = 1>(new)  two = Constant<value = int64[1] {2}>()  column = Unsqueeze(positions, two)
      y = Add(x, column) }""")
    seq, past, total = (samples.symbols[name] for name in ("seq", "past", "total"))
    assert len(set(seq)) == len(set(past)) == 2
    assert total == tuple(a + b for a, b in zip(seq, past, strict=True))
    assert sizes(program, "new") == (samples.symbols["batch"], seq)


def test_a_reshape_with_an_open_size_tells_which_batches_are_one() -> None:
    """Keys of an encoder, viewed as the decoder's batch: nothing else says that both are of one size."""
    _, samples = walked("""g (int64[b, length] ids, float[b1, 10, 6] states) => (float[b, n, 2, 3] y)
    <int64[1] open = {-1}, int64[2] heads = {2, 3}>
    { s = Shape<start = 0, end = 1>(ids)  target = Concat<axis = 0>(s, open, heads)  y = Reshape(states, target) }""")
    assert samples.symbols["b"] == samples.symbols["b1"]


def test_positions_counted_by_nonzero_are_known() -> None:
    """torch's tracer spells positions as the places of ones."""
    program, samples = walked("""g (float[batch, seq, 4] x) => (float[seq, 4] y)
    { s = Shape<start = 1, end = 2>(x)  ones = ConstantOfShape<value = int64[1] {1}>(s)  places = NonZero(ones)
      n = Shape<start = 1, end = 2>(places)  four = Constant<value = int64[1] {4}>()  d = Concat<axis = 0>(n, four)
      y = ConstantOfShape(d) }""")
    seq = samples.symbols["seq"]
    assert sizes(program, "places") == ((1, 1), seq)
    assert sizes(program, "y") == (seq, (4, 4))


def test_sound_is_long_enough_to_be_divided() -> None:
    program, samples = walked("""g
    (float[batch, samples] x, float[batch, 8, frames] y, float[1, 1, 10] k, float[4, 8, 3] m)
    => (float[batch, 1, n] z, float[batch, 4, f] v)
    <int64[1] one = {1}>
    { a = Unsqueeze(x, one)  b = Conv<strides = [5]>(a, k)  z = Conv<strides = [64]>(b, k)
      c = Conv<strides = [2]>(y, m)  v = Relu(c) }""")
    assert min(samples.symbols["samples"]) >= 4096
    assert min(samples.symbols["frames"]) >= 224
    assert min(sizes(program, "z")[2]) > 1


def test_samples_that_leave_nothing_tell_nothing() -> None:
    """A length that is 0 for one sample and more for the other would line up with anything."""
    program, _ = walked("""g (float[batch, length, 4] x) => (float[batch, n, 4] y)
    { from = Constant<value = int64[1] {13}>()  to = Constant<value = int64[1] {1000}>()
      axis = Constant<value = int64[1] {1}>()  y = Slice(x, from, to, axis) }""")
    assert program.values["y"].sizes is None


def test_windows_of_an_image_are_whole_where_the_graph_takes_them_to_be() -> None:
    """Swin's export: h / 4 windows of 4 rows, whatever h; only sizes that 4 divides fit through the Reshape."""
    program, samples = walked("""g (float[batch, 6, h, w] x) => (float[] y)
    <int64[1] batches = {0}, int64[1] rows = {2}, int64[1] columns = {3}, int64[1] four = {4}, int64[1] six = {6}>
    { s = Shape(x)  n = Gather(s, batches)  r = Gather(s, rows)  c = Gather(s, columns)  a = Div(r, four)
      b = Div(c, four)  t = Concat<axis = 0>(n, six, a, four, b, four)  z = Reshape(x, t)  y = Relu(z) }""")
    assert [row % 32 for row in samples.symbols["h"]] == [0, 0]
    assert sizes(program, "y")[2] == tuple(row // 4 for row in samples.symbols["h"])


def test_lengths_of_a_split_are_those_of_its_parts_whatever_the_axis_is() -> None:
    """dbrx: as many experts were hit as when the model was exported."""
    program, _ = walked("""g (float[5, 3] x) => (int64[] y, int64[] z)
    <int64[2] lengths = {3, 1}, float zero = {0}>
    { b = Greater(x, zero)  n = NonZero(b)  t = Transpose(n)  y, z = Split<axis = 0>(t, lengths) }""")
    assert sizes(program, "y") == ((3, 3), (2, 2))
    assert sizes(program, "z") == ((1, 1), (2, 2))


@pytest.mark.parametrize("name", zoo.names())
def test_exporters_graphs_need_no_other_inference(name: str) -> None:
    program = to_program(checked(zoo.model(name), folder=None, file=name, own_bytes=None))
    infer_shapes(program)
    assert [value.name for value in program.values.values() if value.sizes is None] == []


def test_another_inference_is_asked_once_and_only_where_the_walk_knows_nothing() -> None:
    body = "{ a = Abs(x) y = Loop(n, c, a) <body = b (int64 i, bool g, float[4] v) => (bool o, float[4] w) "
    body += "{ o = Identity(g) w = Neg(v) }> z = Relu(y) }"
    program = to_program(source(f"g (float[4] x, int64 n, bool c) => (float[4] z) {body}"))
    asked = []

    def symbolic(samples: Samples) -> dict[str, tuple[str, tuple[Sizes, ...]]]:
        asked.append(samples)
        return {"y": ("float32", ((4, 4),)), "a": ("float32", ((9, 9),))}

    infer_shapes(program, symbolic)
    assert len(asked) == 1
    assert sizes(program, "a") == sizes(program, "z") == ((4, 4),)
