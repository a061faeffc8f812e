"""Rules of PyTorch's operators that join, take apart, repeat or rearrange along axes."""

from collections.abc import Sequence

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules import reshapes
from tpcompile.dims.rules.aten import ATEN
from tpcompile.dims.rules.contractions import local_count
from tpcompile.dims.rules.joins import LENGTHS_DEPEND, sliced, take
from tpcompile.dims.rules.norms import except_axes

rule("arange eye linspace logspace scalar_tensor tril_indices triu_indices", domain=ATEN)(reshapes.sequence)


@rule("select", domain=ATEN, linear=(0,))
def select(op: Relation) -> None:
    """One element of an axis, which goes: the axis is what stands before it, it, and what stands behind."""
    _one(op, op.input(0), op.output())


def _one(op: Relation, many: Sequence[Dim], one: Sequence[Dim]) -> None:
    axis, picked = op.node.attribute("dim") % len(many), op.node.attribute("index")
    for dim, other in zip([dim for k, dim in enumerate(many) if k != axis], one, strict=True):
        op.pair(dim, other)
    if picked is None or not many[axis].static:
        op.whole(many[axis], "an element picked by index")
        return
    first = picked % many[axis].size
    start, _, when = take(op, many[axis], None, first, first + 1)
    op.local_attribute("index", start, *when)


@rule("slice", domain=ATEN, linear=(0,))
def slice_(op: Relation) -> None:
    """As the standard operator, of one axis."""
    x, y = op.input(0), op.output()
    axis = op.node.attribute("dim") % len(x)
    for k, (dim, out) in enumerate(zip(x, y, strict=True)):
        if k != axis:
            op.pair(dim, out)
    _between(op, x[axis], y[axis], 1)


def _between(op: Relation, dim: Dim, part: Dim, operand: int) -> None:
    """Relate an axis to the part of it between "start" and "end"; where these are operands they begin at `operand`."""
    bounds, varies = [], False
    for name in ("start", "end"):
        if name in op.node.attributes:
            bounds.append([op.node.attribute(name)] * len(dim.sizes))
        else:
            known, value = op.known(operand), op.value(operand)
            if known is None or value is None:
                raise NotCovered("where it begins or ends is computed")
            bounds.append([int(k) for k in known])
            varies |= not value.fixed
            operand += 1
    start, stop, when = sliced(op, dim, part, bounds[0], bounds[1], op.node.attribute("step", 1), varies)
    if start is not None:
        op.local_attribute("start", start, *when)
    if stop is not None:
        op.local_attribute("end", stop, *when)


@rule("slice_scatter", domain=ATEN)
def slice_scatter(op: Relation) -> None:
    """Part of an axis is replaced: the axis is the sum of what stands before, it, and what stands behind."""
    x, part = op.input(0), op.input(1)
    axis = op.node.attribute("dim") % len(x)
    op.same(0)
    for k, (dim, new) in enumerate(zip(x, part, strict=True)):
        if k != axis:
            op.pair(dim, new)
    _between(op, x[axis], part[axis], 2)


@rule("select_scatter", domain=ATEN)
def select_scatter(op: Relation) -> None:
    """One element of an axis is replaced."""
    x, part = op.input(0), op.input(1)
    op.same(0)
    _one(op, x, part)


@rule("unbind", domain=ATEN)
def unbind(op: Relation) -> None:
    """Each element of an axis by itself; the axis needs whole."""
    x = op.input(0)
    axis = op.node.attribute("dim") % len(x)
    op.whole(x[axis], "it is taken apart")
    for k in range(len(op.node.outputs)):
        for dim, out in zip([dim for k, dim in enumerate(x) if k != axis], op.output(k), strict=True):
            op.pair(dim, out)


@rule("noise", domain=ATEN)
def noise(op: Relation) -> None:
    """Random numbers: every rank draws all of them, alike, and takes its part."""
    for dim in op.output():
        op.whole(dim, "ranks draw the same random numbers")


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


