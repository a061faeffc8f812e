"""Operators on quantised numbers: scales and zero points go with the axis, or the blocks of it, that they belong to."""

from collections.abc import Sequence

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules.contractions import NEIGHBOURS, conv
from tpcompile.dims.rules.fused_attention import attention
from tpcompile.dims.rules.joins import join

MICROSOFT = "com.microsoft"
ROUNDED = "the sum is rounded to few bits"
RANGE = "the smallest and largest of all of it give its scale"
WITHIN_BLOCK = "a block of a quantised axis has one scale"


def along(op: Relation, parameter: int, axes: Sequence[Dim], axis: int, length: int = 0) -> None:
    """A scale or zero point of a tensor with these axes: one, one per element of `axis`, or one per block of it."""
    if not op.has(parameter):
        return
    own = op.input(parameter)
    if all(dim.unit for dim in own):
        for dim in own:
            op.fresh(dim)
    elif length:
        for k, (dim, of) in enumerate(zip(own, axes, strict=True)):
            op.pair(dim, op.blocks(of, length, WITHIN_BLOCK) if k == axis else of)
    elif len(own) == 1:
        op.pair(own[0], axes[axis])
    else:
        raise NotCovered("a scale or zero point of several axes without blocks")


@rule("QuantizeLinear DequantizeLinear")
@rule("QuantizeLinear DequantizeLinear", domain=MICROSOFT)
def scaled(op: Relation) -> None:
    """Element by element; the scale is of all, of the elements of one axis, or of blocks of it."""
    x = op.input(0)
    op.same(0)
    axis = op.axis("axis", len(x), 1)
    for parameter in (1, 2):
        along(op, parameter, x, axis, op.node.attribute("block_size", 0))


@rule("DynamicQuantizeLinear")
def dynamic(op: Relation) -> None:
    """Element by element, with one scale and zero point for the range of all."""
    if len(op.node.outputs) < 3 or None in op.node.outputs:
        raise NotCovered("nobody asks for its scale")
    op.same(0)
    for dim in (*op.output(1), *op.output(2)):
        op.fresh(dim)
    op.ranged = True


def multiply(op: Relation, left: int, right: int) -> tuple[Dim, Dim]:
    """Relate the operands of a product of matrices as MatMul does; returns its (columns, rows summed over)."""
    a, b, y = op.input(left), op.input(right), op.output()
    if len(a) < 2 or len(b) < 2:
        raise NotCovered("the product of a vector")
    for axes in (a[:-2], b[:-2]):
        for dim, out in zip(reversed(axes), reversed(y[:-2]), strict=False):
            op.pair_or_broadcast(dim, out)
    op.pair(a[-2], y[-2])
    op.pair(b[-1], y[-1])
    op.pair(a[-1], b[-2])
    op.sums(b[-2])
    return y[-1], b[-2]


def per_column(op: Relation, *parameters: int) -> None:
    """Scales, zero points and biases of the last axis of the result, or of all of it."""
    for parameter in parameters:
        along(op, parameter, op.output(), len(op.output()) - 1)


def of_all(op: Relation, *parameters: int) -> None:
    """Scales and zero points of whole tensors."""
    for parameter in parameters:
        if op.has(parameter) and not all(dim.unit for dim in op.input(parameter)):
            raise NotCovered("a scale or zero point of a whole tensor that is not one number")
        for dim in op.input(parameter) if op.has(parameter) else ():
            op.fresh(dim)


@rule("MatMulInteger")
def matmul_integer(op: Relation) -> None:
    """As MatMul; the right operand's zero point is of all or of each column."""
    multiply(op, 0, 1)
    of_all(op, 2)
    per_column(op, 3)


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(op: Relation) -> None:
    """As MatMulInteger, scaled: linear, so rows leave a partial sum, to which the bias is added once."""
    multiply(op, 0, 1)
    of_all(op, 2, 4)
    per_column(op, 3, 5, 6)
    op.once = frozenset((6,)) if op.has(6) else frozenset()


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_matmul(op: Relation) -> None:
    """Columns are free; the range of all of the left operand gives its scale."""
    multiply(op, 0, 1)
    for dim in op.input(0):
        op.whole(dim, RANGE)
    per_column(op, 2, 3, 4)


