"""Samples of attention and rotary embedding as single operators."""

from tests.rules.sample import Sample

_SIZES = {"b": 2, "s": 3, "t": 5, "p": 4}

SAMPLES = [
    Sample(
        "LinearAttention",
        """(float[b, s, 48] q, float[b, s, 24] k, float[b, s, 30] v, float[b, 6, 4, 5] past, float[b, s, 6] g,
            float[b, s, 6] u) => (float[] y, float[] state)
        { y, state = LinearAttention<q_num_heads = 12, kv_num_heads = 6>(q, k, v, past, g, u) }""",
        free="q[2].0 q[2].1",
        opset=27,
        values={"g": (-1, 0), "u": (0, 1)},
    ),
    Sample(
        "LinearAttention",
        """(float[b, s, 24] q, float[b, s, 24] k, float[b, s, 30] v, float[b, s, 24] g) => (float[] y, float[] state)
        { y, state = LinearAttention<q_num_heads = 6, kv_num_heads = 6, update_rule = "gated">(q, k, v, , g) }""",
        free="q[2].0",
        opset=27,
        values={"g": (-1, 0)},
        note="gated by feature, no state",
    ),
    Sample(
        "LinearAttention",
        """(float[b, s, 24] q, float[b, s, 24] k, float[b, s, 30] v, float[b, s, 1] u) => (float[] y, float[] state)
        { y, state = LinearAttention<q_num_heads = 6, kv_num_heads = 6, update_rule = "delta", scale = 0.3>
          (q, k, v, , , u) }""",
        free="q[2].0",
        opset=27,
        values={"u": (0, 1)},
        note="one rate for all heads",
    ),
    Sample(
        "Attention",
        "(float[b, 6, s, 4] q, float[b, 6, t, 4] k, float[b, 6, t, 5] v) => (float[] y) { y = Attention(q, k, v) }",
        free="q[1]",
        sizes=_SIZES,
        note="4-D",
    ),
    Sample(
        "Attention",
        """(float[b, 12, s, 4] q, float[b, 3, t, 4] k, float[b, 3, t, 4] v, float[b, 1, s, t] m) => (float[] y)
        { y = Attention<scale = 0.7, softcap = 2.0>(q, k, v, m) }""",
        free="q[1].0 q[1].1",
        sizes=_SIZES,
        note="4-D, groups, mask",
    ),
    Sample(
        "Attention",
        """(float[b, s, 24] q, float[b, t, 24] k, float[b, t, 24] v, float[b, 6, s, t] m) => (float[] y)
        { y = Attention<q_num_heads = 6, kv_num_heads = 6>(q, k, v, m) }""",
        free="q[2].0",
        sizes=_SIZES,
        note="3-D, mask per head",
    ),
    Sample(
        "Attention",
        """(float[b, s, 48] q, float[b, s, 16] k, float[b, s, 20] v) => (float[] y)
        { y = Attention<q_num_heads = 12, kv_num_heads = 4, is_causal = 1>(q, k, v) }""",
        free="q[2].0 q[2].1",
        sizes=_SIZES,
        note="3-D, groups, causal",
    ),
    Sample(
        "Attention",
        """(float[b, s, 24] q, float[b, s, 12] k, float[b, s, 12] v, bool[s, t] m,
        float[b, 3, p, 4] pk, float[b, 3, p, 4] pv)
        => (float[] y, float[] nk, float[] nv) 
        { y, nk, nv = Attention<q_num_heads = 6, kv_num_heads = 3>(q, k, v, m, pk, pv) }""",
        free="q[2].0 q[2].1",
        sizes={"b": 2, "s": 3, "p": 4, "t": 7},
        note="3-D, past and present",
    ),
    Sample(
        "Attention",
        """(float[b, 6, s, 4] q, float[b, 3, s, 4] k, float[b, 3, s, 5] v, float[6, s, t] m, float[b, 3, p, 4] pk,
        float[b, 3, p, 5] pv) => (float[] y, float[] nk, float[] nv)
        { y, nk, nv = Attention<is_causal = 1>(q, k, v, m, pk, pv) }""",
        free="q[1].0 q[1].1",
        sizes={"b": 2, "s": 3, "p": 4, "t": 7},
        note="4-D, past and present, a mask of three axes",
    ),
    Sample(
        "Attention",
        """(float[b, 6, s, 4] q, float[b, 6, t, 4] k, float[b, 6, t, 4] v) => (float[] y, float[] a)
        { y, nk, nv, a = Attention<qk_matmul_output_mode = 3>(q, k, v) }""",
        free="q[1]",
        sizes=_SIZES,
        note="scores",
    ),
    Sample(
        "Attention",
        """(float[b, 6, s, 4] q, float[b, 2, t, 4] k, float[b, 2, t, 4] v, int64[b] n) => (float[] y)
        { y = Attention(q, k, v, , , , n) }""",
        free="q[1].0 q[1].1",
        opset=24,
        sizes=_SIZES,
        values={"n": (1, 6)},
        note="4-D, lengths of keys",
    ),
    Sample(
        "RotaryEmbedding",
        """(float[b, 6, s, 8] x, int64[b, s] ids) => (float[] y)
        <float[16, 4] c, float[16, 4] n> { y = RotaryEmbedding(x, c, n, ids) }""",
        free="x[1]",
        note="4-D",
        values={"ids": (0, 16)},
    ),
    Sample(
        "RotaryEmbedding",
        """(float[b, s, 48] x, float[b, s, 2] c, float[b, s, 2] n) => (float[] y)
        { y = RotaryEmbedding<num_heads = 6, rotary_embedding_dim = 4, interleaved = 1>(x, c, n) }""",
        free="x[2].0",
        note="3-D, part of a head",
    ),
]
