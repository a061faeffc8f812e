"""Operators that need an axis whole: softmax, normalisations, running sums, sorting, transforms."""

from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules.contractions import in_groups


def except_axes(op: Relation, axes: set[int], why: str, output: int = 0) -> None:
    """All axes line up but some, which are whole on both sides without being one dim."""
    for k, (dim, out) in enumerate(zip(op.input(0), op.output(output), strict=True)):
        if k in axes:
            op.whole(dim, why)
            op.whole(out, why)
        else:
            op.pair(dim, out)


@rule("Softmax LogSoftmax Hardmax")
def softmax(op: Relation) -> None:
    """The axis needs all of it; before opset 13 all axes from it on."""
    rank = len(op.input(0))
    axis = op.axis("axis", rank, -1 if op.node.version >= 13 else 1)
    axes = {axis} if op.node.version >= 13 else set(range(axis, rank))
    except_axes(op, axes, f"{op.node.op} normalises over it")


@rule("LayerNormalization RMSNormalization")
def layer_norm(op: Relation) -> None:
    """Axes from `axis` on are normalised together and need whole, scale and bias as well."""
    x = op.input(0)
    axis = op.axis("axis", len(x), -1)
    why = f"{op.node.op} normalises over it"
    except_axes(op, set(range(axis, len(x))), why)
    for k in range(1, len(op.node.inputs)):
        if op.has(k):
            for dim in op.input(k):
                op.whole(dim, why)
    for k in range(1, len(op.node.outputs)):  # mean and deviation
        if op.node.outputs[k] is not None:
            for dim, out in zip(x[:axis], op.output(k), strict=False):
                op.pair(dim, out)


@rule("CumSum CumProd")
def running(op: Relation) -> None:
    """A running sum or product needs its axis whole."""
    known = op.known(1)
    if known is None:
        raise NotCovered("its axis is computed")
    except_axes(op, {int(known[0].reshape(-1)[0]) % len(op.input(0))}, f"{op.node.op} runs along it")


@rule("Trilu")
def trilu(op: Relation) -> None:
    """The last two axes make the triangle."""
    rank = len(op.input(0))
    except_axes(op, {rank - 2, rank - 1}, "a triangle of the last two axes")


@rule("TopK")
def topk(op: Relation) -> None:
    """The sorted axis needs whole."""
    axis = op.axis("axis", len(op.input(0)), -1)
    for k in range(2):
        if k < len(op.node.outputs) and op.node.outputs[k] is not None:
            except_axes(op, {axis}, "TopK sorts it", k)


@rule("ArgMax ArgMin")
def argmax(op: Relation) -> None:
    """The searched axis needs whole."""
    x, y = op.input(0), op.output()
    axis = op.axis("axis", len(x), 0)
    op.whole(x[axis], f"{op.node.op} searches it")
    rest = [dim for k, dim in enumerate(x) if k != axis]
    kept = [dim for k, dim in enumerate(y) if k != axis] if op.node.attribute("keepdims", 1) else y
    for dim, out in zip(rest, kept, strict=True):
        op.pair(dim, out)


@rule("GroupNormalization")
def group_norm(op: Relation) -> None:
    """Groups of channels are normalised by themselves; scale and bias are per channel, before opset 21 per group."""
    why = "GroupNormalization normalises over it"
    x, y = op.input(0), op.output()
    op.pair(x[0], y[0])
    op.pair(x[1], y[1])
    for dim in (*x[2:], *y[2:]):
        op.whole(dim, why)
    groups = in_groups(op, "num_groups", x[1], why=why)
    for k in (1, 2):
        if op.has(k):
            op.pair(op.input(k)[0], groups if op.node.version < 21 else x[1])


@rule("InstanceNormalization")
def instance_norm(op: Relation) -> None:
    """Each channel is normalised by itself."""
    x, y = op.input(0), op.output()
    op.pair(x[0], y[0])
    op.pair(x[1], y[1])
    for dim in (*x[2:], *y[2:]):
        op.whole(dim, "InstanceNormalization normalises over it")
    for k in (1, 2):
        op.pair(op.input(k)[0], x[1])


@rule("MeanVarianceNormalization")
def mean_variance_norm(op: Relation) -> None:
    """The axes it is given need whole."""
    x = op.input(0)
    axes = {axis % len(x) for axis in op.node.attribute("axes", [0, 2, 3])}
    except_axes(op, axes, "MeanVarianceNormalization normalises over it")


@rule("DFT")
def fourier(op: Relation) -> None:
    """The transformed axis needs whole, as do the real and imaginary parts at the end."""
    rank = len(op.input(0))
    known = op.known(2)
    if op.has(2) and known is None:
        raise NotCovered("its axis is computed")
    axis = int(known[0].reshape(-1)[0]) if known is not None else op.node.attribute("axis", 1)
    if known is None and op.node.version >= 20:
        axis = -2
    except_axes(op, {axis % rank, rank - 1}, "a Fourier transform")