@rule("QLinearMatMul")
def qlinear_matmul(op: Relation) -> None:
    """Columns are free; rows need whole, as the sum is rounded."""
    _, rows = multiply(op, 0, 3)
    op.whole(rows, ROUNDED)
    of_all(op, 1, 2, 6, 7)
    per_column(op, 4, 5)


@rule("QGemm", domain=MICROSOFT)
def qgemm(op: Relation) -> None:
    """As Gemm; rows need whole where the sum is rounded."""
    y = op.output()
    rows, left = op.input(0) if op.node.attribute("transA", 0) else reversed(op.input(0))
    columns, right = op.input(3) if op.node.attribute("transB", 0) else reversed(op.input(3))
    for a, b in ((rows, right), (left, y[0]), (columns, y[1])):
        op.pair(a, b)
    op.sums(rows)
    of_all(op, 1, 2, 7, 8)
    per_column(op, 4, 5)
    if op.has(6):
        op.broadcast(6)
        op.once = frozenset((6,))
    if op.has(7):
        op.whole(rows, ROUNDED)


@rule("QAttention", domain=MICROSOFT)
def qattention(op: Relation) -> None:
    """As Attention, with a scale and zero point of the weight, or of each of its columns."""
    attention(op, mask=5, past=8, scores=9, length=10)  # it has no operands 9 and 10
    of_all(op, 3, 6)
    for parameter in (4, 7):
        along(op, parameter, op.input(1), 1)


@rule("ConvInteger")
def conv_integer(op: Relation) -> None:
    """As Conv; the weight's zero point is of all or of each channel out."""
    conv(op, bias=4)  # which it does not have
    of_all(op, 2)
    along(op, 3, op.input(1), 0)


@rule("QLinearConv")
def qlinear_conv(op: Relation) -> None:
    """As Conv, but channels in need whole, as the sum is rounded."""
    conv(op, 0, 3, 8)
    op.whole(op.input(3)[1], ROUNDED)
    op.once = frozenset()
    of_all(op, 1, 2, 6, 7)
    along(op, 4, op.input(3), 0)
    along(op, 5, op.input(3), 0)


@rule("QLinearAdd QLinearMul", domain=MICROSOFT)
def qlinear_binary(op: Relation) -> None:
    """Two operands that broadcast, each with a scale and zero point of its own."""
    op.broadcast(0, 3)
    of_all(op, 1, 2, 4, 5, 6, 7)


@rule("QLinearSigmoid QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(op: Relation) -> None:
    """Element by element."""
    op.same(0)
    of_all(op, 1, 2, 3, 4)


@rule("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(op: Relation) -> None:
    """The axis needs all of it; before opset 13 all axes from it on."""
    op.same(0)
    axes, axis = op.output(), op.axis("axis", len(op.output()), -1)
    for dim in axes[axis : axis + 1] if op.node.attribute("opset") >= 13 else axes[axis:]:
        op.whole(dim, "QLinearSoftmax needs all of it")
    of_all(op, 1, 2, 3, 4)


@rule("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_pool(op: Relation) -> None:
    """Batch and channels are free, space needs whole."""
    x, y = op.input(0), op.output()
    channels = len(x) - 1 if op.node.attribute("channels_last", 0) else 1
    for k, (dim, out) in enumerate(zip(x, y, strict=True)):
        if k in (0, channels):
            op.pair(dim, out)
        else:
            op.whole(dim, NEIGHBOURS)
            op.whole(out, NEIGHBOURS)
    of_all(op, 1, 2, 3, 4)


@rule("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(op: Relation) -> None:
    """As Concat of every third operand, each followed by its scale and zero point."""
    y = op.output()
    axis = op.axis("axis", len(y))
    given = range(2, len(op.node.inputs), 3)
    for index in given:
        for k, (dim, out) in enumerate(zip(op.input(index), y, strict=True)):
            if k != axis:
                op.pair(dim, out)
        of_all(op, index + 1, index + 2)
    of_all(op, 0, 1)
    join(op, y[axis], [op.input(index)[axis] for index in given])
