"""Samples of operators on images and signals: channels are free, space needs whole."""

from tests.torch_fx.sample import Sample

LINE, FLAT, DEEP = "x: 2 6 9", "x: 2 6 8 5", "x: 2 6 4 5 6"
FREE = "x[0] x[1]"


def of(inputs: str, targets: str, code: str, passes: str = "", note: str = "") -> list[Sample]:
    """Operators that are given an image, or a line, or a space, and the same numbers."""
    return [Sample(name, inputs, code, free=FREE, passes=passes, note=note) for name in targets.split()]


SAMPLES = [
    *of(LINE, "avg_pool1d", "(x, [2])", passes="x"),
    *of(FLAT, "avg_pool2d", "(x, [2, 3], [1, 2])", passes="x"),
    *of(DEEP, "avg_pool3d", "(x, [2, 2, 2])", passes="x"),
    *of(LINE, "adaptive_avg_pool1d", "(x, [4])", passes="x"),
    *of(FLAT, "adaptive_avg_pool2d _adaptive_avg_pool2d", "(x, [3, 1])", passes="x"),
    *of(DEEP, "adaptive_avg_pool3d _adaptive_avg_pool3d", "(x, [1, 1, 1])", passes="x"),
    Sample("avg_pool2d", "x: 6 8 5", "(x, [2, 2])", free="x[0]", passes="x", note="an image without a batch"),
    *of(LINE, "max_pool1d max_pool1d_with_indices", "(x, [2])"),
    *of(FLAT, "max_pool2d max_pool2d_with_indices", "(x, [2, 3], [1, 2])"),
    *of(DEEP, "max_pool3d max_pool3d_with_indices", "(x, [2, 2, 2])"),
    *of(LINE, "adaptive_max_pool1d", "(x, [4])"),
    *of(FLAT, "adaptive_max_pool2d", "(x, [3, 1])"),
    *of(DEEP, "adaptive_max_pool3d", "(x, [1, 1, 1])"),
    *of(LINE, "reflection_pad1d replication_pad1d", "(x, [1, 2])"),
    *of(FLAT, "reflection_pad2d replication_pad2d", "(x, [1, 2, 0, 1])"),
    *of(DEEP, "reflection_pad3d replication_pad3d", "(x, [1, 2, 0, 1, 1, 1])"),
    *of(LINE, "upsample_nearest1d _upsample_nearest_exact1d", "(x, [13])"),
    *of(FLAT, "upsample_nearest2d _upsample_nearest_exact2d", "(x, [13, 10])"),
    *of(DEEP, "upsample_nearest3d _upsample_nearest_exact3d", "(x, [8, 5, 9])"),
    *of(LINE, "upsample_linear1d", "(x, [13], False)"),
    *of(FLAT, "upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
        "(x, [13, 10], False)"),
    *of(DEEP, "upsample_trilinear3d", "(x, [8, 5, 9], True)"),
    *of(FLAT, "upsample_nearest2d.vec", "(x, None, [2.0, 1.5])"),
    *of(FLAT, "upsample_bilinear2d.vec", "(x, [13, 10], False, None)"),
    Sample("grid_sampler", f"{FLAT}, g: 2 4 3 2", "(x, g, 0, 0, False)", free="x[0] x[1] g[1] g[2]"),
    Sample("grid_sampler_2d", f"{FLAT}, g: 2 4 3 2", "(x, g, 1, 0, False)", free="x[0] x[1] g[1] g[2]"),
    Sample("grid_sampler_3d", f"{DEEP}, g: 2 4 3 4 3", "(x, g, 0, 1, True)", free="x[0] x[1] g[1] g[2] g[3]"),
]  # fmt: skip