@rule("cumsum cumprod cummax cummin logcumsumexp flip roll rot90 argsort", domain=ATEN)
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


@rule("pad constant_pad_nd _pad_enum _pad_circular", domain=ATEN)
def pad(op: Relation) -> None:
    """Axes that get no padding are as they were; pairs of widths are listed from the last axis on."""
    widths = op.node.attribute("pad")
    if widths is None:
        raise NotCovered("the padding is computed")
    rank = len(op.input(0))
    except_axes(op, {rank - 1 - k // 2 for k, width in enumerate(widths) if width}, "a padded axis")


@rule("max_along mode kthvalue", domain=ATEN)
def extreme(op: Relation) -> None:
    """One element along an axis, and where it stands: the axis needs whole."""
    x = op.input(0)
    axis = op.node.attribute("dim") % len(x)
    op.whole(x[axis], "it is searched")
    for k in range(len(op.node.outputs)):
        y = op.output(k)
        kept = [dim for k, dim in enumerate(y) if k != axis] if op.node.attribute("keepdim") else y
        for dim, out in zip([dim for k, dim in enumerate(x) if k != axis], kept, strict=True):
            op.pair(dim, out)


@rule("split narrow", domain=ATEN)
def taken_apart(op: Relation) -> None:
    """Where the lengths of parts are computed, their axis needs whole."""
    axis = op.node.attribute("dim") % len(op.input(0))
    for k in range(len(op.node.outputs)):
        except_axes(op, {axis}, LENGTHS_DEPEND, k)


@rule("unfold", domain=ATEN, linear=(0,))
def windows(op: Relation) -> None:
    """Windows along an axis, which need it whole, as does the axis of what a window shows."""
    x, y = op.input(0), op.output()
    axis = op.node.attribute("dimension") % len(x)
    for k, (dim, out) in enumerate(zip(x, y[:-1], strict=True)):
        if k != axis:
            op.pair(dim, out)
    for dim in (x[axis], y[axis], y[-1]):
        op.whole(dim, "windows that overlap")


@rule("diagonal", domain=ATEN, linear=(0,))
def diagonal(op: Relation) -> None:
    """Two axes become one, their diagonal; all three need whole."""
    _crossing(op, op.input(0), op.output())


@rule("diag_embed", domain=ATEN, linear=(0,))
def diag_embed(op: Relation) -> None:
    """The last axis becomes the diagonal of two; all three need whole."""
    _crossing(op, op.output(), op.input(0))


def _crossing(op: Relation, square: Sequence[Dim], line: Sequence[Dim]) -> None:
    axes = {op.node.attribute(name) % len(square) for name in ("dim1", "dim2")}
    for dim in (*(square[axis] for axis in axes), line[-1]):
        op.whole(dim, "a diagonal")
    for dim, other in zip([dim for k, dim in enumerate(square) if k not in axes], line[:-1], strict=True):
        op.pair(dim, other)


@rule("repeat", domain=ATEN)
def repeat(op: Relation) -> None:
    """As Tile; more repeats than axes make new axes in front, which need whole."""
    x, y, known = op.input(0), op.output(), op.known(1)
    if known is None:
        raise NotCovered("the repeats are computed")
    for dim in y[: len(y) - len(x)]:
        op.whole(dim, "the copies of a repeat")
    for place, (dim, out) in enumerate(zip(reversed(x), reversed(y), strict=False)):
        repeats = tuple(int(k[-1 - place]) if place < len(k) else 1 for k in known)
        copies = Dim(repeats)
        if copies.unit:
            op.pair(dim, out)
        elif dim.unit:
            op.whole(out, "the copies of a repeat")
        else:
            op.whole(copies, "the copies of a repeat")
            op.pair(op.product(copies, dim), out)


@rule("expand_as", domain=ATEN)
def expand_as(op: Relation) -> None:
    """As Expand, to the sizes of another tensor."""
    for dim, out in zip(op.input(1), op.output(), strict=True):
        op.pair(dim, out)
    op.broadcast(0)


@rule("view_as reshape_as", domain=ATEN)
def view_as(op: Relation) -> None:
    """As Reshape, to the sizes of another tensor."""
    reshapes.regroup(op, op.input(0), op.output())
    op.same(1)


@rule("broadcast_tensors", domain=ATEN)
def broadcast_tensors(op: Relation) -> None:
    """Each operand expanded to the sizes of all."""
    for k in range(len(op.node.outputs)):
        op.broadcast(k, output=k)
        for dim, out in zip(op.output(k), op.output(), strict=True):
            op.pair(dim, out)


@rule("meshgrid", domain=ATEN)
def meshgrid(op: Relation) -> None:
    """Each operand along an axis of its own, in each output."""
    order = list(range(len(op.node.inputs)))
    if op.node.attribute("indexing") == "xy":
        order[:2] = order[1::-1]
    for k in order:
        for dim, out in zip((op.input(j)[0] for j in order), op.output(k), strict=True):
            op.pair(dim, out)


@rule("pixel_shuffle", domain=ATEN, linear=(0,))
def pixel_shuffle(op: Relation) -> None:
    """Space within a block comes out of the inner factors of the channels."""
    _shuffled(op, op.input(0), op.output(), op.node.attribute("upscale_factor"))


@rule("pixel_unshuffle", domain=ATEN, linear=(0,))
def pixel_unshuffle(op: Relation) -> None:
    """Space within a block becomes the inner factors of the channels."""
    _shuffled(op, op.output(), op.input(0), op.node.attribute("downscale_factor"))


def _shuffled(op: Relation, deep: Sequence[Dim], wide: Sequence[Dim], factor: int) -> None:
    block = [Dim((factor,) * len(wide[0].sizes)) for _ in range(2)]
    op.pair(deep[-3], op.product(wide[-3], *block))
    for dim in (*block, *deep[-2:], *wide[-2:]):
        op.whole(dim, "space in blocks")
    for a, b in zip(deep[:-3], wide[:-3], strict=True):
        op.pair(a, b)


@rule("channel_shuffle", domain=ATEN, linear=(0,))
def channel_shuffle(op: Relation) -> None:
    """Channels are groups × the rest, and become the rest × groups."""
    x, y, count = op.input(0), op.output(), op.node.attribute("groups")
    groups = Dim((count,) * len(x[1].sizes))
    rest = Dim(tuple(size // count for size in x[1].sizes))
    op.pair(x[1], op.product(groups, rest))
    op.pair(y[1], op.product(rest, groups))
    for axis in (axis for axis in range(len(x)) if axis != 1):
        op.pair(x[axis], y[axis])
    op.local_attribute("groups", local_count(groups), groups)


@rule("im2col", domain=ATEN, linear=(0,))
def im2col(op: Relation) -> None:
    """Windows of space become the inner factor of the channels."""
    _windowed(op, op.input(0), op.output())


@rule("col2im", domain=ATEN, linear=(0,))
def col2im(op: Relation) -> None:
    """Windows are added up in space."""
    _windowed(op, op.output(), op.input(0))


def _windowed(op: Relation, image: Sequence[Dim], columns: Sequence[Dim]) -> None:
    window = Dim(tuple(a // b for a, b in zip(columns[-2].sizes, image[-3].sizes, strict=True)))
    op.pair(columns[-2], op.product(image[-3], window))
    for dim in (window, *image[-2:], columns[-1]):
        op.whole(dim, "windows that overlap")
    for a, b in zip(image[:-3], columns[:-2], strict=True):
        op.pair(a, b)


@rule("glu", domain=ATEN)
def glu(op: Relation) -> None:
    """Two halves of an axis, one the gate of the other: the halves are its outer factor."""
    x, y = op.input(0), op.output()
    axis = op.node.attribute("dim") % len(x)
    halves = Dim((2,) * len(x[axis].sizes))
    op.whole(halves, "a gate and what it gates")
    for k, (dim, out) in enumerate(zip(x, y, strict=True)):
        op.pair(dim, op.product(halves, out) if k == axis else out)
