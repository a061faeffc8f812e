"""Attention and rotary embedding as single operators: heads are cut, what a head looks at needs whole."""

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules.contractions import heads_of, local_count


@rule("Attention")
def attention(op: Relation) -> None:
    """Heads are independent; with fewer key heads, query heads = key heads × group. Length and head size need whole."""
    flat = len(op.input(0)) == 3
    q, kv, sizes = _heads(op, flat)
    for dim in sizes:
        op.whole(dim, "attention needs a head's features whole")
    y = op.output()
    op.pair(op.input(0)[0], y[0])
    if flat:
        heads, size = heads_of(y[2], q.size, op)
        op.pair(heads, q)
        op.whole(size, "attention needs a head's features whole")
        op.local_attribute("q_num_heads", local_count(q), q)
        op.local_attribute("kv_num_heads", local_count(kv), kv)
    else:
        op.pair(y[1], q)
        op.whole(y[3], "attention needs a head's features whole")
    group = Dim(tuple(a // b for a, b in zip(q.sizes, kv.sizes, strict=True)))
    op.pair(q, op.product(kv, group))
    queries = y[1 if flat else 2]
    op.pair(op.input(0)[1 if flat else 2], queries)
    op.whole(queries, "masks and causality go by a query's position")
    if op.has(3):
        _mask(op, q)
    for k in (4, 5):
        if op.has(k):
            _cache(op, op.input(k), kv)
    if op.has(6):
        op.pair(op.input(6)[0], y[0])
    for k in (1, 2):
        if k < len(op.node.outputs) and op.node.outputs[k] is not None:
            _cache(op, op.output(k), kv)
    if len(op.node.outputs) > 3 and op.node.outputs[3] is not None:
        scores = op.output(3)
        op.pair(scores[0], y[0])
        op.pair(scores[1], q)
        for dim in scores[2:]:
            op.whole(dim, "attention looks along it")


def _heads(op: Relation, flat: bool) -> tuple[Dim, Dim, list[Dim]]:
    """(query heads, key heads, dims that need whole) of q, k and v."""
    counts = [op.node.attribute("q_num_heads"), op.node.attribute("kv_num_heads"), op.node.attribute("kv_num_heads")]
    heads, wholes = [], []
    for k in range(3):
        axes = op.input(k)
        op.pair(axes[0], op.input(0)[0])
        if flat:
            if not counts[k]:
                raise NotCovered("no head counts")
            count, size = heads_of(axes[2], counts[k], op)
            wholes += [size, *([axes[1]] if k else [])]
        else:
            count = axes[1]
            wholes += [axes[3], *([axes[2]] if k else [])]
        heads.append(count)
    if any(a % b for a, b in zip(heads[0].sizes, heads[1].sizes, strict=True)):
        raise NotCovered("query heads are no multiple of key heads")
    op.pair(heads[1], heads[2])
    return heads[0], heads[1], wholes


def _mask(op: Relation, q: Dim) -> None:
    """The mask broadcasts to [batch, heads, queries, keys]."""
    axes = op.input(3)
    for dim in axes[-2:]:
        op.whole(dim, "attention looks along it")
    if len(axes) > 2:
        op.pair_or_broadcast(axes[-3], q)
    if len(axes) > 3:
        op.pair_or_broadcast(axes[-4], op.output()[0])


def _cache(op: Relation, axes: list[Dim], kv: Dim) -> None:
    op.pair(axes[0], op.output()[0])
    op.pair(axes[1], kv)
    for dim in axes[2:]:
        op.whole(dim, "attention looks along it")


@rule("RotaryEmbedding")
def rotary(op: Relation) -> None:
    """Rotates pairs within a head: heads are free, the head size and the tables need whole."""
    x, y = op.input(0), op.output()
    batch, positions = x[0], x[-2]
    for k in (1, 2):
        table = op.input(k)
        if len(table) == 3:  # one row for each position
            op.pair_or_broadcast(table[0], batch)
            op.pair_or_broadcast(table[1], positions)
        for dim in table[-1:] if len(table) == 3 else table:
            op.whole(dim, "rotary tables are the same for all heads")
    if op.has(3):
        for dim, other in zip(op.input(3), (batch, positions), strict=True):
            op.pair_or_broadcast(dim, other)
    if len(x) == 4:
        for a, b in zip(x, y, strict=True):
            op.pair(a, b)
        op.whole(x[3], "a rotation pairs features of a head")
        return
    count = op.node.attribute("num_heads", 0)
    if not count:
        raise NotCovered("no num_heads")
    for a, b in zip(x, y, strict=True):
        op.pair(a, b)
    heads, size = heads_of(x[2], count, op)
    op.whole(size, "a rotation pairs features of a head")
    op.local_attribute("num_heads", local_count(heads), heads)
