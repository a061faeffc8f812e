"""Rules of PyTorch's operators, by torch's names, where the standard ones say something else.

Calls that do the same as a standard operator are read as that one (`tpcompile.torch.reading`) and need no rule here.
Many lines below only name the function that serves an ONNX operator too.
"""

import re

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules import contractions, elementwise, images, norms, reductions

ATEN = "aten"

rule(
    "__lshift__ __rshift__ _prelu_kernel abs acos acosh add_number addcdiv addcmul angle asin asinh atan atan2 atanh "
    "bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max "
    "clamp_min clip complex copysign cos cosh deg2rad digamma elu empty_like eq erf erfc erfinv exp exp2 expm1 "
    "fill floor floor_divide fmax fmin fmod frac full_like gcd ge gelu gt hardshrink hardsigmoid hardswish hardtanh "
    "heaviside hypot i0 imag isclose isfinite isinf isnan isneginf isposinf lcm le leaky_relu lerp lgamma log log10 "
    "log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit lt masked_fill "
    "max maximum min minimum mish nan_to_num ne nextafter ones_like polar polygamma pow rad2deg real reciprocal relu "
    "relu6 remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square "
    "sub_number tan tanh threshold trunc where xlogy zeros_like",
    domain=ATEN,
)(elementwise.broadcast)
rule("scale detach", domain=ATEN, linear=(0,))(elementwise.linear_unary)


@rule("native_dropout", domain=ATEN)
def native_dropout(op: Relation) -> None:
    """In evaluation the identity; the mask has the axes of the data."""
    if op.node.attribute("train") and op.node.attribute("p"):
        raise NotCovered("it draws numbers")
    elementwise.dropout(op)


@rule("prelu", domain=ATEN)
def prelu(op: Relation) -> None:
    """A slope for each channel, or one for all."""
    op.same(0)
    x, slope = op.input(0), op.input(1)
    for dim in slope:
        op.pair_or_broadcast(dim, x[min(1, len(x) - 1)])


@rule("bucketize", domain=ATEN)
def bucketize(op: Relation) -> None:
    """Each element by itself; the boundaries need whole."""
    op.same(0)
    for dim in op.input(1):
        op.whole(dim, "each element is looked for in it")


@rule("view_as_complex", domain=ATEN)
def view_as_complex(op: Relation) -> None:
    """The last axis, real and imaginary part, goes; it needs whole. Sums are reduced before: they are sent as reals."""
    _parts(op, op.input(0), op.output())


@rule("view_as_real", domain=ATEN, linear=(0,))
def view_as_real(op: Relation) -> None:
    """A last axis of real and imaginary part appears; it needs whole."""
    _parts(op, op.output(), op.input(0))


def _parts(op: Relation, real: list[Dim], numbers: list[Dim]) -> None:
    for dim, other in zip(real[:-1], numbers, strict=True):
        op.pair(dim, other)
    op.whole(real[-1], "real and imaginary part")


# -- products --------------------------------------------------------


@rule("linear", "... k, n k, n -> ... n", domain=ATEN, sums="k")
def linear(op: Relation) -> None:
    """Column parallel (n) needs nothing; row parallel (k) leaves a partial sum, to which the bias is added once."""
    op.once = frozenset((2,)) if op.has(2) else frozenset()


def _added_once(op: Relation) -> None:
    op.broadcast(2)
    op.once = frozenset((2,))


@rule("baddbmm", "b m k, b k n -> b m n", domain=ATEN, sums="k")
def baddbmm(op: Relation) -> None:
    """As Gemm, for each of a batch."""
    _added_once(op)


@rule("addbmm", "b m k, b k n -> m n", domain=ATEN, sums="b k")
def addbmm(op: Relation) -> None:
    """As Gemm, summed over a batch as well."""
    _added_once(op)


@rule("addmv", "m k, k -> m", domain=ATEN, sums="k")
def addmv(op: Relation) -> None:
    """As Gemm, with a vector."""
    _added_once(op)


@rule("addr", "m, n -> m n", domain=ATEN)
def addr(op: Relation) -> None:
    """As Gemm, of two vectors: nothing is summed over."""
    op.broadcast(2)


@rule("outer", "m, n -> m n", domain=ATEN, linear=(0, 1))
def outer(op: Relation) -> None:
    """Every element times every other."""


