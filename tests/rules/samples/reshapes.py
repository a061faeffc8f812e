"""Samples of operators that only rearrange axes."""

from tests.rules.sample import Sample


def reshape(x: str, shape: str, note: str, attributes: str = "allowzero = 0", **claims: str) -> Sample:
    count = len(shape.split(","))
    text = (
        f"(float[{x}] x) => (float[] y) <int64[{count}] shape = {{{shape}}}> {{ y = Reshape<{attributes}>(x, shape) }}"
    )
    return Sample("Reshape", text, note=note, **claims)


SAMPLES = [
    Sample("Transpose", "(float[b, 6, 10] x) => (float[] y) { y = Transpose<perm = [2, 0, 1]>(x) }", free="x[1] x[2]"),
    Sample(
        "Transpose", "(float[6, 7, 5] x) => (float[] y) { y = Transpose(x) }", free="x[0] x[1] x[2]", note="reversed"
    ),
    Sample(
        "Unsqueeze",
        "(float[6, 10] x) => (float[] y) <int64[2] axes = {0, -2}> { y = Unsqueeze(x, axes) }",
        free="x[0] x[1]",
    ),
    Sample(
        "Unsqueeze",
        "(float[6, 10] x) => (float[] y) { y = Unsqueeze<axes = [1, 3]>(x) }",
        free="x[0] x[1]",
        opset=11,
        note="attribute",
    ),
    Sample(
        "Squeeze",
        "(float[1, 6, 1, 10] x) => (float[] y) <int64[1] axes = {-2}> { y = Squeeze(x, axes) }",
        free="x[1] x[3]",
    ),
    Sample("Squeeze", "(float[1, 6, 1, 10] x) => (float[] y) { y = Squeeze(x) }", free="x[1] x[3]", note="all"),
    Sample(
        "Squeeze",
        "(float[1, 6, 1, 10] x) => (float[] y) { y = Squeeze<axes = [0, 2]>(x) }",
        free="x[1] x[3]",
        opset=11,
        note="attribute",
    ),
    Sample(
        "Squeeze", "(float[1, 6, 1, 10] x) => (float[] y) { y = Squeeze(x) }", free="x[1] x[3]", opset=12, note="old"
    ),
    reshape("b, s, 24", "0, 0, 6, 4", "heads", free="x[2].0 x[2].1"),
    reshape("b, s, 24", "0, 0, 3, -1", "heads, the rest computed", free="x[2].0 x[2].1"),
    reshape("b, s, 24", "0, -1, 3, 8", "length computed", free="x[2].0 x[2].1"),
    reshape("b, 6, s, 4", "-1, 3, 4", "a factor of the heads joins batch and length", free="x[3]"),
    reshape("b, s, 6, 5", "0, 0, -1", "merge", free="x[2] x[3]"),
    reshape("b, s, 6, 5", "0, 0, 30", "merge, spelled", free="x[2] x[3]"),
    reshape("b, 6, 4, 10", "-1, 4, 10", "batch and heads", free="x[1] x[2] x[3]"),
    reshape("6, b, 10", "-1, 10", "heads and batch", free="x[0] x[2]"),
    reshape("4, 6", "8, 3", "blocks of two", free="x[0] x[1].0 x[1].1"),
    reshape("6, 10", "10, 6", "the outer half in common", free="x[0].0"),
    reshape("6, 35", "35, 6", "nothing in common"),
    reshape("6, 10", "3, 20", "the first in two, one half to the second", free="x[0].0 x[0].1 x[1]"),
    reshape("7, 15", "21, 5", "odd sizes", free="x[0] x[1].0 x[1].1"),
    reshape("4, 1, 6", "4, 6, 1", "a unit moves", "allowzero = 1", free="x[0] x[2]"),
    reshape("b, 12, 10", "0, 3, 2, 2, 10", "one of three factors", free="x[1].0 x[1].1 x[1].2 x[2]"),
    reshape("b, 10", "0, 2, 5", "heads of an odd size", free="x[1].0 x[1].1"),
    reshape("b, s, 24", "0, 0, 2, 3, 4", "three factors", free="x[2].0 x[2].1 x[2].2"),
    reshape("b, 6, 1, 10", "0, 60", "with a unit", free="x[1] x[3]"),
    Sample(
        "Reshape",
        """(float[b, s, 24] x) => (float[] y) <int64[2] heads = {6, 4}>
        { size = Shape<end = 2>(x) shape = Concat<axis = 0>(size, heads) y = Reshape(x, shape) }""",
        free="x[2].0 x[2].1",
        note="computed shape",
    ),
    Sample(
        "Reshape",
        """(float[b, s, 6, 4] x) => (float[] y) <int64 two = {2}, int64 three = {3}, int64[1] zero = {0}>
        { size = Shape(x) h = Gather(size, two) d = Gather(size, three) n = Mul(h, d) m = Unsqueeze(n, zero)
          bs = Shape<end = 2>(x) shape = Concat<axis = 0>(bs, m) y = Reshape(x, shape) }""",
        free="x[2] x[3]",
        note="shape computed from a cut value",
    ),
    Sample("Flatten", "(float[b, 6, 10] x) => (float[] y) { y = Flatten(x) }", free="x[1] x[2]"),
    Sample(
        "Flatten",
        "(float[4, 6, 10] x) => (float[] y) { y = Flatten<axis = -1>(x) }",
        free="x[0] x[1] x[2]",
        note="last",
    ),
    Sample(
        "Expand",
        "(float[b, 6, 1, 10] x) => (float[] y) <int64[4] shape = {1, 6, 4, 10}> { y = Expand(x, shape) }",
        free="x[1] x[3] y[2]",
    ),
    Sample(
        "Expand",
        "(float[6, 1] x) => (float[] y) <int64[3] shape = {4, 1, 10}> { y = Expand(x, shape) }",
        free="x[0] y[0] y[2]",
        note="new axes",
    ),
    Sample(
        "Expand",
        """(float[b, 3, s, 8] x) => (float[] y)
        <int64[1] two = {2}, int64[1] group = {4}, int64[4] flat = {0, 12, -1, 8}>
        { u = Unsqueeze(x, two) bk = Shape<end = 2>(x) sd = Shape<start = 2>(x) shape = Concat<axis = 0>(bk, group, sd)
          e = Expand(u, shape) y = Reshape(e, flat) }""",
        free="u[1] u[4] e[2]",
        note="key heads repeated for their group",
    ),
    Sample(
        "Tile",
        "(float[b, 6, 10] x) => (float[] y) <int64[3] n = {1, 3, 1}> { y = Tile(x, n) }",
        free="x[1] x[2]",
    ),
    Sample(
        "Tile",
        "(float[b, 1, 10] x) => (float[] y) <int64[3] n = {1, 6, 2}> { y = Tile(x, n) }",
        free="x[2]",
        note="a unit",
    ),
    Sample(
        "ConstantOfShape",
        """(float[b, 6, 10] x) => (float[] y)
        { shape = Shape(x) c = ConstantOfShape<value = float[1] {2.5}>(shape) y = Add(x, c) }""",
        free="c[1] c[2]",
    ),
    Sample(
        "Range",
        "(int64 n, float[1, 6] x) => (float[] y) <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}> "
        "{ r = Range(zero, n, one) c = Cast<to = 1>(r) u = Unsqueeze(c, last) y = Mul(u, x) }",
        values={"n": (5, 6)},
    ),
]
