"""Samples of operators that sum over a dim of two operands."""

from tests.rules.sample import Sample


def gemm(attributes: str, a: str, b: str, c: str = "", note: str = "", **claims: str) -> Sample:
    third, more = (", c", f", float[{c}] c") if c or note == "scalar" else ("", "")
    text = f"(float[{a}] x) => (float[] y) <float[{b}] w{more}> {{ y = Gemm<{attributes}>(x, w{third}) }}"
    return Sample("Gemm", text.replace("float[] c", "float c = {3}"), note=note or attributes, **claims)


SAMPLES = [
    Sample(
        "MatMul", "(float[b, s, 6] x) => (float[] y) <float[6, 10] w> { y = MatMul(x, w) }", free="w[1]", sums="x[2]"
    ),
    Sample(
        "MatMul",
        "(float[7, 5] x, float[5, 9] z) => (float[] y) { y = MatMul(x, z) }",
        free="x[0] z[1]",
        sums="x[1]",
        note="odd, two activations",
    ),
    Sample(
        "MatMul",
        "(float[b, 6, s, 8] x, float[b, 6, 8, 10] z) => (float[] y) { y = MatMul(x, z) }",
        free="x[1] z[3]",
        sums="x[3]",
        note="batched",
    ),
    Sample(
        "MatMul",
        "(float[b, 1, s, 8] x) => (float[] y) <float[6, 8, 10] w> { y = MatMul(x, w) }",
        free="w[0] w[2]",
        sums="x[3]",
        note="batch broadcasts",
    ),
    Sample(
        "MatMul",
        "(float[6] x) => (float[] y) <float[4, 6, 10] w> { y = MatMul(x, w) }",
        free="w[0] w[2]",
        sums="x[0]",
        note="vector left",
    ),
    Sample(
        "MatMul",
        "(float[b, 6, 10] x) => (float[] y) <float[10] w> { y = MatMul(x, w) }",
        free="x[1]",
        sums="x[2]",
        note="vector right",
    ),
    Sample("MatMul", "(float[6] x) => (float y) <float[6] w> { y = MatMul(x, w) }", note="two vectors"),
    gemm("alpha = 1.0", "b, 6", "6, 10", free="w[1]", sums="x[1]"),
    gemm("transB = 1", "b, 6", "10, 6", "10", free="w[0]", sums="x[1]"),
    gemm("transA = 1, transB = 1", "6, 8", "10, 6", "8, 1", free="x[1] w[0]", sums="x[0]"),
    gemm("transA = 1, alpha = 0.5, beta = 2.0", "6, 8", "6, 10", "8, 10", free="x[1] w[1]", sums="x[0]"),
    gemm("alpha = 0.5, beta = 2.0", "b, 6", "6, 10", "1, 10", free="w[1]", sums="x[1]"),
    gemm("beta = -1.5", "b, 6", "6, 10", note="scalar", free="w[1]", sums="x[1]"),
    Sample(
        "Gemm",
        "(float[b, 6] x, float[b, 10] c) => (float[] y) <float[6, 10] w> { y = Gemm<beta = 2.0>(x, w, c) }",
        free="w[1]",
        sums="x[1]",
        note="computed C",
    ),
    Sample(
        "Einsum",
        '(float[b, s, 6] x) => (float[] y) <float[6, 4, 10] w> { y = Einsum<equation = "bsd,dhk->bhsk">(x, w) }',
        free="w[1] w[2]",
        sums="x[2]",
        note="heads",
    ),
    Sample(
        "Einsum",
        "(float[b, 6, s, 8] x, float[b, 6, t, 8] z) => (float[] y) "
        '{ y = Einsum<equation = "bhid, bhjd -> bhij">(x, z) }',
        free="x[1]",
        sums="x[3]",
        note="scores",
        sizes={"b": 2, "s": 3, "t": 4},
    ),
    Sample(
        "Einsum",
        "(float[4, 6] x, float[6, 8] z) => (float[] y) <float[8, 10] w> "
        '{ y = Einsum<equation = "ab,bc,cd->ad">(x, z, w) }',
        free="x[0] w[1]",
        sums="x[1] z[1]",
        note="three",
    ),
    Sample(
        "Einsum",
        '(float[4, 6] x, float[8] z) => (float[] y) { y = Einsum<equation = "ij,k->ik">(x, z) }',
        free="x[0] z[0]",
        sums="x[1]",
        note="sum of one operand",
    ),
    Sample(
        "Einsum", '(float[4, 6] x) => (float[] y) { y = Einsum<equation = "ij->ji">(x) }', free="x[0] x[1]", note="turn"
    ),
    Sample(
        "Einsum", '(float[4, 6] x) => (float[] y) { y = Einsum<equation = "ij->">(x) }', sums="x[0] x[1]", note="all"
    ),
    Sample("Einsum", '(float[6, 6] x) => (float[] y) { y = Einsum<equation = "ii->i">(x) }', note="diagonal"),
    Sample(
        "Einsum",
        '(float[4, 6] x, float[6, 8] z) => (float[] y) { y = Einsum<equation = "ab,bc">(x, z) }',
        free="x[0] z[1]",
        sums="x[1]",
        note="implicit",
    ),
    Sample(
        "Einsum",
        '(float[b, s, 6] x) => (float[] y) <float[6, 10] w> { y = Einsum<equation = "...d,df->...f">(x, w) }',
        free="w[1]",
        sums="x[2]",
        note="ellipsis",
    ),
    Sample(
        "Conv",
        "(float[b, 6, 9, 7] x) => (float[] y) <float[10, 6, 3, 3] w, float[10] c> "
        "{ y = Conv<pads = [1, 1, 1, 1]>(x, w, c) }",
        free="w[0]",
        sums="x[1]",
    ),
    Sample(
        "Conv",
        "(float[b, 6, 9] x) => (float[] y) <float[6, 1, 3] w, float[6] c> { y = Conv<group = 6>(x, w, c) }",
        free="x[1]",
        note="depthwise",
    ),
    Sample(
        "Conv",
        "(float[b, 8, 9] x) => (float[] y) <float[12, 2, 3] w> { y = Conv<group = 4, strides = [2]>(x, w) }",
        free="x[1].0",
        note="grouped",
    ),
    Sample(
        "Conv",
        "(float[b, 5, 9] x) => (float[] y) <float[15, 1, 2] w, float[15] c> { y = Conv<group = 5>(x, w, c) }",
        free="x[1]",
        note="depthwise, three each",
    ),
    Sample(
        "ConvTranspose",
        "(float[b, 6, 5, 4] x) => (float[] y) <float[6, 10, 3, 2] w, float[10] c> "
        "{ y = ConvTranspose<strides = [2, 2], pads = [1, 0, 1, 0], output_padding = [1, 0]>(x, w, c) }",
        free="w[1]",
        sums="x[1]",
    ),
    Sample(
        "ConvTranspose",
        "(float[b, 8, 9] x) => (float[] y) <float[8, 3, 3] w, float[12] c> { y = ConvTranspose<group = 4>(x, w, c) }",
        free="x[1].0",
        note="grouped",
    ),
    Sample(
        "ConvTranspose",
        "(float[b, 6, 9] x) => (float[] y) <float[6, 1, 2] w> { y = ConvTranspose<group = 6>(x, w) }",
        free="x[1]",
        note="depthwise",
    ),
]
