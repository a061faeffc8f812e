"""Samples of ONNX Runtime's fused operators but attention."""

from tests.rules.sample import Sample


def fused(op: str, operands: str, call: str, note: str = "", *, outputs: str = "y", **claims: str) -> Sample:
    """A sample of com.microsoft.OP: operands "INPUTS; WEIGHTS", and what the call has in brackets."""
    given, _, stored = operands.partition(";")
    results = ", ".join(f"float[] {name}" for name in outputs.replace("_", "").split())
    names = ", ".join(f"unused{k}" if name == "_" else name for k, name in enumerate(outputs.split()))
    weights = f"<{stored}>" if stored else ""
    text = f"({given}) => ({results}) {weights} {{ {names} = com.microsoft.{op}{call} }}"
    return Sample(f"com.microsoft.{op}", text, note=note, **claims)


SAMPLES = [
    Sample(
        "SimplifiedLayerNormalization",
        """(float[b, 6, 10] x) => (float[] y, float[] d) <float[10] w>
        { y, d = SimplifiedLayerNormalization<axis = -1, epsilon = 0.01, stash_type = 1>(x, w) }""",
        free="x[1]",
        opset=20,
    ),
    Sample(
        "SimplifiedLayerNormalization",
        "(float[6, 8, 10] x) => (float[] y) <float[8, 10] w> { y = SimplifiedLayerNormalization<axis = 1>(x, w) }",
        free="x[0]",
        opset=17,
        note="two axes",
    ),
    fused("SkipLayerNormalization", "float[b, 6, 10] x, float[b, 6, 10] z; float[10] w", "(x, z, w)", free="x[1]"),
    fused(
        "SkipLayerNormalization",
        "float[4, 6, 10] x, float[6, 10] z; float[10] w, float[10] c, float[10] a",
        "<epsilon = 0.01>(x, z, w, c, a)",
        "bias, skip without batch, the sum",
        outputs="y _ _ r",
        free="x[0] x[1]",
    ),
    fused(
        "SkipLayerNormalization",
        "float[4, 6, 10] x, float[1, 6, 10] z; float[10] w, float[10] c",
        "(x, z, w, c)",
        "skip of one batch",
        free="x[0] x[1]",
    ),
    fused(
        "SkipSimplifiedLayerNormalization",
        "float[b, 6, 10] x, float[b, 6, 10] z; float[10] w",
        "(x, z, w)",
        outputs="y _ _ r",
        free="x[1]",
    ),
    fused(
        "SkipSimplifiedLayerNormalization",
        "float[12, 10] x, float[12, 10] z; float[10] w, float[10] a",
        "<epsilon = 0.01>(x, z, w, a)",
        "tokens in a row, bias",
        outputs="y _ _ r",
        free="x[0]",
    ),
    fused("BiasGelu", "float[b, 6, 10] x; float[10] c", "(x, c)", free="x[1] x[2]"),
    fused("FastGelu", "float[b, 6, 10] x; float[10] c", "(x, c)", free="x[1] x[2]"),
    fused("FastGelu", "float[b, 6, 10] x", "(x)", "no bias", free="x[1] x[2]"),
    fused("Gelu", "float[b, 6, 10] x", "(x)", free="x[1] x[2]"),
    fused("QuickGelu", "float[b, 6, 10] x", "<alpha = 1.7>(x)", free="x[1] x[2]"),
    fused("BiasAdd", "float[b, 6, 10] x, float[b, 6, 10] z; float[10] c", "(x, c, z)", free="x[1] x[2]"),
    fused("BiasSplitGelu", "float[b, 6, 20] x; float[20] c", "(x, c)", free="x[1] x[2].0"),
    fused("SwiGLU", "float[b, 6, 10] x, float[b, 6, 10] z", "(x, z)", free="x[1] x[2]"),
    fused("SwiGLU", "float[b, 6, 20] x", "<activation_alpha = 1.7>(x)", "both in one", free="x[1] x[2].0"),
    fused(
        "FusedMatMul", "float[b, s, 6] x; float[10, 6] w", "<transB = 1, alpha = 0.3>(x, w)", free="w[0]", sums="x[2]"
    ),
    fused(
        "FusedMatMul",
        "float[b, 4, 6, 7] x, float[4, 6, 10] z",
        "<transA = 1>(x, z)",
        "left",
        free="x[1] x[3] z[2]",
        sums="x[2]",
    ),
    fused(
        "FusedMatMul",
        "float[7, 3, 4, 6] x, float[10, 3, 4, 6] z",
        "<transBatchA = 1, transBatchB = 1, transB = 1>(x, z)",
        "batch in the middle",
        free="x[0] x[1] x[2] z[0]",
        sums="x[3]",
    ),
    fused(
        "FusedMatMul",
        "float[6, 3, 4, 7] x, float[3, 4, 6, 10] z",
        "<transBatchA = 1, transA = 1>(x, z)",
        "batch in the middle, left",
        free="x[1] x[2] x[3] z[3]",
        sums="x[0]",
    ),
    fused(
        "FusedMatMul", "float[6] x; float[4, 10, 6] w", "<transB = 1>(x, w)", "vector", free="w[0] w[1]", sums="x[0]"
    ),
    fused("FusedMatMul", "float[4, 7, 6] x; float[6] w", "(x, w)", "vector right", free="x[0] x[1]", sums="x[2]"),
    fused("TransposeMatMul", "float[b, 6, 7] x; float[6, 10] w", "<transA = 1>(x, w)", free="x[2] w[1]", sums="x[1]"),
    fused(
        "FusedGemm",
        "float[7, 6] x; float[10, 6] w, float[10] c",
        '<transB = 1, alpha = 0.5, beta = 2.0, activation = "Relu">(x, w, c)',
        free="x[0] w[0]",
    ),
    fused(
        "FusedConv",
        "float[4, 6, 7, 5] x; float[10, 6, 3, 3] w, float[10] c",
        '<pads = [1, 1, 1, 1], activation = "Relu">(x, w, c)',
        free="x[0] w[0]",
    ),
    fused(
        "FusedConv",
        "float[4, 6, 7, 5] x, float[4, 10, 3, 2] z; float[10, 6, 3, 3] w",
        "<pads = [1, 1, 1, 1], strides = [2, 2], dilations = [2, 2]>(x, w, , z)",
        "a residual",
        free="x[0] w[0]",
        sums="x[1]",
    ),
    fused(
        "FusedConv",
        "float[b, 12, 7, 5] x, float[b, 8, 7, 5] z; float[8, 3, 3, 3] w, float[8] c",
        '<auto_pad = "SAME_UPPER", group = 4, activation = "LeakyRelu", activation_params = [0.2]>(x, w, c, z)',
        "groups",
        free="x[1].0",
    ),
    fused(
        "NhwcConv",
        "float[4, 7, 5, 6] x; float[10, 3, 3, 6] w, float[10] c",
        "<kernel_shape = [3, 3], pads = [1, 0, 1, 0], group = 1>(x, w, c)",
        free="x[0] w[0]",
        sums="x[3]",
    ),
    fused(
        "GroupNorm",
        "float[4, 5, 7, 12] x; float[12] w, float[12] c",
        "<groups = 6, activation = 1>(x, w, c)",
        free="x[0] x[3].0",
    ),
    fused(
        "GroupNorm",
        "float[b, 12, 5, 7] x; float[12] w, float[12] c",
        "<groups = 4, activation = 0, channels_last = 0>(x, w, c)",
        "channels second",
        free="x[1].0",
    ),
    fused(
        "SkipGroupNorm",
        "float[b, 5, 7, 12] x, float[b, 12] z; float[12] w, float[12] c, float[12] a",
        "<groups = 6, activation = 1>(x, w, c, z, a)",
        outputs="y r",
        free="x[3].0",
    ),
    fused("Inverse", "float[b, 6, 5, 5] x", "(x)", free="x[1]"),
]
