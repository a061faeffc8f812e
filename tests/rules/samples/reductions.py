"""Samples of operators that reduce axes."""

from tests.rules.sample import Sample

_WHOLE = "ReduceMax ReduceMin ReduceProd ReduceL2 ReduceLogSum ReduceLogSumExp"

SAMPLES = [
    *(
        Sample(
            op,
            f"(float[b, 6, 10] x) => (float[] y) <int64[1] axes = {{-1}}> {{ y = {op}(x, axes) }}",
            free="x[1]",
            values={"x": (0.5, 2)} if op == "ReduceLogSum" else {},
        )
        for op in _WHOLE.split()
    ),
    *(
        Sample(
            op,
            f"(float[b, 6, 10] x) => (float[] y) <int64[1] axes = {{-1}}> {{ y = {op}(x, axes) }}",
            free="x[1]",
            sums="x[2]",
        )
        for op in ("ReduceL1", "ReduceSumSquare")
    ),
    Sample(
        "ReduceSumSquare",
        """(float[b, 6, 10] x) => (float[] y) <float[10, 14] w, int64[2] axes = {1, 2}>
        { t = MatMul(x, w) y = ReduceSumSquare<keepdims = 0>(t, axes) }""",
        sums="t[1] t[2]",
        note="of a sum",
    ),
    Sample(
        "ReduceMax",
        "(float[b, 6, 10] x) => (float[] y) { y = ReduceMax<axes = [1], keepdims = 0>(x) }",
        free="x[2]",
        opset=11,
        note="attribute",
    ),
    *(
        Sample(
            op,
            f"(float[b, 6, 10] x) => (float[] y) <int64[{len(axes.split(','))}] axes = {{{axes}}}> "
            f"{{ y = {op}<keepdims = {keep}>(x, axes) }}",
            free=free,
            sums=sums,
            note=f"axes {axes} keepdims {keep}",
        )
        for op in ("ReduceSum", "ReduceMean")
        for axes, keep, free, sums in (
            ("-1", 1, "x[1]", "x[2]"),
            ("1", 0, "x[2]", "x[1]"),
            ("-2, 2", 0, "", "x[1] x[2]"),
            ("0", 0, "x[1] x[2]", ""),
        )
    ),
    Sample(
        "ReduceMean", "(float[7, 5] x) => (float[] y) { y = ReduceMean<keepdims = 0>(x) }", sums="x[0] x[1]", note="all"
    ),
    Sample("ReduceSum", "(float[7, 5] x) => (float[] y) { y = ReduceSum(x) }", sums="x[0] x[1]", note="all"),
    Sample(
        "ReduceSum",
        "(float[7, 5] x) => (float[] y) <int64[0] axes = {}> { y = ReduceSum<noop_with_empty_axes = 1>(x, axes) }",
        free="x[0] x[1]",
        note="none",
    ),
    Sample(
        "ReduceMean",
        "(float[b, 6, 10] x) => (float[] y) { y = ReduceMean<axes = [1, -1], keepdims = 1>(x) }",
        sums="x[1] x[2]",
        opset=13,
        note="attribute",
    ),
    Sample(
        "ReduceSum",
        "(float[b, 6, 10] x) => (float[] y) { y = ReduceSum<axes = [-1], keepdims = 0>(x) }",
        free="x[1]",
        sums="x[2]",
        opset=11,
        note="attribute",
    ),
    Sample(
        "ReduceMean",
        """(float[b, s, 24] x) => (float[] y) <int64[4] shape = {0, 0, 4, 6}, int64[2] axes = {1, -1}>
        { t = Reshape(x, shape) y = ReduceMean<keepdims = 0>(t, axes) }""",
        free="t[2]",
        sums="t[3]",
        note="a factor, and an axis of unknown size",
    ),
]
