"""Samples of operators that join and take apart along an axis."""

from tests.rules.sample import Sample


def cut_out(
    starts: str, ends: str, axes: str, steps: str = "", note: str = "", shape: str = "b, 6, 10", **claims: str
) -> Sample:
    """A Slice with constant bounds."""
    count = len(starts.split(","))
    kinds = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    stored = ", ".join(f"int64[{count}] {name} = {{{text}}}" for name, text in kinds.items() if text)
    names = ", ".join(name for name, text in kinds.items() if text)
    text = f"(float[{shape}] x) => (float[] y) <{stored}> {{ y = Slice(x, {names}) }}"
    return Sample("Slice", text, note=note or f"[{starts} : {ends}] of {axes}", **claims)


SAMPLES = [
    Sample(
        "Concat",
        "(float[b, 6, 5] x, float[b, 4, 5] z) => (float[] y) { y = Concat<axis = 1>(x, z) }",
        free="x[1] x[2] z[1]",
    ),
    Sample(
        "Concat",
        "(float[b, s, 6] x, float[b, 1, 6] z) => (float[] y) { y = Concat<axis = -2>(x, z) }",
        free="x[2]",
        note="along an axis of unknown size",
    ),
    Sample(
        "Concat",
        "(float[b, 6] x) => (float[] y) { y = Concat<axis = -1>(x, x) }",
        free="x[1]",
        note="twice the same",
    ),
    Sample(
        "Concat",
        "(float[b, 0, 6] x, float[b, 10, 6] z) => (float[] y) { y = Concat<axis = 1>(x, z) }",
        free="x[2] z[1]",
        note="nothing in front",
    ),
    Sample(
        "Split",
        "(float[b, 5, 14] x) => (float[] p, float[] q, float[] r) <int64[3] sizes = {8, 4, 2}> "
        "{ p, q, r = Split<axis = -1>(x, sizes) }",
        free="x[1] x[2].0 x[2].1 x[2].2",
        note="sizes",
    ),
    Sample(
        "Split",
        "(float[b, 14, 5] x) => (float[] p, float[] q) { p, q = Split<axis = 1, num_outputs = 2>(x) }",
        free="x[1].0 x[1].1 x[2]",
        note="num_outputs",
    ),
    Sample(
        "Split",
        "(float[b, 13, 5] x) => (float[] p, float[] q) { p, q = Split<axis = 1, num_outputs = 2>(x) }",
        free="x[1].0 x[1].1 x[2]",
        note="num_outputs, uneven",
    ),
    Sample(
        "Split",
        "(float[b, 12, 5] x) => (float[] p, float[] q, float[] r) { p, q, r = Split<axis = 1>(x) }",
        free="x[1].0 x[1].1 x[1].2 x[2]",
        opset=13,
        note="equal",
    ),
    Sample(
        "Split",
        "(float[b, 12, 5] x) => (float[] p, float[] q) { p, q = Split<axis = 1, split = [8, 4]>(x) }",
        free="x[1].0 x[1].1 x[2]",
        opset=11,
        note="attribute",
    ),
    Sample(
        "Split",
        "(float[b, 12, 5] x) => (float[] p, float[] q) { p, q = Split<axis = 1>(x) }",
        free="x[1].0 x[1].1 x[2]",
        opset=12,
        note="equal, old",
    ),
    cut_out("0", "4", "-1", free="x[1] x[2].0 x[2].1"),
    cut_out("3", "7", "1", shape="b, 12, 5", free="x[1].0 x[1].1 x[1].2 x[2]"),
    cut_out("-4", "9223372036854775807", "2", note="the end", free="x[1] x[2].0 x[2].1"),
    cut_out(
        "2, -6", "-1, -2", "1, 2", "1, 1", note="two axes, negative bounds", free="x[1].0 x[1].1 x[2].0 x[2].1 x[2].2"
    ),
    cut_out("0, 0", "6, 10", "1, 2", note="all of it", free="x[1] x[2]"),
    cut_out("0", "10", "2", "2", note="every second", free="x[1] x[2].0"),
    cut_out("5, 0", "-100, 3", "1, 2", "-1, 1", note="backwards", free="x[2].0 x[2].1"),
    cut_out("1, 2", "2, 6", "", note="no axes", shape="4, 6, 10", free="x[0].2 x[1].0 x[1].1 x[2]"),
    cut_out("0", "2", "1", shape="b, s, 6", note="an axis of unknown size", free="x[2]"),
    Sample(
        "Slice",
        """(float[b, s, 24] x) => (float[] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {9223372036854775807}, int64[1] axis = {-1},
         int64[1] two = {2}>
        { t = Relu(x) gate = Slice(t, zero, end, axis, two) up = Slice(t, one, end, axis, two) y = Mul(gate, up) }""",
        free="t[2].0",
        note="in turn",
    ),
    Sample(
        "Slice",
        "(float[12, 7] x) => (float[] y) "
        "<int64[2] from = {1, 2}, int64[2] to = {11, 7}, int64[2] axes = {0, 1}, int64[2] steps = {3, 3}> "
        "{ y = Slice(x, from, to, axes, steps) }",
        free="x[0].0",
        note="every third, and not all",
    ),
    Sample(
        "Slice",
        """(float[b, 6, 10] x, int64[b, t] n) => (float[] y) <int64[1] zero = {0}, int64[1] two = {2}>
        { size = Shape<start = 1>(n) y = Slice(x, zero, size, two) }""",
        free="x[1]",
        note="up to a computed end",
        sizes={"b": 2, "t": 4},
    ),
    Sample(
        "Slice",
        """(float[b, s, 12] x) => (float[] y) <int64[2] from = {0, 3}, int64[1] seven = {-2}, int64[2] axes = {1, -1}>
        { size = Shape<start = 1, end = 2>(x) to = Concat<axis = 0>(size, seven) y = Slice(x, from, to, axes) }""",
        free="x[2].0 x[2].1 x[2].2",
        note="one end computed, one not",
    ),
    Sample(
        "Pad",
        "(float[b, 6, 10] x) => (float[] y) <int64[6] pads = {0, 0, 1, 0, 0, 2}, float fill = {3}> "
        "{ y = Pad(x, pads, fill) }",
        free="x[1]",
    ),
    Sample(
        "Pad",
        """(float[b, 6, 10] x) => (float[] y) <int64[2] pads = {-1, 2}, float fill, int64[1] axes = {-2}>
        { y = Pad(x, pads, fill, axes) }""",
        free="x[2]",
        note="axes",
    ),
]