@rule("grouped_mm", domain=ATEN, linear=(0, 1))
def grouped_mm(op: Relation) -> None:
    """Rows in groups, and a matrix for each group, of a mixture of experts.  "n k, e k m, e -> n m" """
    x, w = op.input(0), op.input(1)
    if len(x) != 2 or len(w) != 3 or not op.has(2) or op.has(3):
        raise NotCovered("only rows in groups, times a matrix for each, have a rule")
    for dim in (x[0], w[0]):
        op.whole(dim, "where groups of rows end is known when it runs")
    op.pair(x[0], op.output()[0])
    op.whole(op.input(2)[0], "each group begins where the one before ends")
    op.pair(x[1], w[1])
    op.sums(x[1])
    op.pair(w[2], op.output()[1])


@rule("_grouped_mm", domain=ATEN, linear=(0, 1))
def aligned_grouped_mm(op: Relation) -> None:
    """As `grouped_mm`; torch's own takes rows that begin at multiples of 16 bytes."""
    grouped_mm(op)
    for dim in op.input(1)[1:]:
        op.blocks(dim, 8, "rows must begin at multiples of 16 bytes")


@rule("histc", domain=ATEN)
def histc(op: Relation) -> None:
    """Every element may count in every place."""
    for dim in op.input(0):
        op.whole(dim, "elements of all of it are counted together")
    op.whole(op.output()[0], "it is counted as one")


@rule("inner dot", domain=ATEN)
def inner(op: Relation) -> None:
    """The last axes are summed over, all others stay.  "m k, n k -> m n" """
    x, z, y = op.input(0), op.input(1), op.output()
    if not x or not z:
        raise NotCovered("a tensor without axes")
    op.pair(x[-1], z[-1])
    op.sums(x[-1])
    for dim, out in zip([*x[:-1], *z[:-1]], y, strict=True):
        op.pair(dim, out)


@rule("tensordot", domain=ATEN)
def tensordot(op: Relation) -> None:
    """Pairs of axes are summed over, the others stay in order."""
    x, z, y = op.input(0), op.input(1), op.output()
    dims = op.node.attribute("dims_self"), op.node.attribute("dims_other")
    pairs = [(a % len(x), b % len(z)) for a, b in zip(*dims, strict=True)]
    for a, b in pairs:
        op.pair(x[a], z[b])
        op.sums(x[a])
    kept = [dim for k, dim in enumerate(x) if k not in [a for a, _ in pairs]]
    kept += [dim for k, dim in enumerate(z) if k not in [b for _, b in pairs]]
    for dim, out in zip(kept, y, strict=True):
        op.pair(dim, out)


@rule("bilinear", "... i, ... j, n i j, n -> ... n", domain=ATEN, sums="i j")
def bilinear(op: Relation) -> None:
    """Two operands meet in each column; each may be row parallel."""
    op.once = frozenset((3,)) if op.has(3) else frozenset()


@rule("cdist", "... m k, ... n k -> ... m n", domain=ATEN, whole="k", why="distances are made of all of it")
def cdist(op: Relation) -> None:
    """Each row of the one by each of the other."""


@rule("cosine_similarity", domain=ATEN)
def cosine_similarity(op: Relation) -> None:
    """Operands broadcast to each other; the axis that vectors lie along goes, and needs whole."""
    x, z, y = op.input(0), op.input(1), op.output()
    rank = max(len(x), len(z))
    axis = op.node.attribute("dim") % rank
    for axes in (x, z):
        if len(axes) < rank:
            raise NotCovered("operands of different rank")
        op.whole(axes[axis], "lengths are made of all of it")
        for dim, out in zip([dim for k, dim in enumerate(axes) if k != axis], y, strict=True):
            op.pair_or_broadcast(dim, out)


@rule("linalg_cross", domain=ATEN)
def cross(op: Relation) -> None:
    """Vectors of three lie along an axis, which needs whole."""
    op.broadcast(0, 1)
    axis = op.node.attribute("dim") % len(op.output())
    op.whole(op.output()[axis], "a product of vectors")


@rule("Conv", domain=ATEN)
def conv(op: Relation) -> None:
    """As the standard operator, of a batch."""
    _of_a_batch(op)
    contractions.conv(op)


