"""Samples of operators on images and signals."""

from tests.rules.sample import Sample

_POOLS = {
    "MaxPool": "<kernel_shape = [3, 2], pads = [1, 0, 1, 1], strides = [2, 1]>",
    "AveragePool": "<kernel_shape = [3, 2], pads = [1, 0, 1, 1], strides = [2, 1], count_include_pad = 1>",
    "LpPool": "<kernel_shape = [3, 2], p = 2>",
    "GlobalMaxPool": "",
    "GlobalAveragePool": "",
    "GlobalLpPool": "<p = 1>",
}

SAMPLES = [
    *(
        Sample(
            op,
            f"(float[4, 6, 9, 7] x) => (float[] y) <float[6, 1, 1] w> {{ y = {op}{attributes}(x) z = Mul(y, w) }}",
            free="x[0] x[1]",
            opset=21 if op == "GlobalLpPool" else 23,
        )
        for op, attributes in _POOLS.items()
    ),
    Sample(
        "MaxPool",
        "(float[4, 6, 9] x) => (float[] y, int64[] i) { y, i = MaxPool<kernel_shape = [2]>(x) }",
        note="with indices",
    ),
    *(
        Sample(
            op,
            f"""(float[b, 8, 9] x) => (float[] y) <float[6, 8, 1] w, float[6] c>
            {{ t = Conv(x, w, c) y = {op}{attributes}(t) }}""",
            free="t[1]",
            note="of a sum",
        )
        for op, attributes in (("AveragePool", "<kernel_shape = [2]>"), ("GlobalAveragePool", ""))
    ),
    Sample(
        "RoiAlign",
        """(float[b, 6, 8, 9] x, float[10, 4] regions, int64[10] images) => (float[] y)
        { y = RoiAlign<output_height = 3, output_width = 2, sampling_ratio = 2>(x, regions, images) }""",
        free="x[1] regions[0]",
        values={"regions": (0, 8), "images": (0, 2)},
    ),
    Sample(
        "CausalConvWithState",
        """(float[b, 6, s] x, float[b, 6, 3] past) => (float[] y, float[] state) <float[6, 1, 4] w, float[6] c>
        { y, state = CausalConvWithState<activation = "silu">(x, w, c, past) }""",
        free="x[1]",
        opset=27,
    ),
    Sample(
        "CausalConvWithState",
        """(float[b, 6, s] x) => (float[] y, float[] state) <float[6, 1, 4] w>
        { y, state = CausalConvWithState(x, w) }""",
        free="x[1]",
        opset=27,
        note="without a state",
    ),
    Sample(
        "BatchNormalization",
        "(float[4, 6, 9] x) => (float[] y) <float[6] w, float[6] c, float[6] m, float[6] v> "
        "{ y = BatchNormalization<epsilon = 0.01>(x, w, c, m, v) }",
        free="x[0] x[1] x[2]",
        values={"v": (0.5, 2)},
    ),
    Sample(
        "BatchNormalization",
        """(float[b, 8, 9, 5] x) => (float[] y) <float[6, 8, 3, 3] k, float[6] w, float[6] c, float[6] m, float[6] v>
        { t = Conv(x, k) y = BatchNormalization(t, w, c, m, v) }""",
        free="t[1] t[2] t[3]",
        values={"v": (0.5, 2)},
        opset=14,
        note="of a sum",
    ),
    Sample(
        "BatchNormalization",
        "(float[b, 6] x) => (float[] y) <float[6] w, float[6] c, float[6] m, float[6] v> "
        "{ y = BatchNormalization(x, w, c, m, v) }",
        free="x[1]",
        values={"v": (0.5, 2)},
        note="no space",
    ),
    Sample("LRN", "(float[4, 6, 9, 5] x) => (float[] y) { y = LRN<size = 3>(x) }", free="x[0] x[2] x[3]"),
    Sample(
        "Resize",
        "(float[4, 6, 9, 5] x) => (float[] y) "
        "{ s = Constant<value = float[4] {1, 1, 2, 2.5}>() "
        'y = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , s) }',
        free="x[0] x[1]",
        note="by scales",
    ),
    Sample(
        "Resize",
        "(float[4, 6, 9, 5] x) => (float[] y) <int64[4] z = {4, 6, 12, 7}> "
        '{ y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , , z) }',
        free="x[0] x[1]",
        note="to sizes",
    ),
    Sample(
        "Resize",
        "(float[b, 6, 9, 5] x) => (float[] y) <int64[2] space = {18, 10}, int64[1] zero = {0}, int64[1] two = {2}> "
        """{ d = Shape(x) b_c = Slice(d, zero, two) z = Concat<axis = 0>(b_c, space)
        y = Resize<nearest_mode = "floor", coordinate_transformation_mode = "asymmetric">(x, , , z) }""",
        free="x[1]",
        opset=13,
        note="to sizes that are computed",
    ),
    Sample(
        "Resize",
        "(float[4, 6, 9, 5] x) => (float[] y) <int64[2] z = {10, 8}> "
        '{ y = Resize<axes = [3, 2], mode = "nearest">(x, , , z) }',
        free="x[0] x[1]",
        note="some axes",
    ),
    Sample(
        "Resize",
        """(float[b, 8, 4, 3] x) => (float[] y) <float[6, 8, 1, 1] k>
        { s = Constant<value = float[4] {1, 1, 2, 2}>() t = Conv(x, k) y = Resize<mode = "linear">(t, , s) }""",
        free="t[1]",
        note="of a sum",
    ),
    Sample(
        "Resize",
        "(float[4, 6, 9, 5] x) => (float[] y) <int64[2] z = {18, 9}> "
        '{ y = Resize<axes = [2, 3], mode = "nearest", keep_aspect_ratio_policy = "not_larger">(x, , , z) }',
        note="in proportion",
    ),
    *(
        Sample(
            "DepthToSpace",
            f"""(float[b, 24, 5, 4] x) => (float[] y) <float[6, 1, 1] w>
            {{ t = DepthToSpace<blocksize = 2, mode = "{mode}">(x) y = Mul(t, w) }}""",
            free=free,
            note=mode,
        )
        for mode, free in (("DCR", "x[1].2"), ("CRD", "x[1].0"))
    ),
    Sample(
        "SpaceToDepth",
        """(float[b, 6, 8, 4] x) => (float[] y) <float[24, 1, 1] w>
        { t = SpaceToDepth<blocksize = 2>(x) y = Mul(t, w) }""",
        free="x[1]",
    ),
    Sample(
        "GridSample",
        "(float[4, 6, 9, 5] x, float[4, 8, 3, 2] g) => (float[] y) { y = GridSample(x, g) }",
        free="x[0] x[1] g[1] g[2]",
        values={"g": (-1, 1)},
    ),
]
