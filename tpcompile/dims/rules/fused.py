"""ONNX Runtime's fused operators but attention: norms with what is added before, activations with a bias, products."""

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules.contractions import NEIGHBOURS, conv, gemm, in_groups
from tpcompile.dims.rules.norms import layer_norm

MICROSOFT = "com.microsoft"
NORMALISED = "the norm is over it"


@rule("SimplifiedLayerNormalization")
def simplified_norm(op: Relation) -> None:
    """The name of RMSNormalization before opset 23."""
    layer_norm(op)


@rule("SkipLayerNormalization SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_norm(op: Relation) -> None:
    """The last axis of input + skip + bias needs whole; the fourth output is that sum, mean and deviation end in 1."""
    y = op.output()
    op.broadcast(0, 1)
    for k in range(2, len(op.node.inputs)):
        if op.has(k):
            op.whole(op.input(k)[0], NORMALISED)
    op.whole(y[-1], NORMALISED)
    for k in range(1, len(op.node.outputs)):
        if op.node.outputs[k] is not None:
            for dim, out in zip(op.output(k), y, strict=True):
                op.pair_or_broadcast(dim, out)


@rule("BiasAdd BiasGelu FastGelu Gelu QuickGelu", domain=MICROSOFT)
def activation(op: Relation) -> None:
    """Each element by itself, after a bias of the last axis."""
    op.broadcast(*range(len(op.node.inputs)))


@rule("BiasSplitGelu", domain=MICROSOFT)
def split_gelu(op: Relation) -> None:
    """The left half times the activated right half: both are cut alike."""
    x, y = op.input(0), op.output()
    for dim, out in zip(x[:-1], y[:-1], strict=True):
        op.pair(dim, out)
    halves = op.concatenation(y[-1], y[-1])
    op.pair(x[-1], halves)
    op.pair(op.input(1)[0], halves)


@rule("SwiGLU", domain=MICROSOFT)
def swiglu(op: Relation) -> None:
    """The activated gate times the other half, which may lie behind it: both are cut alike."""
    if op.has(1):
        op.same(0)
        op.same(1)
        return
    x, y = op.input(0), op.output()
    for dim, out in zip(x[:-1], y[:-1], strict=True):
        op.pair(dim, out)
    op.pair(x[-1], op.concatenation(y[-1], y[-1]))


@rule("FusedMatMul TransposeMatMul", domain=MICROSOFT)
def fused_matmul(op: Relation) -> None:
    """As MatMul, of operands that may be transposed; alpha scales partial sums as well."""
    a, b, y = _turned(op, 0, "A"), _turned(op, 1, "B"), list(op.output())
    if len(a) == len(b) == 1:
        raise NotCovered("the product of two vectors")
    if len(b) > 1:
        op.pair(b[-1], y.pop())
    if len(a) > 1:
        op.pair(a[-2], y.pop())
    for batch in (a[:-2], b[:-2]):
        for dim, out in zip(reversed(batch), reversed(y), strict=False):
            op.pair_or_broadcast(dim, out)
    op.pair(a[-1], b[-2] if len(b) > 1 else b[0])
    op.sums(a[-1])


def _turned(op: Relation, index: int, side: str) -> list[Dim]:
    """An operand's axes as [..., rows, columns]."""
    axes = list(op.input(index))
    if len(axes) > 1 and op.node.attribute(f"transBatch{side}", 0):
        axes.insert(len(axes) - 2, axes.pop(0))
    if len(axes) > 1 and op.node.attribute(f"trans{side}", 0):
        axes[-2:] = axes[:-3:-1]
    return axes


@rule("FusedGemm", domain=MICROSOFT)
def fused_gemm(op: Relation) -> None:
    """As Gemm, with an activation that needs the whole sum."""
    gemm(op)
    _activated(op)


@rule("FusedConv", domain=MICROSOFT)
def fused_conv(op: Relation) -> None:
    """As Conv, with something added to it, and an activation that needs the whole sum."""
    conv(op)
    if op.has(3):
        op.same(3)
        op.once |= {3}
    _activated(op)


@rule("NhwcConv", "n h w c, m p q c, m -> n y x m", domain=MICROSOFT, sums="c", whole="h w p q y x", why=NEIGHBOURS)
def nhwc_conv(op: Relation) -> None:
    """As Conv, with channels last; the bias counts once."""
    if op.node.attribute("group", 1) != 1:
        raise NotCovered("groups of channels")
    op.once = frozenset((2,)) if op.has(2) else frozenset()


def _activated(op: Relation) -> None:
    if op.node.attribute("activation", ""):
        for reduced in op.reduced:
            op.whole(reduced.dim, "an activation follows the sum over it")


@rule("GroupNorm SkipGroupNorm", domain=MICROSOFT)
def group_norm(op: Relation) -> None:
    """Groups of channels are normalised by themselves, after a skip was added; channels come last, or second."""
    x, y = op.input(0), op.output()
    axis = len(x) - 1 if op.node.attribute("channels_last", 1) else 1
    for k, (dim, out) in enumerate(zip(x, y, strict=True)):
        op.pair(dim, out)
        if k not in (0, axis):
            op.whole(dim, NORMALISED)
    in_groups(op, "groups", x[axis], why=NORMALISED)
    op.pair(op.input(1)[0], x[axis])
    op.pair(op.input(2)[0], x[axis])
    if op.has(3):
        skip = op.input(3)
        for dim, out in zip(skip, x if len(skip) == len(x) else (x[0], x[axis]), strict=True):
            op.pair_or_broadcast(dim, out)
    if op.has(4):
        op.pair(op.input(4)[0], x[axis])
    if len(op.node.outputs) > 1 and op.node.outputs[1] is not None:
        op.same(0, 1)


@rule("Inverse", domain=MICROSOFT)
def inverse(op: Relation) -> None:
    """Each matrix by itself."""
    op.same(0)
    for dim in op.input(0)[-2:]:
        op.whole(dim, "all of a matrix tells its inverse")
