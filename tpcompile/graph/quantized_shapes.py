"""Shape functions of ONNX Runtime's operators on quantised numbers."""

from __future__ import annotations

from tpcompile.graph.contrib_shapes import MICROSOFT, broadcast, like_first
from tpcompile.graph.shape_functions import Described, ShapeQuery, shape_function

shape_function(MICROSOFT, "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "MoE", "QMoE")(like_first)


@shape_function(MICROSOFT, "QuantizeLinear")
def quantized(op: ShapeQuery) -> list[Described]:
    """The axes stay; of the zero point's type, or bytes."""
    return [(op.dtype(2) if op.has(2) else "uint8", op.shape(0))]


@shape_function(MICROSOFT, "DequantizeLinear")
def dequantized(op: ShapeQuery) -> list[Described]:
    """The axes stay; of the scale's type."""
    return [(op.dtype(1), op.shape(0))]


@shape_function(MICROSOFT, "MatMulNBits")
def last_axis_is_n(op: ShapeQuery) -> list[Described]:
    """The last axis has the size that the attribute N says."""
    return [(op.dtype(0), (*op.shape(0)[:-1], op.attribute("N")))]


@shape_function(MICROSOFT, "GatherBlockQuantized")
def gathered(op: ShapeQuery) -> list[Described]:
    """As Gather, of the scales' type; bytes of several numbers each become as many."""
    shape = list(op.shape(0))
    if op.dtype(0) == "uint8":
        shape[-1] *= 8 // op.attribute("bits", 4)
    axis = op.attribute("gather_axis", 0) % len(shape)
    return [(op.dtype(2), (*shape[:axis], *op.shape(1), *shape[axis + 1 :]))]


@shape_function(MICROSOFT, "DynamicQuantizeMatMul", "MatMulIntegerToFloat")
def matmul(op: ShapeQuery) -> list[Described]:
    """As MatMul, of the scale's type."""
    a, b = op.shape(0), op.shape(1)
    return [(op.dtype(2), (*broadcast(a[:-2], b[:-2]), a[-2], b[-1]))]


@shape_function(MICROSOFT, "QGemm")
def qgemm(op: ShapeQuery) -> list[Described]:
    """[rows, columns], of the zero point's type if the result is rounded."""
    rows = op.shape(0)[1 if op.attribute("transA", 0) else 0]
    columns = op.shape(3)[0 if op.attribute("transB", 0) else 1]
    return [(op.dtype(8) if op.has(7) else op.dtype(1), (rows, columns))]


@shape_function(MICROSOFT, "QLinearAdd", "QLinearMul")
def qlinear_binary(op: ShapeQuery) -> list[Described]:
    """What the two broadcast to."""
    return [(op.dtype(0), broadcast(op.shape(0), op.shape(3)))]


@shape_function(MICROSOFT, "QLinearConcat")
def qlinear_concat(op: ShapeQuery) -> list[Described]:
    """As Concat of every third operand from the third on."""
    shapes = [op.shape(k) for k in range(2, len(op.operands), 3)]
    axis = op.attribute("axis") % len(shapes[0])
    size = sum(shape[axis] for shape in shapes)
    return [(op.dtype(2), (*shapes[0][:axis], size, *shapes[0][axis + 1 :]))]


@shape_function(MICROSOFT, "QLinearGlobalAveragePool")
def qlinear_global_pool(op: ShapeQuery) -> list[Described]:
    """Space becomes 1."""
    batch, *rest = op.shape(0)
    if op.attribute("channels_last", 0):
        return [(op.dtype(0), (batch, *(1 for _ in rest[:-1]), rest[-1]))]
    return [(op.dtype(0), (batch, rest[0], *(1 for _ in rest[1:])))]


@shape_function(MICROSOFT, "QAttention")
def attention(op: ShapeQuery) -> list[Described]:
    """[batch, length, a third of the weight's columns], of the scale's type; keys and values after the past ones."""
    batch, length, _ = op.shape(0)
    hidden, heads = op.shape(1)[1] // 3, op.attribute("num_heads")
    past = op.shape(8)[3] if op.has(8) else 0
    return [
        (op.dtype(3), (batch, length, hidden)),
        (op.dtype(3), (2, batch, heads, past + length, hidden // heads)),
    ]
