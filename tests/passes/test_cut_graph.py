"""What cutting does to a graph, before and after in a few lines; every graph here is also run and compared."""

from __future__ import annotations

import re

import pytest

from tests.passes.shown import rewritten
from tpcompile.errors import Refused


def test_a_row_parallel_bias_lives_on_one_rank_only() -> None:
    found = rewritten(
        "(float[b, 6] x) => (float[] y) <float[6, 10] w, float[10] c> { t = MatMul(x, w) y = Add(t, c) }",
        tp=2,
        cuts={"x[1]": (0,)},
    )
    assert found.rank(0) == [
        "x.part = Slice(x, [0], [3], [1])",
        "t = MatMul(x.part, w[3, 10])",
        "y.local = Add(t, c[10])",
        "y = all_reduce(y.local)",
    ]
    assert found.rank(1) == [
        "x.part = Slice(x, [3], [6], [1])",
        "t = MatMul(x.part, w[3, 10])",
        "y.local = Add(t, [10] zeros)",
        "y = all_reduce(y.local)",
    ]


def test_the_bias_of_a_row_parallel_gemm_is_added_once() -> None:
    found = rewritten(
        "(float[b, 6] x) => (float[] y) <float[10, 6] w, float[10] c> "
        "{ y = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(x, w, c) }",
        tp=2,
        cuts={"x[1]": (0,)},
    )
    assert found.rank(0)[1] == "y.local = Gemm<alpha=0.5, beta=2.0, transB=1>(x.part, w[10, 3], c[10])"
    assert found.rank(1)[1] == "y.local = Gemm<alpha=0.5, beta=2.0, transB=1>(x.part, w[10, 3], [10] zeros)"


def test_a_column_parallel_bias_is_cut_with_its_weight() -> None:
    found = rewritten(
        "(float[b, 6] x) => (float[] y) <float[6, 8] w, float[8] c, float[8, 6] v> "
        "{ t = MatMul(x, w) u = Add(t, c) a = Relu(u) y = MatMul(a, v) }",
        tp=4,
        cuts={"w[1]": (0, 1)},
    )
    assert found.rank(3) == [
        "t = MatMul(x, w[6, 2])",
        "u = Add(t, c[2])",
        "a = Relu(u)",
        "y.local = MatMul(a, v[2, 6])",
        "y = all_reduce(y.local)",
    ]


def test_residual_attention_and_mlp_are_reduced_once() -> None:
    """GPT-J, Falcon, GPT-NeoX: x + attention(x) + mlp(x)."""
    found = rewritten(
        """(float[b, 6] p, float[b, 8] q, float[b, 10] x) => (float[] y) <float[6, 10] w, float[8, 10] v>
        { t = MatMul(p, w) u = MatMul(q, v) s = Add(x, t) y = Add(s, u) }""",
        tp=2,
        cuts={"p[1]": (0,), "q[1]": (0,)},
    )
    assert found.collectives == [("all_reduce", "y")]
    assert found.rank(1)[-4:] == [
        "x.once = Where(False, x, 0)",
        "s = Add(x.once, t)",
        "y.local = Add(s, u)",
        "y = all_reduce(y.local)",
    ]


def test_a_residual_after_one_product_is_added_after_its_sum() -> None:
    found = rewritten(
        "(float[b, 6] p, float[b, 10] x) => (float[] y) <float[6, 10] w> { t = MatMul(p, w) y = Add(x, t) }",
        tp=2,
        cuts={"p[1]": (0,)},
    )
    assert found.rank(0)[-2:] == ["t.sum = all_reduce(t)", "y = Add(x, t.sum)"]


