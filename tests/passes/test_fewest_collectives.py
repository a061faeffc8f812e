"""No collective that another one makes needless: each graph here is also run on all its ranks and compared."""

from __future__ import annotations

import pytest

from tests.passes.shown import Rewritten, rewritten


def traffic(found: Rewritten) -> list[str]:
    """Every collective with its value and its bytes."""
    return [f"{call.op} {call.value.name} {call.nbytes}" for call in found.forced.local.collectives]


PLACE = "int64 last = {-1}, int64[1] from = {-1}, int64[1] end = {9223372036854775807}, int64[1] one = {1}"
LAST = {
    "Gather": "y = Gather<axis = 1>(logits, last)",
    "Slice": "y = Slice(logits, from, end, one)",
}


@pytest.mark.parametrize("op", LAST)
def test_of_the_logits_only_the_last_position_is_gathered(op: str) -> None:
    found = rewritten(
        f"(float[b, s, 6] h) => (float[] y) <float[6, 10] w, {PLACE}> {{ logits = MatMul(h, w) {LAST[op]} }}",
        tp=2,
        cuts={"w[1]": (0,)},
    )
    assert traffic(found) == ["all_gather y b*40"]


@pytest.mark.parametrize("op", LAST)
def test_of_a_pending_sum_only_the_last_position_is_reduced(op: str) -> None:
    found = rewritten(
        f"(float[b, s, 6] h) => (float[] y) <float[6, 10] w, {PLACE}> {{ logits = MatMul(h, w) {LAST[op]} }}",
        tp=2,
        cuts={"h[2]": (0,)},
    )
    assert traffic(found) == ["all_reduce y b*40"]


def test_three_parallel_branches_with_biases_are_one_sum() -> None:
    found = rewritten(
        """(float[b, 6] p, float[b, 8] q, float[b, 9] r) => (float[] y)
        <float[6, 10] u, float[8, 10] v, float[9, 10] w, float[10] c, float[10] d>
        { k = MatMul(p, u) kc = Add(k, c) l = MatMul(q, v) ld = Add(d, l) m = MatMul(r, w)
          s = Sub(kc, ld) y = Add(s, m) }""",
        tp=3,
        cuts={"p[1]": (0,), "q[1]": (0,), "r[1]": (0,)},
    )
    assert traffic(found) == ["all_reduce y b*40"]


def test_sums_over_different_ranks_are_one_sum_over_all() -> None:
    found = rewritten(
        """(float[b, 6] p, float[b, 8] q) => (float[] y) <float[6, 10] u, float[8, 10] v>
        { k = MatMul(p, u) l = MatMul(q, v) y = Add(k, l) }""",
        tp=4,
        cuts={"p[1]": (0,), "q[1]": (1,)},
    )
    assert traffic(found) == ["all_reduce y b*40"]


def test_experts_that_are_added_up_are_one_sum() -> None:
    """Each expert's result is scaled by its gate first; a sum of sums that wait is a sum that waits."""
    found = rewritten(
        """(float[b, 6] p, float[b, 1] g, float[b, 1] h) => (float[] y) <float[6, 10] u, float[6, 10] v>
        { k = MatMul(p, u) kg = Mul(k, g) l = MatMul(p, v) lh = Mul(h, l) y = Add(kg, lh) }""",
        tp=2,
        cuts={"p[1]": (0,)},
    )
    assert traffic(found) == ["all_reduce y b*40"]


def test_what_several_read_is_gathered_once() -> None:
    found = rewritten(
        """(float[b, 6] x) => (float[] y, float[] z) <float[6, 10] w, float[10] g>
        { t = MatMul(x, w) y = Softmax(t) z = LayerNormalization(t, g) }""",
        tp=2,
        cuts={"w[1]": (0,)},
    )
    assert traffic(found) == ["all_gather t b*40"]


def test_what_several_read_in_their_own_forms_is_summed_once() -> None:
    found = rewritten(
        """(float[b, s, 6] x) => (float[] y, float[] z) <float[6, 12] w, int64[4] heads = {0, 0, 3, 4}>
        { t = MatMul(x, w) h = Reshape(t, heads) r = Transpose<perm = [0, 2, 1]>(t) y = Relu(h) z = Relu(r) }""",
        tp=2,
        cuts={"x[2]": (0,)},
    )
    assert traffic(found) == ["all_reduce t b*s*48"]


def test_a_wider_value_is_summed_before_it_gets_wide() -> None:
    """Where an operator makes more of a value, the sum is taken in front of it."""
    found = rewritten(
        """(float[b, 6] x) => (float[] y) <float[6, 10] w, int64[2] twice = {1, 2}>
        { t = MatMul(x, w) y = Tile(t, twice) }""",
        tp=2,
        cuts={"x[1]": (0,)},
    )
    assert traffic(found) == ["all_reduce t b*40"]


def test_a_narrower_value_is_summed_after_it_got_narrow() -> None:
    found = rewritten(
        "(float[b, s, 6] x) => (float[] y) <float[6, 10] w> { t = MatMul(x, w) y = ReduceMean(t) }",
        tp=2,
        cuts={"x[2]": (0,)},
        opset=17,
    )
    assert traffic(found) == ["all_reduce y 4"]


def test_what_is_summed_is_not_gathered_after() -> None:
    """A sum is whole on every rank: its readers take their parts of it, and nothing is left to gather."""
    found = rewritten(
        """(float[b, 6] x) => (float[] y, float[] z) <float[6, 10] w, float[10, 8] v>
        { t = MatMul(x, w) r = Relu(t) y = MatMul(r, v) z = Softmax(t) }""",
        tp=2,
        cuts={"x[1]": (0,), "v[1]": (0,)},
    )
    assert traffic(found) == ["all_reduce t b*40", "all_gather y b*32"]


def test_a_gather_along_the_first_axis_needs_no_transpose() -> None:
    found = rewritten("(float[6, 8] x) => (float[] y) { y = Relu(x) }", tp=2, cuts={"x[0]": (0,)})
    assert [line.split(" = ")[1].split("(")[0] for line in found.rank(0)] == ["Slice", "Relu", "all_gather"]


def test_a_gather_along_another_axis_goes_by_the_first() -> None:
    found = rewritten("(float[6, 8] x) => (float[] y) { y = Relu(x) }", tp=2, cuts={"x[1]": (0,)})
    assert found.rank(0) == [
        "x.part = Slice(x, [0], [4], [1])",
        "y.local = Relu(x.part)",
        "y.front = Transpose<perm=[1, 0]>(y.local)",
        "y.gathered = all_gather(y.front)",
        "y = Transpose<perm=[1, 0]>(y.gathered)",
    ]