@rule("ConvTranspose", domain=ATEN)
def conv_transpose(op: Relation) -> None:
    """As the standard operator, of a batch."""
    _of_a_batch(op)
    contractions.conv_transpose(op)


def _of_a_batch(op: Relation) -> None:
    if len(op.input(0)) != len(op.input(1)):
        raise NotCovered("an image without a batch")


HEAD = "attention needs a head's features whole"


@rule("Attention", domain=ATEN)
def attention(op: Relation) -> None:
    """Heads are independent; with fewer key heads, query heads = key heads × group. Length and head size need whole."""
    q, k, v, y = op.input(0), op.input(1), op.input(2), op.output()
    lead = y[:-2]
    for dim in (q[-1], k[-1], v[-1], y[-1]):
        op.whole(dim, HEAD)
    op.pair(q[-2], y[-2])
    op.pair(k[-2], v[-2])
    for dim in (q[-2], k[-2]):
        op.whole(dim, "masks and causality go by positions")
    for axes in (q, k, v):
        grouped = axes is not q and bool(op.node.attribute("enable_gqa")) and len(axes) > 2
        if grouped:
            group = Dim(tuple(a // b for a, b in zip(lead[-1].sizes, axes[-3].sizes, strict=True)))
            op.pair(lead[-1], op.product(axes[-3], group))
        outer = axes[: -3 if grouped else -2]
        for dim, out in zip(reversed(outer), reversed(lead[:-1] if grouped else lead), strict=False):
            op.pair_or_broadcast(dim, out)
    if op.has(3):
        mask = op.input(3)
        for dim in mask[-2:]:
            op.whole(dim, "attention looks along it")
        for dim, out in zip(reversed(mask[:-2]), reversed(lead), strict=False):
            op.pair_or_broadcast(dim, out)
    for index in range(1, len(op.node.outputs)):  # the sums of each query's weights; seeds
        for place, dim in enumerate(op.output(index) if op.outputs[index] is not None else ()):
            if index == 1 and place < len(lead):
                op.pair(dim, lead[place])
            else:
                op.whole(dim, "attention looks along it")


# -- norms, images ---------------------------------------------------


rule("var std median var_mean std_mean aminmax", domain=ATEN)(reductions.reduce_whole)


@rule(
    "batch_norm instance_norm native_batch_norm _native_batch_norm_legit_no_training "
    "_native_batch_norm_legit_functional",
    domain=ATEN,
)
def batch_norm(op: Relation) -> None:
    """Each channel by itself; what makes statistics needs all the rest whole."""
    x = op.input(0)
    op.same(0)
    if op.node.attribute("training", op.node.attribute("use_input_stats", False)):
        for dim in (x[0], *x[2:]):
            op.whole(dim, "statistics are made of all of it")
    others = [op.input(k) for k in range(1, len(op.node.inputs)) if op.has(k)]
    for axes in (*others, *(op.output(k) for k in range(1, len(op.node.outputs)))):
        for dim in axes:
            if dim.sizes == x[1].sizes:
                op.pair(dim, x[1])
            else:
                op.fresh(dim)


def _in_space(op: Relation) -> None:
    """All axes line up but the last ones, of which the operator's name tells the number: "avg_pool2d"."""
    found = re.search(r"(\d)d", op.node.op)
    count = int(found[1]) if found else 0
    rank = len(op.input(0))
    for k in range(len(op.node.outputs)):
        norms.except_axes(op, set(range(rank - count, rank)), "space that an operator on images looks at", k)


@rule(
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool1d max_pool2d max_pool3d "
    "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices reflection_pad1d reflection_pad2d "
    "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d upsample_linear1d upsample_nearest1d "
    "_upsample_nearest_exact1d upsample_bicubic2d upsample_bilinear2d upsample_nearest2d _upsample_nearest_exact2d "
    "upsample_trilinear3d upsample_nearest3d _upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    domain=ATEN,
)
def in_space(op: Relation) -> None:
    """Each image by itself, channel by channel; space needs whole. Where maxima stand is counted within an image."""
    _in_space(op)


@rule(
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d",
    domain=ATEN,
    linear=(0,),
)
def average_pool(op: Relation) -> None:
    """The same; partial sums pass, and get smaller."""
    _in_space(op)


rule("grid_sampler grid_sampler_2d grid_sampler_3d", domain=ATEN)(images.grid_sample)