def test_a_lookup_in_a_part_of_the_vocabulary_is_masked() -> None:
    found = rewritten(
        "(int64[b, s] ids) => (float[] y) <float[13, 6] w> { y = Gather(w, ids) }",
        tp=2,
        cuts={"w[0]": (0,)},
        values={"ids": (-13, 13)},
    )
    assert found.rank(1) == [
        "y.local.wrapped = Add(ids, 13)",
        "y.local.negative = Less(ids, 0)",
        "y.local.ids = Where(y.local.negative, y.local.wrapped, ids)",
        "y.local.known = Less(y.local.ids, 13)",
        "y.local.other = Where(y.local.known, 0, ids)",
        "y.local.before = Less(y.local.ids, 0)",
        "y.local.elsewhere = Where(y.local.before, ids, y.local.other)",
        "y.local.shifted = Sub(y.local.ids, 7)",
        "y.local.below = Less(y.local.shifted, 0)",
        "y.local.inside = Less(y.local.shifted, 6)",
        "y.local.above = Not(y.local.below)",
        "y.local.mine = And(y.local.inside, y.local.above)",
        "y.local.safe = Where(y.local.mine, y.local.shifted, y.local.elsewhere)",
        "y.local.mask = Unsqueeze(y.local.mine, [2])",
        "y.local.found = Gather(w[6, 6], y.local.safe)",
        "y.local = Where(y.local.mask, y.local.found, 0)",
        "y = all_reduce(y.local)",
    ]


def test_a_tied_embedding_is_stored_once() -> None:
    """Tables of more than 4096 elements have the same dims in all uses: the vocabulary is cut in both."""
    found = rewritten(
        """(int64[b, s] ids) => (float[] y) <float[70, 60] w>
        { h = Gather(w, ids) n = Relu(h) t = Transpose<perm = [1, 0]>(w) y = MatMul(n, t) }""",
        tp=2,
        cuts={"w[0]": (0,)},
        values={"ids": (-70, 70)},
    )
    assert found.collectives == [("all_reduce", "h"), ("all_gather", "y")]
    assert [str(part) for weight in found.forced.local.weights for part in weight.parts] == ["[0:35, :]", "[35:70, :]"]
    assert found.rank(0)[14:20] == [
        "h.found = Gather(w[35, 60], h.safe)",
        "h = Where(h.mask, h.found, 0)",
        "h.sum = all_reduce(h)",
        "n = Relu(h.sum)",
        "t = Transpose<perm=[1, 0]>(w[35, 60])",
        "y.local = MatMul(n, t)",
    ]


def test_seven_columns_on_two_ranks_are_padded_to_be_gathered() -> None:
    found = rewritten("(float[b, 6] x) => (float[] y) <float[6, 7] w> { y = MatMul(x, w) }", tp=2, cuts={"w[1]": (0,)})
    assert found.rank(1) == [
        "y.local = MatMul(x, w[6, 3])",
        "y.padded = Pad(y.local, [0, 0, 0, 1])",
        "y.front = Transpose<perm=[1, 0]>(y.padded)",
        "y.gathered = all_gather(y.front)",
        "y.ordered = Gather<axis=0>(y.gathered, [0, 1, 2, 3, 4, 5, 6])",
        "y = Transpose<perm=[1, 0]>(y.ordered)",
    ]


def test_seven_rows_on_four_ranks_are_padded_to_be_gathered() -> None:
    found = rewritten("(float[7, 6] x) => (float[] y) { y = Relu(x) }", tp=4, cuts={"x[0]": (0, 1)})
    assert found.rank(3) == [
        "x.part = Slice(x, [6], [7], [0])",
        "y.local = Relu(x.part)",
        "y.padded = Pad(y.local, [0, 0, 1, 0])",
        "y.gathered = all_gather(y.padded)",
        "y = Gather<axis=0>(y.gathered, [0, 1, 2, 3, 4, 5, 6])",
    ]


def test_a_fused_weight_is_cut_in_each_part_and_put_back_in_order() -> None:
    """[q0 k0 | q1 k1] as gathered is not [q | k]."""
    found = rewritten(
        """(float[b, 10] x) => (float[] t, float[] y) <float[10, 12] w, int64[2] sizes = {8, 4}>
        { t = MatMul(x, w) p, q = Split<axis = -1>(t, sizes) y = Relu(q) }""",
        tp=2,
        cuts={"w[1].0": (0,), "w[1].1": (0,)},
    )
    assert found.rank(1) == [
        "t.local = MatMul(x, w[10, 6])",
        "p, q = Split<axis=-1>(t.local, [4, 2])",
        "y.local = Relu(q)",
        "t.front = Transpose<perm=[1, 0]>(t.local)",
        "t.gathered = all_gather(t.front)",
        "t.ordered = Gather<axis=0>(t.gathered, [0, 1, 2, 3, 6, 7, 8, 9, 4, 5, 10, 11])",
        "t = Transpose<perm=[1, 0]>(t.ordered)",
        "y.front = Transpose<perm=[1, 0]>(y.local)",
        "y.gathered = all_gather(y.front)",
        "y = Transpose<perm=[1, 0]>(y.gathered)",
    ]


