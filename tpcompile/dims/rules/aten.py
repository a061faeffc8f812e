"""Rules of PyTorch's operators, by torch's names, where the standard ones say something else.

Calls that do the same as a standard operator are read as that one (`tpcompile.torch.reading`) and need no rule here.
Many lines below only name the function that serves an ONNX operator too.
"""

from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules import elementwise, lookups, reshapes
from tpcompile.dims.rules.joins import sliced, take
from tpcompile.dims.rules.norms import except_axes

ATEN = "aten"

rule(
    "abs acos acosh add_number asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu "
    "clamp clamp_max clamp_min copysign cos cosh elu empty_like eq erf erfc erfinv exp exp2 expm1 floor floor_divide "
    "fmax fmin fmod full_like ge gelu gt hardsigmoid hardswish hardtanh heaviside hypot isfinite isinf isnan le "
    "leaky_relu log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor logit lt masked_fill max "
    "maximum min minimum mish nan_to_num ne ones_like pow reciprocal relu relu6 remainder round rsqrt rsub selu "
    "sigmoid sign silu sin sinh softplus softsign sqrt square sub_number tan tanh tanhshrink threshold trunc where "
    "xlogy zeros_like",
    domain=ATEN,
)(elementwise.broadcast)
rule("scale", domain=ATEN, linear=(0,))(elementwise.linear_unary)
rule("detach", domain=ATEN, linear=(0,))(elementwise.linear_unary)
rule("arange eye linspace rand randint randn randperm", domain=ATEN)(reshapes.sequence)


@rule("linear", "... k, n k, n -> ... n", domain=ATEN, sums="k")
def linear(op: Relation) -> None:
    """Column parallel (n) needs nothing; row parallel (k) leaves a partial sum, to which the bias is added once."""
    op.once = frozenset((2,)) if op.has(2) else frozenset()


@rule("baddbmm", "b m k, b k n -> b m n", domain=ATEN, sums="k")
def baddbmm(op: Relation) -> None:
    """As Gemm, for each of a batch."""
    op.broadcast(2)
    op.once = frozenset((2,))


@rule("Gather", domain=ATEN)
def gather(op: Relation) -> None:
    """As the standard operator; the row whose gradient is left out is counted as ranks count."""
    lookups.gather(op)
    padding = op.node.attribute("padding_idx", -1)
    if padding >= 0 and op.lookup is not None:
        table = op.input(0)[op.lookup.axis]

        def local(cut: Cut, rank: int) -> int:
            mine = cut.index(table, rank)
            return padding - int(mine[0]) if padding in mine else -1

        op.local_attribute("padding_idx", local, table)


@rule("index", domain=ATEN)
def index(op: Relation) -> None:
    """Indices of one axis look it up; of several they need those whole, and stand where these stood, or first."""
    x, y, axes = op.input(0), op.output(), list(op.node.attribute("axes", ()))
    ids = [op.input(1 + k) for k in range(len(axes))]
    if any(value is None or value.dtype == "bool" for value in op.node.inputs[1:]):
        raise NotCovered("it picks by a mask")
    count = max(map(len, ids))
    together = axes == list(range(axes[0], axes[0] + len(axes)))
    first = axes[0] if together else 0
    rest = [dim for k, dim in enumerate(x) if k not in axes]
    for dim, out in zip(rest, y[:first] + y[first + count :], strict=True):
        op.pair(dim, out)
    for each in ids:
        for dim, out in zip(reversed(each), reversed(y[first : first + count]), strict=False):
            op.pair_or_broadcast(dim, out)
    for axis in axes:
        op.whole(x[axis], "elements picked by index")


@rule("index_put", domain=ATEN)
def index_put(op: Relation) -> None:
    """Axes that are not indexed line up; indexed ones need whole, as do the indices."""
    x, y, axes = op.input(0), op.output(), list(op.node.attribute("axes", ()))
    op.same(0)
    for axis in axes:
        op.whole(x[axis], "elements written by index")
    for k in range(len(axes)):
        for dim in op.input(1 + k):
            op.whole(dim, "elements written by index")
    rest = [dim for k, dim in enumerate(y) if k not in axes]
    updates = op.input(1 + len(axes))
    if axes != list(range(axes[0], axes[0] + len(axes))) or len(updates) < len(rest) - axes[0]:
        raise NotCovered("its values do not lie like what they replace")
    after = rest[axes[0] :]
    for dim, out in zip(updates[len(updates) - len(after) :], after, strict=True):
        op.pair_or_broadcast(dim, out)
    for dim in updates[: len(updates) - len(after)]:
        op.whole(dim, "elements written by index")
    for dim in rest[: axes[0]]:
        op.whole(dim, "elements written by index")


@rule("select", domain=ATEN, linear=(0,))
def select(op: Relation) -> None:
    """One element of an axis, which goes: the axis is what stands before it, it, and what stands behind."""
    x, y = op.input(0), op.output()
    axis, picked = op.node.attribute("dim") % len(x), op.node.attribute("index")
    for dim, out in zip([dim for k, dim in enumerate(x) if k != axis], y, strict=True):
        op.pair(dim, out)
    if picked is None or not x[axis].static:
        op.whole(x[axis], "an element picked by index")
        return
    first = picked % x[axis].size
    start, _, when = take(op, x[axis], None, first, first + 1)
    op.local_attribute("index", start, *when)


