"""Samples of operators that pick elements by index."""

from tests.rules.sample import Sample

_TABLE = "(int64[b, s] ids) => (float[] y) <float[{rows}, 6] w> {{ y = Gather(w, ids) }}"

SAMPLES = [
    Sample("Gather", _TABLE.format(rows=12), free="w[1]", sums="w[0]", note="ids", values={"ids": (0, 12)}),
    Sample("Gather", _TABLE.format(rows=13), free="w[1]", sums="w[0]", note="negative ids", values={"ids": (-13, 13)}),
    Sample(
        "Gather",
        "(int32[b, s] ids) => (float[] y) <float[6, 13] w> { y = Gather<axis = 1>(w, ids) }",
        free="w[0]",
        sums="w[1]",
        note="last axis, int32",
        values={"ids": (-13, 13)},
    ),
    Sample(
        "Gather",
        "(int64[s] ids, float[4, 14, 5] x) => (float[] y) { y = Gather<axis = -2>(x, ids) }",
        free="x[0] x[2]",
        sums="x[1]",
        note="of an activation",
        values={"ids": (-14, 14)},
    ),
    Sample(
        "Gather",
        "(int64[b, s] ids, float[4, 14, 5, 6] x) => (float[] y) { y = Gather<axis = 1>(x, ids) }",
        free="x[0] x[2] x[3]",
        sums="x[1]",
        note="in the middle, ids of two axes",
        values={"ids": (-14, 14)},
    ),
    Sample(
        "Gather",
        "(int64 id) => (float[] y) <float[14, 6] w> { y = Gather(w, id) }",
        free="w[1]",
        sums="w[0]",
        note="one id",
        values={"id": (-14, 14)},
    ),
    Sample(
        "Gather",
        "(float[b, 12, 6] x) => (float[] y) <int64 i = {4}> { y = Gather<axis = 1>(x, i) }",
        free="x[1].0 x[1].2 x[2]",
        note="constant",
    ),
    Sample(
        "Gather",
        "(float[b, 6, 12] x) => (float[] y) <int64[1] i = {-3}> { y = Gather<axis = 2>(x, i) }",
        free="x[1] x[2].0 x[2].2",
        note="constant, axis stays",
    ),
    Sample(
        "Gather",
        "(float[b, 6, 12] x) => (float[] y) <int64[4] i = {3, 4, 5, 6}> { y = Gather<axis = 2>(x, i) }",
        free="x[1] x[2].0 x[2].2",
        note="constant run",
    ),
    Sample(
        "Gather",
        "(float[b, 6, 12] x) => (float[] y) <int64[4] i = {3, 7, 5, -1}> { y = Gather<axis = 2>(x, i) }",
        free="x[1] y[2]",
        sums="x[2]",
        note="constants that are no run",
    ),
    Sample(
        "Gather",
        "(float[b, s, 12] x) => (float[] y) <int64 i = {-1}> { y = Gather<axis = 1>(x, i) }",
        free="x[2]",
        note="the last of an axis of unknown size",
    ),
    Sample(
        "GatherElements",
        "(float[6, 10] x, int64[6, 4] i) => (float[] y) { y = GatherElements<axis = 1>(x, i) }",
        free="x[0]",
        values={"i": (-10, 10)},
    ),
    Sample(
        "GatherElements",
        "(float[6, 10] x, int64[6, 8] i) => (float[] y) { y = GatherElements<axis = 0>(x, i) }",
        note="fewer columns",
        values={"i": (0, 6)},
    ),
    Sample(
        "GatherND",
        "(float[6, 8, 10] x, int64[5, 2] i) => (float[] y) { y = GatherND(x, i) }",
        free="x[2] i[0]",
        values={"i": (0, 6)},
    ),
    Sample(
        "GatherND",
        "(float[4, 6, 10] x, int64[4, 5, 1] i) => (float[] y) { y = GatherND<batch_dims = 1>(x, i) }",
        free="x[0] x[2] i[1]",
        note="batched",
        values={"i": (0, 6)},
    ),
    Sample(
        "GatherND",
        "(float[12, 10] x) => (float[] y) <int64[1, 1] i = {4}> { y = GatherND(x, i) }",
        free="x[0].0 x[0].2 x[1]",
        note="constant",
    ),
    Sample(
        "ScatterND",
        "(float[6, 8, 10] x, int64[3, 1] i, float[3, 8, 10] u) => (float[] y) { y = ScatterND(x, i, u) }",
        free="x[1] x[2]",
        values={"i": (0, 6)},
    ),
    Sample(
        "ScatterND",
        "(float[6, 8, 10] x, int64[3, 2] i, float[3, 10] u) => (float[] y) "
        '{ y = ScatterND<reduction = "add">(x, i, u) }',
        free="x[2]",
        note="adds",
        values={"i": (0, 6)},
    ),
    Sample(
        "ScatterElements",
        "(float[6, 10] x, int64[6, 4] i, float[6, 4] u) => (float[] y) { y = ScatterElements<axis = 1>(x, i, u) }",
        free="x[0]",
        values={"i": (0, 10)},
    ),
    Sample(
        "ScatterElements",
        "(float[6, 10] x, int64[4, 8] i, float[4, 8] u) => (float[] y) "
        '{ y = ScatterElements<reduction = "add">(x, i, u) }',
        note="fewer columns, adds",
        values={"i": (0, 6)},
    ),
    Sample(
        "TensorScatter",
        """(float[4, 6, 9, 8] cache, float[4, 6, 2, 8] new, int64[4] at) => (float[] y)
        { y = TensorScatter(cache, new, at) }""",
        free="cache[0] cache[1] cache[3]",
        values={"at": (0, 7)},
        opset=24,
    ),
    Sample(
        "TensorScatter",
        """(float[b, 9, 12] cache, float[b, 3, 12] new, int64[b] at) => (float[] y)
        { y = TensorScatter<axis = 1, mode = "circular">(cache, new, at) }""",
        free="cache[2]",
        values={"at": (0, 9)},
        opset=24,
        note="circular",
    ),
    Sample(
        "OneHot",
        "(int64[4, 6] i) => (float[] y) <int64 depth = {5}, float[2] off_on = {-1, 2}> "
        "{ y = OneHot(i, depth, off_on) }",
        free="i[0] i[1]",
    ),
    Sample(
        "OneHot",
        "(int64[4, 6] i) => (float[] y) <int64[1] depth = {5}, float[2] off_on = {0, 1}> "
        "{ y = OneHot<axis = 1>(i, depth, off_on) }",
        free="i[0] i[1]",
        note="axis inside",
    ),
    Sample(
        "Compress",
        "(float[b, 6, 10] x, bool[6] c) => (float[] y) { y = Compress<axis = 1>(x, c) }",
        free="x[2]",
    ),
    Sample("Compress", "(float[4, 6] x, bool[6] c) => (float[] y) { y = Compress(x, c) }", note="of all"),
    Sample(
        "ReverseSequence",
        "(float[9, 4, 6] x, int64[4] lengths) => (float[] y) { y = ReverseSequence(x, lengths) }",
        free="x[1] x[2]",
        values={"lengths": (1, 9)},
    ),
    Sample(
        "ReverseSequence",
        "(float[4, 9, 6] x, int64[4] n) => (float[] y) { y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, n) }",
        free="x[0] x[2]",
        values={"n": (1, 9)},
        note="batch first",
    ),
]
