"""Samples of operators with branches."""

from tests.rules.sample import Sample

SAMPLES = [
    Sample(
        "If",
        """(float[b, 6, 10] x, bool c) => (float[] y, float[] z) <float[10, 8] w>
        { y, z = If(c) <then_branch = t () => (float[] p, float[] q) { p = MatMul(x, w) q = Relu(x) },
                        else_branch = e () => (float[] r, float[] s) { m = Neg(x) r = MatMul(m, w) s = Exp(m) }> }""",
        free="p[1] p[2] q[2]",
    ),
    Sample(
        "If",
        """(float[b, 6, 10] x, bool c) => (float[] y)
        { y = If(c) <then_branch = t () => (float[] p) { p = Concat<axis = 2>(x, x) },
                     else_branch = e () => (float[] r) { r = Neg(x) }> }""",
        free="p[1]",
        note="of other lengths",
    ),
    Sample(
        "If",
        """(float[b, 6, 10] x, bool c, bool d) => (float[] y) <float[6, 1] w>
        { y = If(c) <then_branch = t () => (float[] p) { p = If(d) <
                       then_branch = i () => (float[] u) { u = Mul(x, w) },
                       else_branch = j () => (float[] v) { v = Sin(x) }> },
                     else_branch = e () => (float[] r) { r = Identity(x) }> }""",
        free="u[1] u[2]",
        note="within an If",
    ),
    Sample(
        "If",
        """(float[b, 6, 10] x, bool c) => (uint8[] y)
        { y = If(c) <then_branch = t () => (uint8[] p) { p, s, z = DynamicQuantizeLinear(x) },
                     else_branch = e () => (uint8[] q) { n = Neg(x) q, u, v = DynamicQuantizeLinear(n) }> }""",
        free="p[1] p[2]",
        note="of ranges that ranks agree on",
    ),
]
