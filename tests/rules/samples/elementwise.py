"""Samples of operators that act on each element."""

from tests.rules.sample import Sample

_DOMAINS = {
    "Acos": (-1, 1), "Acosh": (1, 3), "Asin": (-1, 1), "Atanh": (-0.9, 0.9), "Log": (0.1, 3), "Sqrt": (0, 4),
    "Tan": (-1, 1), "Reciprocal": (1, 3),
}  # fmt: skip
_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish IsInf IsNaN "
    "LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan "
    "Tanh ThresholdedRelu Identity"
)

_BROADCAST = "(float[b, 6, 10] x, float[b, 1, 10] z) => (float[] y) <float[6, 1] w> {{ t = {op}(x, z) y = {op}(t, w) }}"
_COMPARE = "(float[b, 6, 10] x) => (bool[] y) <float[10] w> {{ y = {op}(x, w) }}"
_LOGIC = "(bool[b, 6, 10] x, bool[6, 1] z) => (bool[] y) {{ y = {op}(x, z) }}"
_BITS = "(int32[b, 6, 10] x, int32[10] z) => (int32[] y) {{ y = {op}(x, z) }}"
_MANY = "(float[b, 6, 10] x, float[b, 1, 10] z) => (float[] y) <float[6, 1] w> {{ y = {op}(x, z, w) }}"

SAMPLES = [
    Sample(
        "SwiGLU",
        "(float[b, 6, 10] x, float[b, 6, 10] z) => (float[] y) { y = SwiGLU<alpha = 1.5>(x, z) }",
        free="x[1] x[2]",
        opset=28,
    ),
    Sample("BitCast", "(float[b, 6, 10] x) => (int32[] y) { y = BitCast<to = 6>(x) }", free="x[1] x[2]", opset=26),
    *(
        Sample(
            op,
            f"(float[b, 6, 10] x) => ({'bool' if op in ('IsInf', 'IsNaN') else 'float'}[] y) {{ y = {op}(x) }}",
            free="x[1] x[2]",
            opset=24 if op == "Swish" else 23,
            values={"x": _DOMAINS[op]} if op in _DOMAINS else {},
        )
        for op in _UNARY.split()
    ),
    Sample("Not", "(bool[b, 6, 10] x) => (bool[] y) { y = Not(x) }", free="x[1] x[2]"),
    Sample("BitwiseNot", "(int32[b, 6, 10] x) => (int32[] y) { y = BitwiseNot(x) }", free="x[1] x[2]"),
    Sample("Cast", "(float[b, 6, 10] x) => (double[] y) { y = Cast<to = 11>(x) }", free="x[1] x[2]", note="wider"),
    Sample(
        "Cast",
        "(float[b, 6, 10] x) => (float[] y) { t = Cast<to = 10>(x) y = Cast<to = 1>(t) }",
        free="x[1] x[2]",
        note="narrower",
    ),
    Sample("Cast", "(float[b, 6, 10] x) => (int64[] y) { y = Cast<to = 7>(x) }", free="x[1] x[2]", note="integer"),
    Sample(
        "Clip",
        "(float[b, 6, 10] x) => (float[] y) <float low = {-0.5}, float high = {0.7}> { y = Clip(x, low, high) }",
        free="x[1] x[2]",
    ),
    Sample(
        "Clip", "(float[b, 6, 10] x, float low) => (float[] y) { y = Clip(x, low) }", free="x[1] x[2]", note="computed"
    ),
    Sample("Dropout", "(float[b, 6, 10] x) => (float[] y, bool[] z) { y, z = Dropout(x) }", free="x[1] x[2]"),
    Sample(
        "Dropout",
        "(float[b, 6, 10] x) => (float[] y) { y = Dropout<ratio = 0.1>(x) }",
        free="x[1] x[2]",
        opset=11,
        note="old",
    ),
    *(Sample(op, _BROADCAST.format(op=op), free="x[1] x[2]") for op in ("Add", "Sub", "Mul")),
    Sample("Div", _BROADCAST.format(op="Div"), free="x[1] x[2]", values={"z": (1, 2), "w": (-2, -1)}),
    Sample("Pow", _BROADCAST.format(op="Pow"), free="x[1] x[2]", values={"x": (0.5, 2)}),
    *(Sample(op, _MANY.format(op=op), free="x[1] x[2]") for op in ("Sum", "Max", "Min", "Mean")),
    Sample("Add", "(float[b, s, 6] x) => (float[] y) <float c = {3}> { y = Add(c, x) }", free="x[2]", note="scalar"),
    Sample(
        "Sub", "(float[b, s, 6] x) => (float[] y) <float[6] w> { y = Sub(w, x) }", free="w[0]", note="from a weight"
    ),
    Sample("Mul", "(float[6, 1] x, float[1, 10] z) => (float[] y) { y = Mul(x, z) }", free="x[0] z[1]", note="outer"),
    Sample(
        "Add", "(float[b, 7, 5] x, float[b, 7, 5] z) => (float[] y) { y = Add(x, z) }", free="x[1] x[2]", note="odd"
    ),
    *(
        Sample(op, _COMPARE.format(op=op), free="x[1] x[2]")
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ),
    *(Sample(op, _LOGIC.format(op=op), free="x[1] x[2]") for op in ("And", "Or", "Xor")),
    *(Sample(op, _BITS.format(op=op), free="x[1] x[2]") for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    Sample(
        "BitShift",
        '(uint8[b, 6, 10] x, uint8[10] z) => (uint8[] y) { y = BitShift<direction = "LEFT">(x, z) }',
        free="x[1] x[2]",
    ),
    Sample(
        "Mod",
        "(float[b, 6, 10] x) => (float[] y) <float[10] w> { y = Mod<fmod = 1>(x, w) }",
        free="x[1] x[2]",
        values={"w": (0.5, 2)},
    ),
    Sample("PRelu", "(float[b, 6, 10] x) => (float[] y) <float[6, 1] w> { y = PRelu(x, w) }", free="x[1] x[2]"),
    Sample(
        "Where",
        "(bool[b, 1, 10] c, float[b, 6, 10] x) => (float[] y) <float[6, 1] w> { y = Where(c, x, w) }",
        free="c[2] x[1]",
    ),
    Sample(
        "CastLike",
        "(float[b, 6, 10] x, double[4] like) => (double[] y) { y = CastLike(x, like) }",
        free="x[1] x[2] like[0]",
    ),
]
