"""Samples of operators that act on each element."""

from tests.torch_fx.sample import Sample

X = "x: 5 6 10"
BOTH = "x: 5 6 10, z: 6 1"
FREE = "x[0] x[1] x[2]"
Range = tuple[float, float]


def unary(targets: str, between: Range = (-3, 3), inputs: str = X, code: str = "(x)", passes: str = "") -> list[Sample]:
    """One operand each."""
    values = {"x": between}
    return [Sample(name, inputs, code, free=FREE, passes=passes, values=values) for name in targets.split()]


def binary(targets: str, inputs: str = BOTH, code: str = "(x, z)", passes: str = "", **values: Range) -> list[Sample]:
    """Two operands each, one of which broadcasts; or one and a number."""
    return [Sample(name, inputs, code, free=FREE, passes=passes, values=values) for name in targets.split()]


def number(targets: str, code: str = "(x, 2)", inputs: str = X, passes: str = "", note: str = "") -> list[Sample]:
    """One operand and a number."""
    return [Sample(name, inputs, code, free=FREE, passes=passes, note=note) for name in targets.split()]


INTEGERS = "x: 5 6 10 int, z: 6 1 int"
BOOLS = "x: 5 6 10 bool, z: 6 1 bool"

SAMPLES = [
    *unary(
        "abs angle asinh atan ceil celu cos cosh deg2rad elu erf erfc exp exp2 expm1 floor frac gelu hardshrink "
        "hardsigmoid hardswish hardtanh i0 leaky_relu log_sigmoid mish nan_to_num rad2deg real relu relu6 round selu "
        "sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink square tan tanh trunc isfinite isinf isnan "
        "isneginf isposinf logical_not"
    ),
    *unary("acos asin atanh erfinv", (-0.9, 0.9)),
    *unary("acosh digamma lgamma log log10 log1p log2 reciprocal rsqrt sqrt", (1.1, 3)),
    *unary("logit", (0.1, 0.9)),
    *unary("polygamma", (1, 3), code="(2, x)"),
    *unary("bitwise_not", inputs="x: 5 6 10 int"),
    *unary("neg negative clone alias_copy detach", passes="x"),
    Sample("detach_copy", X, "(x)", free=FREE, passes="x", trains=False),
    Sample("contiguous", X, "(x)"),
    Sample("contiguous", X, "aten.contiguous(x.transpose(1, 2), memory_format=torch.contiguous_format)", note="turned"),
    Sample("alias", X, "(x)"),
    Sample("lift", X, "(x)", free=FREE, passes="x"),
    *unary("imag", inputs="x: 5 6 10 complex64"),
    # casts
    Sample("to.dtype", X, "(x, torch.float64)", free=FREE, passes="x", note="wider"),
    Sample("to.dtype", "x: 5 6 10 float64", "(x, torch.float32)", free=FREE, note="narrower"),
    Sample("to.dtype", X, "(x, torch.int32)", free=FREE, note="whole numbers"),
    Sample("to.dtype_layout", X, "(x, dtype=torch.float64)", free=FREE, passes="x"),
    Sample("to.device", X, "(x, torch.device('cpu'), torch.float64)", free=FREE, passes="x"),
    Sample("_to_copy", X, "(x, dtype=torch.float64)", free=FREE, passes="x"),
    Sample("type_as", "x: 5 6 10, z: 3 float64", "(x, z)", free=f"{FREE} z[0]"),
    Sample("to.other", "x: 5 6 10, z: 3 float64", "(x, z)", free=f"{FREE} z[0]"),
    # two operands
    Sample("add.Tensor", "x: b 6 10, z: 6 1", "(x, z)", free="x[1] x[2]", note="of unknown length"),
    Sample("add.Tensor", "x: 5 6 10, z: 10 weight", "(x, z, alpha=2.5)", free=FREE, note="alpha"),
    *binary("add.Tensor sub.Tensor subtract.Tensor"),
    *binary("mul.Tensor multiply.Tensor", passes="x z"),
    *binary("div.Tensor divide.Tensor true_divide.Tensor", passes="x", z=(0.5, 2)),
    *binary("div.Tensor_mode divide.Tensor_mode", code="(x, z, rounding_mode='floor')", z=(0.5, 2)),
    *binary(
        "atan2 copysign.Tensor eq.Tensor fmax fmin fmod.Tensor ge.Tensor gt.Tensor hypot "
        "isclose le.Tensor logaddexp logaddexp2 logical_and logical_or logical_xor lt.Tensor maximum minimum max.other "
        "min.other ne.Tensor nextafter remainder.Tensor rsub.Tensor"
    ),
    *binary("pow.Tensor_Tensor", x=(0.5, 2)),
    *binary("xlogy.Tensor", z=(0.5, 2)),
    *binary("polar", code="torch.view_as_real(aten.polar.default(x, z))"),
    *binary("complex", code="torch.view_as_real(aten.complex.default(x, z))"),
    *binary("__and__.Tensor __or__.Tensor __xor__.Tensor", BOOLS),
    *binary(
        "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_left_shift.Tensor bitwise_right_shift.Tensor "
        "__lshift__.Tensor __rshift__.Tensor gcd lcm",
        INTEGERS,
    ),
    *number("add.Scalar sub.Scalar subtract.Scalar rsub.Scalar"),
    *number("mul.Scalar multiply.Scalar div.Scalar divide.Scalar true_divide.Scalar", passes="x"),
    *number("add.Tensor sub.Tensor", note="a number"),
    *number("mul.Tensor div.Tensor", passes="x", note="a number"),
    *number("div.Scalar_mode divide.Scalar_mode", "(x, 2, rounding_mode='trunc')"),
    *number("pow.Tensor_Scalar"),
    *number("pow.Scalar", "(2.5, x)"),
    *number("eq.Scalar ne.Scalar ge.Scalar gt.Scalar le.Scalar lt.Scalar fmod.Scalar remainder.Scalar"),
    *number("__and__.Scalar __or__.Scalar __xor__.Scalar bitwise_and.Scalar", inputs="x: 5 6 10 int"),
    Sample("bitwise_and.Scalar_Tensor", "x: 5 6 10 int", "(3, x)", free=FREE),
    Sample("mul.Tensor", "x: 5 6 10, n: ", "(x, n)", free=FREE, passes="x", note="a tensor without axes"),
    Sample("add.Tensor", "x: 5 6 10, n: ", "(x, n)", free=FREE, note="a tensor without axes"),
    # several operands
    Sample("clamp", X, "(x, -0.5, 0.5)", free=FREE),
    Sample("clamp.Tensor", BOTH, "(x, z)", free=FREE),
    Sample("clamp_max", X, "(x, 0.5)", free=FREE),
    Sample("clamp_min", X, "(x, 0.5)", free=FREE),
    Sample("clip", X, "(x, -0.5, 0.5)", free=FREE),
    Sample("threshold", X, "(x, 0.1, 2.0)", free=FREE),
    Sample("lerp.Scalar", BOTH, "(x, z, 0.3)", free=FREE),
    Sample("lerp.Tensor", "x: 5 6 10, z: 6 1, w: 10 weight", "(x, z, w)", free=FREE),
    Sample("addcmul", "x: 6 10, z: 6 1, v: 5 1 10", "(x, z, v, value=0.5)", free="x[0] x[1] v[0]"),
    Sample("addcdiv", "x: 6 10, z: 6 1, v: 5 1 10", "(x, z, v)", free="x[0] x[1] v[0]", values={"v": (0.5, 2)}),
    Sample("where.self", "m: 5 6 1 bool, x: 6 10, z: 10 weight", "(m, x, z)", free="m[0] m[1] x[1]"),
    Sample("where.ScalarOther", "m: 5 6 1 bool, x: 6 10", "(m, x, 1.5)", free="m[0] m[1] x[1]"),
    Sample("where.ScalarSelf", "m: 5 6 1 bool, x: 6 10", "(m, 1.5, x)", free="m[0] m[1] x[1]"),
    Sample("where.Scalar", "m: 5 6 10 bool", "(m, 1.5, -0.5)", free="m[0] m[1] m[2]"),
    Sample("masked_fill.Scalar", "x: 5 6 10, m: 6 1 bool", "(x, m, 1.5)", free=FREE),
    Sample("masked_fill.Tensor", "x: 5 6 10, m: 6 1 bool, n: ", "(x, m, n)", free=FREE),
    Sample("floor_divide", BOTH, "(x, z)", free=FREE, values={"z": (0.5, 2)}, trains=False),
    Sample("heaviside", BOTH, "(x, z)", free=FREE, trains=False),
    Sample("copy", "x: 5 6 10, z: 6 1", "(x, z)", trains=False, note="is read as what it writes"),
    Sample("fill.Scalar", X, "(x, 2.5)", free=FREE),
    Sample("fill.Tensor", "x: 5 6 10, n: ", "(x, n)", free=FREE),
    Sample("full_like", X, "(x, 2.5)", free=FREE),
    Sample("ones_like", X, "(x)", free=FREE),
    Sample("zeros_like", X, "(x)", free=FREE),
    Sample("empty_like", X, "(x)", free=FREE, exact=False),
    Sample("prelu", "x: 5 6 10, w: 6 weight", "(x, w)", free=FREE),
    Sample("prelu", "x: 5 6 10, w: 1 weight", "(x, w)", free=FREE, note="one slope"),
    Sample("_prelu_kernel", "x: 5 6 10, w: 6 1 weight", "(x, w)", free=FREE),
    Sample("bucketize.Tensor", "x: 5 6 10, z: 5", "aten.bucketize.Tensor(x, torch.cumsum(z.abs(), 0))", free=FREE),
    Sample("native_dropout", X, "(x, 0.5, False)", free=FREE),
    Sample("alpha_dropout", X, "(x, 0.5, False)", free=FREE, passes="x"),
    Sample("feature_dropout", X, "(x, 0.5, False)", free=FREE, passes="x"),
    Sample("feature_alpha_dropout", X, "(x, 0.5, False)", free=FREE, passes="x"),
    # complex numbers
    Sample("view_as_complex", "x: 5 6 10 2", "torch.view_as_real(aten.view_as_complex.default(x) * 2)", free=FREE),
    Sample("view_as_real", "x: 5 6 10 complex64", "(x)", free=FREE, passes="x"),
    Sample(
        "view_as_complex",
        "x: 5 6 10 2, z: 10 2",
        "p = torch.view_as_complex(x); torch.view_as_real(p * torch.view_as_complex(z))",
        free=FREE,
        note="a rotation",
    ),
]  # fmt: skip