HEADS = """(float[b, s, 10] x) => (float[] y)
    <float[10, 28] w, int64[4] shape = {{{shape}}}, float[28, 6] v, int64[3] flat = {{{flat}}}>
    {{ t = MatMul(x, w) h = Reshape(t, shape) a = Tanh(h) f = Reshape(a, flat) y = MatMul(f, v) }}"""


def test_head_counts_in_reshapes_become_local() -> None:
    found = rewritten(HEADS.format(shape="0, 0, 7, 4", flat="0, 0, 28"), tp=2, cuts={"w[1].0": (0,)})
    assert [found.rank(rank)[1:4] for rank in range(2)] == [
        ["h = Reshape(t, [0, 0, 4, 4])", "a = Tanh(h)", "f = Reshape(a, [0, 0, 16])"],
        ["h = Reshape(t, [0, 0, 3, 4])", "a = Tanh(h)", "f = Reshape(a, [0, 0, 12])"],
    ]


def test_what_a_reshape_computes_itself_stays() -> None:
    found = rewritten(HEADS.format(shape="0, 0, -1, 4", flat="0, 0, -1"), tp=2, cuts={"w[1].0": (0,)})
    assert found.rank(1)[1:4] == ["h = Reshape(t, [0, 0, -1, 4])", "a = Tanh(h)", "f = Reshape(a, [0, 0, -1])"]


def test_a_length_that_a_reshape_computes_is_not_taken_from_the_heads() -> None:
    """T5: view(B, −1, heads, size) on a rank's columns would give half as many positions without a word."""
    found = rewritten(HEADS.format(shape="0, -1, 7, 4", flat="0, -1, 28"), tp=2, cuts={"w[1].0": (0,)})
    assert found.rank(1)[1:4] == ["h = Reshape(t, [0, -1, 3, 4])", "a = Tanh(h)", "f = Reshape(a, [0, -1, 12])"]


def test_a_size_read_from_a_cut_value_stays_global_until_it_is_used() -> None:
    found = rewritten(
        """(float[b, 6] x) => (int64[] n, float[] y) <float[6, 10] w, int64[2] flat = {-1, 5}, float[5, 4] v>
        { t = MatMul(x, w) n = Shape(t) f = Reshape(t, flat) g = Reshape(f, n) y = Tanh(g) }""",
        tp=2,
        cuts={"w[1].0": (0,)},
    )
    assert found.rank(1) == [
        "t = MatMul(x, w[6, 5])",
        "n.local = Shape(t)",
        "n.scaled = Mul(n.local, [1, 10])",
        "n = Div(n.scaled, [1, 5])",
        "f = Reshape(t, [-1, 5])",
        "Reshape_2.shape.scaled = Mul(n, [1, 5])",
        "Reshape_2.shape = Div(Reshape_2.shape.scaled, [1, 10])",
        "g = Reshape(f, Reshape_2.shape)",
        "y.local = Tanh(g)",
        "y.front = Transpose<perm=[1, 0]>(y.local)",
        "y.gathered = all_gather(y.front)",
        "y = Transpose<perm=[1, 0]>(y.gathered)",
    ]


def test_bounds_of_a_slice_become_local() -> None:
    found = rewritten(
        """(float[b, 10] x) => (float[] y)
        <float[10, 12] w, int64[1] start = {8}, int64[1] stop = {12}, int64[1] axes = {1}>
        { t = MatMul(x, w) y = Slice(t, start, stop, axes) }""",
        tp=2,
        cuts={"w[1].0": (0,), "w[1].1": (0,)},
    )
    assert found.rank(1)[1] == "y.local = Slice(t, [4], [6], [1])"


def test_an_index_into_a_fused_axis_becomes_local() -> None:
    """Falcon: of [B, kv, group + 2, size], element group is the key."""
    found = rewritten(
        """(float[b, 6] x) => (float[] y) <float[6, 48] w, int64[4] shape = {0, 2, 6, 4}, int64 index = {4}>
        { t = MatMul(x, w) h = Reshape(t, shape) y = Gather<axis = 2>(h, index) }""",
        tp=2,
        cuts={"w[1].1": (0,)},
    )
    assert found.rank(0) == [
        "t = MatMul(x, w[6, 32])",
        "h = Reshape(t, [0, 2, 4, 4])",
        "y = Gather<axis=2>(h, 2)",
    ]