@rule("slice", domain=ATEN, linear=(0,))
def slice_(op: Relation) -> None:
    """As the standard operator, of one axis."""
    x, y = op.input(0), op.output()
    axis = op.node.attribute("dim") % len(x)
    for k, (dim, out) in enumerate(zip(x, y, strict=True)):
        if k != axis:
            op.pair(dim, out)
    bounds, varies, operand = [], False, 1
    for name in ("start", "end"):
        if name in op.node.attributes:
            bounds.append([op.node.attribute(name)] * len(x[axis].sizes))
        else:
            known, value = op.known(operand), op.value(operand)
            if known is None or value is None:
                raise NotCovered("where it begins or ends is computed")
            bounds.append([int(k) for k in known])
            varies |= not value.fixed
            operand += 1
    start, stop, when = sliced(op, x[axis], y[axis], bounds[0], bounds[1], op.node.attribute("step", 1), varies)
    if start is not None:
        op.local_attribute("start", start, *when)
    if stop is not None:
        op.local_attribute("end", stop, *when)


@rule("unbind", domain=ATEN)
def unbind(op: Relation) -> None:
    """Each element of an axis by itself; the axis needs whole."""
    x = op.input(0)
    axis = op.node.attribute("dim") % len(x)
    op.whole(x[axis], "it is taken apart")
    for k in range(len(op.node.outputs)):
        for dim, out in zip([dim for k, dim in enumerate(x) if k != axis], op.output(k), strict=True):
            op.pair(dim, out)


@rule("stack", domain=ATEN)
def stack(op: Relation) -> None:
    """Operands side by side along a new axis, which is whole."""
    y = op.output()
    axis = op.node.attribute("dim") % len(y)
    op.whole(y[axis], "operands stand side by side in it")
    for k in range(len(op.node.inputs)):
        for dim, out in zip(op.input(k), [dim for k, dim in enumerate(y) if k != axis], strict=True):
            op.pair(dim, out)


@rule("repeat_interleave", domain=ATEN)
def repeat_interleave(op: Relation) -> None:
    """Each element several times: the copies are the inner factor of the result."""
    x, y, copies = op.input(0), op.output(), op.node.attribute("repeats")
    if op.node.attribute("dim") is None or not isinstance(copies, int):
        raise NotCovered("it repeats the flattened tensor, or each element as often as another tensor says")
    axis = op.node.attribute("dim") % len(x)
    for k, (dim, out) in enumerate(zip(x, y, strict=True)):
        if k != axis or copies == 1:
            op.pair(dim, out)
        else:
            inner = Dim((copies,) * len(dim.sizes))
            op.whole(inner, "the copies of an element")
            op.pair(op.product(dim, inner), out)


@rule("unflatten", domain=ATEN, linear=(0,))
def unflatten(op: Relation) -> None:
    """One axis becomes several."""
    x, y = op.input(0), op.output()
    axis, count = op.node.attribute("dim") % len(x), len(y) - len(x) + 1
    for dim, out in zip(x[:axis] + x[axis + 1 :], y[:axis] + y[axis + count :], strict=True):
        op.pair(dim, out)
    parts = y[axis : axis + count]
    reshapes.regroup(op, [x[axis]], parts)
    op.scaled_shape(1, parts)


@rule("made_like", domain=ATEN)
def made_like(op: Relation) -> None:
    """A fresh value of sizes that are given; the first operand tells its type only."""
    for dim in (*op.input(0), *op.output()):
        op.fresh(dim)
    op.scaled_shape(1, op.output())


@rule("cumsum cumprod cummax cummin logcumsumexp flip roll", domain=ATEN)
def running(op: Relation) -> None:
    """The axis it runs along needs whole."""
    dims = op.node.attribute("dim", op.node.attribute("dims"))
    rank = len(op.input(0))
    axes = set(range(rank)) if dims in (None, []) else {d % rank for d in ([dims] if isinstance(dims, int) else dims)}
    for k in range(len(op.node.outputs)):
        except_axes(op, axes, f"{op.node.op} runs along it", k)


@rule("diff", domain=ATEN)
def difference(op: Relation) -> None:
    """Neighbours along an axis, with what is put before and behind them: it needs whole."""
    y = op.output()
    axis = op.node.attribute("dim") % len(y)
    for index in range(len(op.node.inputs)):
        for k, (dim, out) in enumerate(zip(op.input(index), y, strict=True)):
            if k == axis:
                op.whole(dim, "differences of neighbours")
                op.whole(out, "differences of neighbours")
            else:
                op.pair(dim, out)


@rule("pad constant_pad_nd", domain=ATEN)
def pad(op: Relation) -> None:
    """Axes that get no padding are as they were; pairs of widths are listed from the last axis on."""
    widths = op.node.attribute("pad")
    if widths is None:
        raise NotCovered("the padding is computed")
    rank = len(op.input(0))
    except_axes(op, {rank - 1 - k // 2 for k, width in enumerate(widths) if width}, "a padded axis")


@rule("max_along min_along", domain=ATEN)
def extreme(op: Relation) -> None:
    """The largest or smallest along an axis, and where it stands: the axis needs whole."""
    x = op.input(0)
    axis = op.node.attribute("dim") % len(x)
    op.whole(x[axis], "it is searched")
    for k in range(len(op.node.outputs)):
        y = op.output(k)
        kept = [dim for k, dim in enumerate(y) if k != axis] if op.node.attribute("keepdim") else y
        for dim, out in zip([dim for k, dim in enumerate(x) if k != axis], kept, strict=True):
            op.pair(dim, out)


@rule("noise", domain=ATEN)
def noise(op: Relation) -> None:
    """Random numbers: every rank draws all of them, alike, and takes its part."""
    for dim in op.output():
        op.whole(dim, "ranks draw the same random numbers")
