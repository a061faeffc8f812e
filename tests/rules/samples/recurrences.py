"""Samples of operators that carry a state from step to step; those of ai.onnx are in `attention` and `images`."""

from tests.rules.samples.fused import fused

SAMPLES = [
    fused(
        "CausalConvWithState",
        "float[b, 6, s] x, float[b, 6, 3] p; float[6, 1, 4] w, float[6] c",
        '<activation = "silu">(x, w, c, p)',
        outputs="y n",
        free="x[1]",
    ),
    fused(
        "CausalConvWithState",
        "float[b, 6, 5] x; float[6, 1, 4] w",
        "(x, w)",
        "no state yet",
        outputs="y n",
        free="x[1]",
    ),
    fused(
        "CausalConvWithState",
        "float[b, s, 6] x, float[b, 4, 6] p; float[6, 1, 3] w, float[6] c",
        "<channels_last = 1, dilation = 2>(x, w, c, p)",
        "channels last",
        outputs="y n",
        free="x[2]",
    ),
    fused(
        "CausalConvWithState",
        "float[b, 5, 4, 6] x; float[24, 1, 3] w, float[24] c",
        "<channels_last = 1>(x, w, c)",
        "channels on two axes",
        outputs="y n",
        free="x[2] x[3]",
    ),
    fused(
        "LinearAttention",
        "float[b, s, 24] q, float[b, s, 24] k, float[b, s, 30] v, float[b, 6, 4, 5] p, float[b, s, 6] d, "
        "float[b, s, 6] u",
        "<q_num_heads = 6, kv_num_heads = 6>(q, k, v, p, d, u)",
        outputs="y n",
        values={"d": (-2, -0.1), "u": (0, 1)},
        free="q[2].0",
    ),
    fused(
        "LinearAttention",
        "float[b, s, 48] q, float[b, s, 12] k, float[b, s, 15] v, float[b, s, 12] d, float[b, s, 1] u",
        "<q_num_heads = 12, kv_num_heads = 3, scale = 0.4>(q, k, v, , d, u)",
        "groups, decay of each feature",
        outputs="y n",
        values={"d": (-2, -0.1), "u": (0, 1)},
        free="q[2].0 q[2].1",
    ),
    fused(
        "LinearAttention",
        "float[b, s, 12] q, float[b, s, 12] k, float[b, s, 60] v, float[b, 12, 4, 5] p, float[b, s, 12] d",
        '<q_num_heads = 3, kv_num_heads = 12, update_rule = "gated">(q, k, v, p, d)',
        "groups of values",
        outputs="y n",
        free="q[2].0 v[2].1",
        values={"d": (-2, -0.1)},
    ),
    fused(
        "LinearAttention",
        "float[b, s, 12] q, float[b, s, 48] k, float[b, s, 60] v",
        '<q_num_heads = 3, kv_num_heads = 12, update_rule = "linear">(q, k, v)',
        "groups of keys and values",
        outputs="y n",
        free="q[2].0 k[2].1",
    ),
    fused(
        "LinearAttentionGate",
        "float[b, s, 6] x, float[b, s, 6] z; float[6] c, float[6] w",
        "(x, c, w, z)",
        outputs="y u",
        free="x[2]",
    ),
    fused("GatedRMSNorm", "float[b, s, 24] x, float[b, s, 24] g; float[4] w", "(x, w, g)", free="x[2].0"),
]