def test_a_mean_over_uneven_parts_weighs_them() -> None:
    found = rewritten(
        """(float[b, 6] x) => (float[] y) <float[6, 10] w, int64[1] axes = {-1}>
        { t = MatMul(x, w) y = ReduceMean(t, axes) }""",
        tp=4,
        cuts={"w[1]": (0, 1)},
    )
    assert [found.rank(rank)[2] for rank in range(4)] == [
        "y.local = Mul(y.local.mean, 0.3)",
        "y.local = Mul(y.local.mean, 0.3)",
        "y.local = Mul(y.local.mean, 0.2)",
        "y.local = Mul(y.local.mean, 0.2)",
    ]
    assert found.rank(0)[3] == "y = all_reduce(y.local)"


def test_a_norm_over_a_cut_axis_reduces_its_statistic_only() -> None:
    """OLMo 2: RMSNorm over all heads, right after a column-parallel product."""
    found = rewritten(
        """(float[b, 6] x) => (float[] y) <float[6, 8] w, float two = {2}, int64[1] axes = {-1}, float[8] scale>
        { t = MatMul(x, w) q = Pow(t, two) m = ReduceMean(q, axes) r = Sqrt(m) n = Div(t, r) y = Mul(n, scale) }""",
        tp=2,
        cuts={"w[1]": (0,)},
    )
    assert found.collectives == [("all_reduce", "m"), ("all_gather", "y")]
    assert found.rank(1)[-7:-3] == [
        "m.sum = all_reduce(m)",
        "r = Sqrt(m.sum)",
        "n = Div(t, r)",
        "y.local = Mul(n, scale[4])",
    ]


def test_per_head_tables_are_cut_with_the_heads() -> None:
    """ALiBi: slopes [heads, 1, 1] beside scores [B, heads, S, S]."""
    found = rewritten(
        """(float[b, 6, s, 4] q, float[b, 6, 4, t] k, float[b, 1, 1, t] p) => (float[] y) <float[6, 1, 1] slopes>
        { n = MatMul(q, k) m = Mul(slopes, p) y = Add(n, m) }""",
        tp=3,
        cuts={"q[1]": (0,)},
        sizes={"b": 2, "s": 3, "t": 4},
    )
    assert found.rank(2)[3:5] == ["m = Mul(slopes[2, 1, 1], p)", "y.local = Add(n, m)"]


def test_key_heads_are_copied_where_the_group_is_cut() -> None:
    """Two key heads on four ranks: one sub-axis cuts them, the other their group of six."""
    found = rewritten(
        """(float[b, s, 12, 4] q, float[b, 2, s, 4] k) => (float[] y)
        <int64[1] two = {2}, int64[5] more = {1, 1, 6, 1, 1}, int64[4] flat = {0, 12, -1, 4}>
        { u = Unsqueeze(k, two) e = Expand(u, more) f = Reshape(e, flat) t = Transpose<perm = [0, 2, 1, 3]>(q)
          y = Mul(t, f) }""",
        tp=4,
        cuts={"k[1]": (0,), "e[2]": (1,)},
    )
    assert [found.rank(rank)[0] for rank in range(4)] == [
        f"k.part = Slice(k, [{head}], [{head + 1}], [1])" for head in (0, 0, 1, 1)
    ]
    assert found.rank(3)[1:4] == [
        "u = Unsqueeze(k.part, [2])",
        "e = Expand(u, [1, 1, 3, 1, 1])",
        "f = Reshape(e, [0, 3, -1, 4])",
    ]


def test_groups_of_ranks_differ_on_the_sub_axes_of_the_cut() -> None:
    graph = "(float[b, 6] x) => (float[] y) <float[6, 10] w> { y = MatMul(x, w) }"
    outer, inner = (rewritten(graph, tp=4, cuts={"x[1]": (axis,)}) for axis in (0, 1))
    assert [outer.rank(rank)[-1] for rank in range(4)] == [
        f"y = all_reduce over {group}(y.local)" for group in ([0, 2], [1, 3], [0, 2], [1, 3])
    ]
    assert [inner.rank(rank)[-1] for rank in range(4)] == [
        f"y = all_reduce over {group}(y.local)" for group in ([0, 1], [0, 1], [2, 3], [2, 3])
    ]


