"""Operators that act on each element: axes line up from the right, a size of 1 relates to nothing."""

from tpcompile.dims.registry import rule
from tpcompile.dims.relation import Relation

_WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@rule(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish IsInf IsNaN LeakyRelu Log Mish Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus "
    "Softsign Sqrt Swish Tan Tanh ThresholdedRelu"
)
def unary(op: Relation) -> None:
    """One operand, nonlinear: partial sums are reduced before it."""
    op.same(0)


@rule("Identity Neg", linear=(0,))
def linear_unary(op: Relation) -> None:
    """One operand, linear: partial sums pass."""
    op.same(0)


@rule("Cast")
def cast(op: Relation) -> None:
    """Partial sums pass where the type does not get narrower: rounding each part first would lose digits."""
    op.same(0)
    source, target = op.value(0), op.node.outputs[0]
    widths = [_WIDTH.get(value.dtype or "", 0) if value is not None else 0 for value in (source, target)]
    if 0 < widths[0] <= widths[1]:
        op.passes_partials(0)


@rule("CastLike")
def cast_like(op: Relation) -> None:
    """The second operand gives its type only."""
    op.same(0)
    for dim in op.input(1):
        op.fresh(dim)


@rule("Clip")
def clip(op: Relation) -> None:
    """The bounds are scalars."""
    op.same(0)


@rule("Dropout")
def dropout(op: Relation) -> None:
    """At inference the identity; the mask has the axes of the data."""
    op.same(0)
    if len(op.node.outputs) > 1 and op.node.outputs[1] is not None:
        op.same(0, 1)


@rule("Add Sum", joint=True)
def add(op: Relation) -> None:
    """Partial sums add up: several of them are reduced once, together."""
    op.broadcast(*range(len(op.node.inputs)))
    op.passes_partials(*range(len(op.node.inputs)), joint=True)


@rule("Sub", linear=(0, 1), joint=True)
def subtract(op: Relation) -> None:
    """As Add."""
    op.broadcast(0, 1)


@rule("Mul", linear=(0, 1))
def multiply(op: Relation) -> None:
    """A partial sum times a value that is not partial stays a partial sum."""
    op.broadcast(0, 1)


@rule("Div", linear=(0,))
def divide(op: Relation) -> None:
    """A partial sum divided by a value that is not partial stays one."""
    op.broadcast(0, 1)


@rule(
    "And BitShift BitwiseAnd BitwiseOr BitwiseXor Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Or "
    "Pow PRelu SwiGLU Where Xor"
)
def broadcast(op: Relation) -> None:
    """Several operands, nonlinear in each."""
    op.broadcast(*range(len(op.node.inputs)))
