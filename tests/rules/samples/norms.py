"""Samples of operators that need an axis whole."""

from tests.rules.sample import Sample

SAMPLES = [
    *(
        Sample(op, f"(float[b, 6, 10] x) => (float[] y) {{ y = {op}<axis = -1>(x) }}", free="x[1]")
        for op in ("Softmax", "LogSoftmax", "Hardmax")
    ),
    Sample(
        "Softmax", "(float[b, 6, 10] x) => (float[] y) { y = Softmax<axis = 1>(x) }", free="x[2]", note="inner axis"
    ),
    Sample(
        "Softmax",
        "(float[6, 8, 10] x) => (float[] y) { y = Softmax(x) }",
        free="x[0]",
        opset=11,
        note="all from axis 1 on",
    ),
    Sample(
        "Softmax",
        "(float[6, 8, 10] x) => (float[] y) { y = Softmax<axis = 2>(x) }",
        free="x[0] x[1]",
        opset=12,
        note="old",
    ),
    Sample(
        "LayerNormalization",
        """(float[b, 6, 10] x) => (float[] y, float[] mean, float[] deviation) <float[10] w, float[10] c>
        { y, mean, deviation = LayerNormalization<axis = -1>(x, w, c) }""",
        free="x[1]",
    ),
    Sample(
        "LayerNormalization",
        "(float[6, 8, 10] x) => (float[] y) <float[8, 10] w> { y = LayerNormalization<axis = 1>(x, w) }",
        free="x[0]",
        note="two axes",
    ),
    Sample(
        "LayerNormalization",
        "(float[b, 6, 10] x) => (float[] y, float[] m) <float[10] w> { y, m = LayerNormalization<axis = 2>(x, w) }",
        free="x[1]",
        opset=12,
        note="before it was one of ai.onnx",
    ),
    Sample(
        "RMSNormalization",
        "(float[b, 6, 10] x) => (float[] y) <float[10] w> { y = RMSNormalization<axis = -1, epsilon = 0.01>(x, w) }",
        free="x[1]",
    ),
    Sample(
        "CumProd",
        "(float[b, 6, 10] x) => (float[] y) <int64 axis = {1}> { y = CumProd<exclusive = 1>(x, axis) }",
        free="x[2]",
        opset=26,
    ),
    Sample("CumSum", "(float[b, 6, 10] x) => (float[] y) <int64 axis = {1}> { y = CumSum(x, axis) }", free="x[2]"),
    Sample(
        "CumSum",
        "(float[b, 6, 10] x) => (float[] y) <int64[1] axis = {-1}> { y = CumSum<exclusive = 1, reverse = 1>(x, axis) }",
        free="x[1]",
        note="backwards",
    ),
    Sample("Trilu", "(float[b, 6, 7, 8] x) => (float[] y) <int64 k = {1}> { y = Trilu(x, k) }", free="x[1]"),
    Sample(
        "TopK",
        "(float[b, 6, 10] x) => (float[] y, int64[] i) <int64[1] k = {3}> { y, i = TopK<axis = -1>(x, k) }",
        free="x[1]",
    ),
    Sample(
        "TopK",
        "(float[b, 6, 10] x) => (int64[] i) <int64[1] k = {4}> { y, i = TopK<axis = 1, largest = 0>(x, k) }",
        free="x[2]",
        note="smallest",
    ),
    *(
        Sample(
            op,
            f"(float[b, 6, 10] x) => (int64[] y) {{ y = {op}<axis = -1, keepdims = {keep}>(x) }}",
            free="x[1]",
            note=note,
        )
        for op in ("ArgMax", "ArgMin")
        for keep, note in ((1, ""), (0, "axis goes"))
    ),
    Sample(
        "GroupNormalization",
        "(float[4, 12, 10] x) => (float[] y) <float[12] w, float[12] c> "
        "{ y = GroupNormalization<num_groups = 6, epsilon = 0.01>(x, w, c) }",
        free="x[0] x[1].0",
    ),
    Sample(
        "GroupNormalization",
        "(float[b, 12, 10, 5] x) => (float[] y) <float[4] w, float[4] c> "
        "{ y = GroupNormalization<num_groups = 4>(x, w, c) }",
        free="x[1].0",
        opset=18,
        note="scaled by group",
    ),
    Sample(
        "InstanceNormalization",
        "(float[4, 6, 10] x) => (float[] y) <float[6] w, float[6] c> { y = InstanceNormalization(x, w, c) }",
        free="x[0] x[1]",
    ),
    Sample(
        "InstanceNormalization",
        """(float[b, 12, 5, 4] x) => (float[] y)
        <float[4] w, float[4] c, int64[3] groups = {0, 4, -1}, int64[4] back = {-1, 12, 5, 4}, float[12, 1, 1] g>
        { t = Reshape(x, groups) n = InstanceNormalization(t, w, c) r = Reshape(n, back) y = Mul(r, g) }""",
        free="t[1]",
        note="as a group normalisation is exported",
    ),
    Sample(
        "MeanVarianceNormalization",
        "(float[4, 6, 10, 5] x) => (float[] y) { y = MeanVarianceNormalization(x) }",
        free="x[1]",
    ),
    Sample(
        "MeanVarianceNormalization",
        "(float[4, 6, 10, 5] x) => (float[] y) { y = MeanVarianceNormalization<axes = [-1, 1]>(x) }",
        free="x[0] x[2]",
        note="axes",
    ),
    Sample("DFT", "(float[4, 6, 9, 1] x) => (float[] y) { y = DFT(x) }", free="x[0] x[1]"),
    Sample(
        "DFT",
        "(float[4, 6, 9, 2] x) => (float[] y) <int64 axis = {1}> { y = DFT(x, , axis) }",
        free="x[0] x[2]",
        note="axis given",
    ),
    Sample(
        "DFT",
        "(float[4, 6, 9, 1] x) => (float[] y) { y = DFT<axis = 2, onesided = 1>(x) }",
        free="x[0] x[1]",
        opset=17,
        note="attribute",
    ),
]
