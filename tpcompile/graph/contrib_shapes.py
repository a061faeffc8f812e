"""Shape functions of ONNX Runtime's operators on floats: norms, activations, products, convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tpcompile.graph.shape_functions import Described, ShapeQuery, Unknown, shape_function

MICROSOFT = "com.microsoft"


@shape_function(
    MICROSOFT,
    *("BiasAdd", "BiasGelu", "FastGelu", "GatedRMSNorm", "Gelu", "GroupNorm", "Inverse", "MRotaryEmbedding"),
    *("QuickGelu", "RotaryEmbedding"),
)
def like_first(op: ShapeQuery) -> list[Described]:
    """The first operand's."""
    return [op.like(0)]


@shape_function(MICROSOFT, "BiasSplitGelu")
def half(op: ShapeQuery) -> list[Described]:
    """Half of the last axis."""
    *rest, last = op.shape(0)
    return [(op.dtype(0), (*rest, last // 2))]


@shape_function("", "LayerNormalization")
def old_norm(op: ShapeQuery) -> list[Described]:
    """Before opset 17 a secret of ONNX Runtime's: the input's, mean and deviation."""
    return [op.like(0), *[("float32", _statistic(op))] * 2]


@shape_function("", "SimplifiedLayerNormalization")
def simplified_norm(op: ShapeQuery) -> list[Described]:
    """The input's, and a deviation for all that is normalised together."""
    return [op.like(0), ("float32", _statistic(op))]


@shape_function(MICROSOFT, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_norm(op: ShapeQuery) -> list[Described]:
    """The input's, mean and deviation, and the sum that was normalised."""
    statistic: Described = ("float32", _statistic(op))
    return [op.like(0), statistic, statistic, op.like(0)]


def _statistic(op: ShapeQuery) -> tuple[int, ...]:
    shape = op.shape(0)
    axis = int(op.attribute("axis", -1)) % len(shape)
    return shape[:axis] + (1,) * (len(shape) - axis)


@shape_function(MICROSOFT, "SwiGLU")
def swiglu(op: ShapeQuery) -> list[Described]:
    """The gate's, or half of the last axis where that holds both."""
    *rest, last = op.shape(0)
    return [(op.dtype(0), (*rest, last if op.has(1) else last // 2))]


@shape_function(MICROSOFT, "SkipGroupNorm", "LinearAttentionGate")
def like_first_twice(op: ShapeQuery) -> list[Described]:
    """The first operand's, and once more: what was normalised, or the second gate."""
    return [op.like(0), op.like(0)]


@shape_function(MICROSOFT, "FusedMatMul", "TransposeMatMul")
def fused_matmul(op: ShapeQuery) -> list[Described]:
    """As MatMul, of operands that may be transposed."""
    a, b = _turned(op, 0, "A"), _turned(op, 1, "B")
    batch = broadcast(a[:-2], b[:-2])
    return [(op.dtype(0), (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())))]


def _turned(op: ShapeQuery, index: int, side: str) -> tuple[int, ...]:
    """An operand's shape as [..., rows, columns]."""
    shape = list(op.shape(index))
    if len(shape) > 1 and op.attribute(f"transBatch{side}", 0):
        shape.insert(len(shape) - 2, shape.pop(0))
    if len(shape) > 1 and op.attribute(f"trans{side}", 0):
        shape[-2:] = shape[:-3:-1]
    return tuple(shape)


def broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape that two broadcast to.

    Raises:
        Unknown: they do not.
    """
    rank = max(len(a), len(b))
    found = []
    for x, y in zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True):
        if x != y and 1 not in (x, y):
            raise Unknown(f"{x} and {y} do not broadcast")
        found.append(y if x == 1 else x)
    return tuple(found)


@shape_function(MICROSOFT, "FusedGemm")
def fused_gemm(op: ShapeQuery) -> list[Described]:
    """[rows, columns]."""
    rows = op.shape(0)[1 if op.attribute("transA", 0) else 0]
    columns = op.shape(1)[0 if op.attribute("transB", 0) else 1]
    return [(op.dtype(0), (rows, columns))]


@shape_function(MICROSOFT, "FusedConv")
def fused_conv(op: ShapeQuery) -> list[Described]:
    """[batch, channels out, the places a kernel fits in]."""
    (batch, _, *space), (channels, _, *kernel) = op.shape(0), op.shape(1)
    return [(op.dtype(0), (batch, channels, *_places(op, space, kernel)))]


@shape_function(MICROSOFT, "NhwcConv")
def nhwc_conv(op: ShapeQuery) -> list[Described]:
    """As Conv, with channels last."""
    (batch, *space, _), (channels, *kernel, _) = op.shape(0), op.shape(1)
    return [(op.dtype(0), (batch, *_places(op, space, kernel), channels))]


def _places(op: ShapeQuery, space: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """How many places a kernel fits in, per axis."""
    count = len(space)
    strides, dilations = (op.attribute(name) or [1] * count for name in ("strides", "dilations"))
    pads, auto = op.attribute("pads") or [0] * 2 * count, op.attribute("auto_pad", "NOTSET")
    found = []
    for k, size in enumerate(space):
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            found.append(math.ceil(size / strides[k]))
            continue
        padded = size + (pads[k] + pads[k + count] if auto == "NOTSET" else 0)
        found.append((padded - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1)
    return found
