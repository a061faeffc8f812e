"""Rules of PyTorch's operators that pick or write elements by index."""

from tpcompile.dims.cut import Cut
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules import lookups
from tpcompile.dims.rules.aten import ATEN

PICKED = "elements picked by index"
WRITES = "elements written by index"


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


@rule("index", domain=ATEN, linear=(0,))
def index(op: Relation) -> None:
    """Indices of one axis look it up; of several they need those whole, and stand where these stood, or first."""
    x, y, axes = op.input(0), op.output(), list(op.node.attribute("axes", ()))
    ids = [op.input(1 + k) for k in range(len(axes))]
    _refuse_masks(op, len(axes))
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
        op.whole(x[axis], PICKED)


def _refuse_masks(op: Relation, count: int) -> None:
    """A mask stands for as many axes as it has."""
    if any(value is None or value.dtype in ("bool", "uint8") for value in op.node.inputs[1 : 1 + count]):
        raise NotCovered("it picks by a mask")


@rule("index_put", domain=ATEN)
def index_put(op: Relation) -> None:
    """Axes that are not indexed line up; indexed ones need whole, as do the indices."""
    x, y, axes = op.input(0), op.output(), list(op.node.attribute("axes", ()))
    _refuse_masks(op, len(axes))
    op.same(0)
    for axis in axes:
        op.whole(x[axis], WRITES)
    for k in range(len(axes)):
        for dim in op.input(1 + k):
            op.whole(dim, WRITES)
    rest = [dim for k, dim in enumerate(y) if k not in axes]
    lead = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    after, updates = rest[lead:], op.input(1 + len(axes))
    for dim in (*rest[:lead], *updates[: max(0, len(updates) - len(after))]):
        op.whole(dim, WRITES)
    for dim, out in zip(reversed(updates), reversed(after), strict=False):
        op.pair_or_broadcast(dim, out)


@rule("scatter", domain=ATEN)
def scatter(op: Relation) -> None:
    """One number written by index: all axes but the indexed one line up."""
    x, ids, y = op.input(0), op.input(1), op.output()
    axis = op.axis("axis", len(x))
    for k, (dim, index, out) in enumerate(zip(x, ids, y, strict=True)):
        op.pair(dim, out)
        if k != axis and dim.sizes == index.sizes:
            op.pair(dim, index)
        else:
            op.whole(dim, WRITES)
            op.whole(index, WRITES)


@rule("index_add index_copy index_fill", domain=ATEN)
def index_add(op: Relation) -> None:
    """Slices written along an axis, which needs whole; all others line up."""
    x = op.input(0)
    axis = op.node.attribute("dim") % max(1, len(x))
    op.same(0)
    for dim in (x[axis], *op.input(1)):
        op.whole(dim, WRITES)
    if op.has(2) and op.input(2):
        for k, (dim, new) in enumerate(zip(x, op.input(2), strict=True)):
            if k == axis:
                op.whole(new, WRITES)
            else:
                op.pair(dim, new)


@rule("take_along_dim", domain=ATEN)
def take_along(op: Relation) -> None:
    """All axes but the indexed one broadcast to each other."""
    if op.node.attribute("dim") is None:
        raise NotCovered("it picks from the flattened tensor")
    x, ids, y = op.input(0), op.input(1), op.output()
    axis = op.node.attribute("dim") % len(x)
    for k, (dim, index, out) in enumerate(zip(x, ids, y, strict=True)):
        if k == axis:
            for each in (dim, index, out):
                op.whole(each, PICKED)
        else:
            op.pair_or_broadcast(dim, out)
            op.pair_or_broadcast(index, out)


@rule("take", domain=ATEN)
def take_flat(op: Relation) -> None:
    """Elements of the flattened tensor, which needs whole."""
    for dim in op.input(0):
        op.whole(dim, PICKED)
    for dim, out in zip(op.input(1), op.output(), strict=True):
        op.pair(dim, out)


@rule("embedding_bag _embedding_bag _embedding_bag_forward_only", domain=ATEN)
def embedding_bag(op: Relation) -> None:
    """Rows of a table summed in bags: it runs whole."""
    raise NotCovered("its bags begin where ids say")
