"""Samples of operators that sum over a dim of two operands, convolutions and attention among them."""

from tests.torch_fx.sample import Sample

QKV = "q: b 6 s 4, k: b 6 t 4, v: b 6 t 4"
GQA = "q: b 6 s 4, k: b 3 t 4, v: b 3 t 4"
MORE = {"b": 2, "s": 3, "t": 5}

SAMPLES = [
    Sample("mm", "x: 9 10, w: 10 6 weight", "(x, w)", free="x[0] w[1]", sums="x[1]"),
    Sample("bmm", "x: 6 s 10, z: 6 10 9", "(x, z)", free="x[0] z[2]", sums="x[2]"),
    Sample("bmm", "x: b 5 10, z: b 10 9", "(x, z)", free="x[1] z[2]", sums="x[2]", note="dynamic"),
    Sample("matmul", "x: b s 10, w: 10 6 weight", "(x, w)", free="w[1]", sums="x[2]"),
    Sample("matmul", "x: b 6 s 10, z: 6 10 9", "(x, z)", free="x[1] z[2]", sums="x[3]", note="broadcast"),
    Sample("matmul", "x: 10, w: 10 6 weight", "(x, w)", free="w[1]", sums="x[0]", note="a vector"),
    Sample("matmul", "x: 10, z: 10", "(x, z)", note="two vectors"),
    Sample("mv", "x: 9 10, z: 10", "(x, z)", free="x[0]", sums="x[1]"),
    Sample("dot", "x: 10, z: 10", "(x, z)", sums="x[0]"),
    Sample("linear", "x: b s 10, w: 6 10 weight, c: 6 weight", "(x, w, c)", free="w[0]", sums="x[2]"),
    Sample("linear", "x: b s 10, w: 6 10 weight", "(x, w)", free="w[0]", sums="x[2]", note="no bias"),
    Sample("linear", "x: b s 10, w: 10 weight", "(x, w)", note="one column"),
    Sample("addmm", "c: 6 weight, x: s 10, w: 10 6 weight", "(c, x, w, alpha=0.5, beta=2.0)", free="w[1]", sums="x[1]"),
    Sample("addmm", "c: 9 6, x: 9 10, w: 10 6", "(c, x, w)", free="x[0] w[1]", sums="x[1]", note="all inputs"),
    Sample("addmm", "c: 9 1, x: 9 10, w: 10 6", "(c, x, w)", free="x[0] w[1]", sums="x[1]", note="a column"),
    Sample(
        "baddbmm", "c: 9 1 s, x: 9 6 10, z: 9 10 s", "(c, x, z, beta=1.0, alpha=0.3)", free="x[0] x[1]", sums="x[2]"
    ),
    Sample("addbmm", "c: 6 9, x: 4 6 10, z: 4 10 9", "(c, x, z, alpha=0.5)", free="x[1] z[2]", sums="x[0] x[2]"),
    Sample("addmv", "c: 9, x: 9 10, z: 10", "(c, x, z, beta=0.5)", free="x[0]", sums="x[1]"),
    Sample("addr", "c: 9 6, x: 9, z: 6", "(c, x, z, beta=0.5, alpha=2.0)", free="x[0] z[0]"),
    Sample("outer", "x: 9, z: 6", "(x, z)", free="x[0] z[0]", passes="x z"),
    Sample("ger", "x: 9, z: 6", "(x, z)", free="x[0] z[0]", passes="x z"),
    Sample("inner", "x: b 9 10, z: 6 10", "(x, z)", free="x[1] z[0]", sums="x[2]"),
    Sample("einsum", "x: 2 6 4 10, w: 6 10 9 weight", "('bhsk,hkn->bshn', [x, w])", free="x[0] x[1] x[2] w[2]",
           sums="x[3]"),
    Sample("einsum", "x: b 9 10, w: 9 10 weight", "('bnk,nk->bn', [x, w])", free="x[1]", sums="x[2]", note="batched"),
    Sample("einsum", "x: 9 10, z: 6 10", "('...k,nk', [x, z])", free="x[0] z[0]", sums="x[1]",
           note="implicit, with dots"),
    Sample("tensordot", "x: b 9 10, z: 10 6 9", "(x, z, [2, 1], [0, 2])", free="z[1]", sums="x[1] x[2]"),
    Sample(
        "bilinear", "x: b 6, z: b 10, w: 9 6 10 weight, c: 9 weight", "(x, z, w, c)", free="w[0]", sums="x[1] z[1]"
    ),
    Sample("cdist", "x: b 6 4, z: b 9 4", "(x, z)", free="x[1] z[1]"),
    Sample("cosine_similarity", "x: 5 6 10, z: 1 6 10", "(x, z, 2)", free="x[0] x[1]"),
    Sample("cosine_similarity", "x: 5 6 10, z: 5 6 10", "(x, z, 1)", free="x[0] x[2]", note="in the middle"),
    Sample("linalg_cross", "x: 6 3 10, z: 6 3 1", "(x, z, dim=1)", free="x[0] x[2]"),
    # convolutions
    Sample("conv1d", "x: b 9 12, w: 6 9 3 weight, c: 6 weight", "(x, w, c, [2], [1])", free="w[0]", sums="x[1]"),
    Sample("conv2d", "x: 5 4 9 7, w: 6 4 3 2 weight", "(x, w, None, [2, 1])", free="x[0] w[0]", sums="x[1]"),
    Sample(
        "conv2d", "x: 2 12 5 7, w: 18 2 3 3 weight, c: 18 weight", "(x, w, c, [1, 1], [1, 1], [1, 1], 6)",
        free="x[0] x[1].0", note="in groups",
    ),
    Sample(
        "conv1d", "x: b 12 9, w: 12 1 4 weight, c: 12 weight", "(x, w, c, [1], [3], [1], 12)", free="x[1]",
        note="each channel by itself",
    ),
    Sample("conv2d", "x: 4 9 7, w: 6 4 3 2 weight", "(x, w)", note="an image without a batch"),
    Sample("conv3d", "x: 2 4 5 6 7, w: 6 4 2 2 2 weight", "(x, w)", free="x[0] w[0]", sums="x[1]"),
    Sample("conv1d.padding", "x: b 9 12, w: 6 9 3 weight", "(x, w, None, [1], 'same')", free="w[0]", sums="x[1]"),
    Sample("conv2d.padding", "x: 2 4 9 7, w: 6 4 3 2 weight", "(x, w, None, [1], 'valid')", free="x[0] w[0]",
           sums="x[1]"),
    Sample("conv3d.padding", "x: 2 4 5 6 7, w: 6 4 2 2 2 weight", "(x, w, None, [1], 'same')", free="x[0] w[0]",
           sums="x[1]"),
    Sample("conv_transpose1d", "x: b 9 12, w: 9 6 3 weight, c: 6 weight", "(x, w, c, [2])", free="w[1]", sums="x[1]"),
    Sample("conv_transpose2d.input", "x: 2 4 5 7, w: 4 6 3 2 weight", "(x, w)", free="x[0] w[1]", sums="x[1]"),
    Sample(
        "conv_transpose2d.input", "x: 2 12 5 7, w: 12 3 3 2 weight, c: 18 weight",
        "(x, w, c, [1, 1], [0, 0], [0, 0], 6)", free="x[0] x[1].0", note="in groups",
    ),
    Sample("conv_transpose3d.input", "x: 2 4 5 6 7, w: 4 6 2 2 2 weight", "(x, w)", free="x[0] w[1]", sums="x[1]"),
    Sample(
        "convolution", "x: 2 4 9 7, w: 6 4 3 2 weight, c: 6 weight",
        "(x, w, c, [2, 1], [0, 1], [1, 1], False, [0, 0], 1)", free="x[0] w[0]", sums="x[1]",
    ),
    Sample(
        "convolution", "x: 2 12 9, w: 12 3 3 weight", "(x, w, None, [2], [1], [1], True, [1], 6)",
        free="x[0] x[1].0", note="transposed, in groups",
    ),
    Sample(
        "_convolution", "x: 2 4 9 7, w: 6 4 3 2 weight",
        "(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True)", free="x[0] w[0]",
        sums="x[1]",
    ),
    # attention
    Sample("scaled_dot_product_attention", QKV, "(q, k, v)", free="q[1]", sizes=MORE),
    Sample("scaled_dot_product_attention", f"{QKV}, m: b 1 s t", "(q, k, v, m, scale=0.3)", free="q[1]", sizes=MORE,
           note="mask"),
    Sample("scaled_dot_product_attention", GQA, "(q, k, v, enable_gqa=True)", free="q[1].0 q[1].1", sizes=MORE,
           note="fewer key heads"),
    Sample("scaled_dot_product_attention", "q: 2 6 3 4, k: 2 6 5 4, v: 2 6 5 4, m: 6 3 5", "(q, k, v, m)",
           free="q[0] q[1]", note="a mask for each head"),
    Sample("scaled_dot_product_attention", "q: 2 6 3 4, k: 2 6 3 4, v: 2 6 3 8", "(q, k, v, is_causal=True)",
           free="q[0] q[1]", note="causal"),
    Sample("scaled_dot_product_attention", "q: 2 6 3 4, k: 2 1 5 4, v: 2 1 5 4", "(q, k, v)", free="q[0] q[1]",
           note="one key head"),
    Sample("scaled_dot_product_attention", "q: 6 3 4, k: 6 5 4, v: 6 5 4", "(q, k, v)", free="q[0]",
           note="three axes"),
    Sample("scaled_dot_product_attention", "q: 4 3 6 2 4, k: 3 6 5 4, v: 3 6 5 4", "(q, k, v)",
           free="q[0] q[1] q[2]", note="five axes"),
    Sample("_scaled_dot_product_flash_attention_for_cpu", QKV, "(q, k, v)", free="q[1]", sizes=MORE),
    Sample("_scaled_dot_product_flash_attention_for_cpu", f"{QKV}, m: b 1 s t",
           "(q, k, v, attn_mask=m.detach(), scale=0.4)", free="q[1]", sizes=MORE, note="mask"),
]  # fmt: skip