def test_branches_run_cut_and_hold_the_collectives_of_what_they_make() -> None:
    found = rewritten(
        """(float[b, 6] x, bool c) => (float[] y) <float[6, 8] w, float[8, 6] v>
        { t = MatMul(x, w) u = Relu(t)
          y = If(c) <then_branch = a () => (float[] p) { n = Neg(u) p = MatMul(n, v) },
                     else_branch = e () => (float[] q) { m = MatMul(u, v) s = Abs(m) q = Neg(s) }> }""",
        tp=2,
        cuts={"w[1]": (0,)},
    )
    assert found.collectives == [("all_reduce", "p"), ("all_reduce", "m")]
    assert found.rank(1) == ["t = MatMul(x, w[6, 4])", "u = Relu(t)", "y = If(c)"]
    assert found.branch(1, "then_branch") == [
        "n = Neg(u)",
        "p = MatMul(n, v[4, 6])",
        "p.sum = all_reduce(p)",
        "y.then_branch.0 = Identity(p.sum)",
    ]
    assert found.branch(1, "else_branch") == [
        "m = MatMul(u, v[4, 6])",
        "m.sum = all_reduce(m)",
        "s = Abs(m.sum)",
        "q = Neg(s)",
        "y.else_branch.0 = Identity(q)",
    ]


def test_what_both_branches_need_whole_is_gathered_before_them() -> None:
    found = rewritten(
        """(float[b, 6] x, bool c) => (float[] y) <float[6, 8] w>
        { t = MatMul(x, w) u = Relu(t) y = If(c) <then_branch = a () => (float[] p) { p = Softmax(u) },
          else_branch = e () => (float[] q) { q = Softmax<axis = 0>(u) }> }""",
        tp=2,
        cuts={"w[1]": (0,)},
    )
    assert found.collectives == [("all_gather", "u"), ("all_gather", "y")]
    assert found.branch(0, "then_branch")[-2:] == [
        "p.part = Slice(p, [0], [4], [1])",
        "y.local.then_branch.0 = Identity(p.part)",
    ]


def test_the_body_of_a_loop_reads_the_whole_of_a_cut_value() -> None:
    found = rewritten(
        """(float[b, 6] x, int64 n, bool c) => (float[] y) <float[6, 8] w>
        { t = MatMul(x, w) u = Relu(t)
          y = Loop(n, c, u) <body = l (int64 i, bool go, float[b, 8] v) => (bool on, float[b, 8] z)
            { on = Identity(go) z = Add(v, u) }> }""",
        tp=2,
        cuts={"w[1]": (0,)},
    )
    assert found.collectives == [("all_gather", "u")]


def test_an_operator_without_a_rule_runs_whole() -> None:
    found = rewritten(
        """(float[b, 4, 6, 6] x) => (float[] y) { t = Relu(x) y = LRN<size = 3>(t) }""",
        tp=2,
        cuts={"x[1]": (0,)},
    )
    assert found.collectives == [("all_gather", "t")]


def test_what_mixes_cut_and_dynamic_sizes_beyond_repair_is_refused() -> None:
    said = (
        "TP330 tensor y: axis 0 mixes a cut dimension with sizes that depend on the inputs. "
        "Pin the weights that cause it whole (--pin GLOB=whole)"
    )
    with pytest.raises(Refused, match=f"^{re.escape(said)}$"):
        rewritten(
            "(float[b, 6, s, 10] x) => (float[] y) <int64[2] flat = {-1, 10}> { y = Reshape(x, flat) }",
            tp=2,
            cuts={"x[1]": (0,)},
        )


def test_a_mask_of_minus_infinity_is_left_out_not_multiplied() -> None:
    found = rewritten(
        """(float[b, 6] p, float[b, 8] q, float[b, 10] z) => (float[] y) <float[6, 10] w, float[8, 10] v>
        { r = Relu(z) x = Log(r) t = MatMul(p, w) u = MatMul(q, v) s = Add(x, t) y = Add(s, u) }""",
        tp=2,
        cuts={"p[1]": (0,), "q[1]": (0,)},
    )
    assert found.collectives == [("all_reduce", "y")]
