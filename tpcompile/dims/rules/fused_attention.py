"""ONNX Runtime's attention and rotary embedding: heads are cut, what a head looks at needs whole.

Letters used here: b batch, s queries, t keys, h heads, hd the size of a head.
"""

from collections.abc import Sequence

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.dims.rules.contractions import local_count
from tpcompile.dims.rules.fused import MICROSOFT

LOOKS_ALONG = "attention looks along it"
FEATURES = "attention needs a head's features whole"


@rule("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(op: Relation) -> None:
    """Heads are independent; query heads = key heads × group. Packed queries, keys and values are one sum."""
    x, y = op.input(0), op.output()
    count, shared = op.node.attribute("num_heads"), op.node.attribute("kv_num_heads")
    if count % shared:
        raise NotCovered("query heads are no multiple of key heads")
    kv, group, size = (_number(n, y[2]) for n in (shared, count // shared, y[2].size // count))
    heads = op.product(kv, group)
    query, key = op.product(kv, group, size), op.product(kv, size)
    op.whole(size, FEATURES)
    op.pair(y[2], query)
    if op.has(1):
        op.pair(x[2], query)
        for k in (1, 2):
            axes = op.input(k)
            if len(axes) != 3:
                raise NotCovered("keys and values with heads apart")
            op.pair(axes[0], y[0])
            op.whole(axes[1], LOOKS_ALONG)
            op.pair(axes[2], key)
    else:
        op.pair(x[2], op.concatenation(query, key, key))
    _batch_and_queries(op, x, y)
    _caches(op, kv, (3, 4))
    _scores(op, 10, heads)
    if op.has(11):  # a sink per head
        op.pair(op.input(11)[0], heads)
    for k in (12, 13):  # scales of quantised caches
        for axis, dim in enumerate(op.input(k) if op.has(k) else ()):
            if axis == 1:
                op.pair_or_broadcast(dim, kv)
            else:
                op.whole(dim, "scales of a cache")
    for k in (5, 16):  # lengths
        if op.has(k):
            op.pair_or_broadcast(op.input(k)[0], y[0])
    _whole(op, (6, 7, 8, 9, 14, 15))
    if op.has(9):
        op.whole(y[0], "a prompt's positions count from the first one")
    op.local_attribute("num_heads", local_count(heads), heads)
    op.local_attribute("kv_num_heads", local_count(kv), kv)


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(op: Relation) -> None:
    """Heads are independent; keys and values may be packed with the queries, or come from a cache with heads apart."""
    _multi_head(op, bias=3, mask=4, scores=5, caches=(6, 7), rest=(8, 9))


@rule("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_attention(op: Relation) -> None:
    """As MultiHeadAttention, of one query."""
    _multi_head(op, bias=10, mask=3, scores=4, caches=(5, 6), rest=(7, 8, 9))


def _multi_head(
    op: Relation, *, bias: int, mask: int, scores: int, caches: tuple[int, int], rest: Sequence[int]
) -> None:
    """The numbers say which operand is what."""
    x, y = op.input(0), op.output()
    heads = _number(op.node.attribute("num_heads"), y[2])
    values = _flat(op, y[2], heads)
    queries = values  # where packed, sizes are equal
    if len(x) == 5:  # [b, s, h, 3, hd]
        _apart(op, x, heads, axis=2)
    elif op.has(1):
        queries = _flat(op, x[2], heads)
    else:
        queries = _flat(op, None, heads, (x[2].size - y[2].size) // 2)
        op.pair(x[2], op.concatenation(queries, queries, values))
    for k in (1, 2):
        if not op.has(k):
            continue
        axes = op.input(k)
        if len(axes) == 3:  # [b, t, h·hd]
            op.pair(axes[0], y[0])
            op.whole(axes[1], LOOKS_ALONG)
            op.pair(axes[2], queries if k == 1 else values)
        else:  # [b, h, t, hd], or [b, t, h, 2, hd]
            _apart(op, axes, heads, axis=1 if len(axes) == 4 else 2)
    if op.has(bias):
        op.pair(op.input(bias)[0], op.concatenation(queries, queries, values))
    _batch_and_queries(op, x, y)
    _mask(op, mask)
    _scores(op, scores, heads)
    _caches(op, heads, caches)
    _whole(op, rest)
    op.local_attribute("num_heads", local_count(heads), heads)


@rule("Attention", domain=MICROSOFT)
def attention(op: Relation, mask: int = 3, past: int = 4, scores: int = 5, length: int = 6) -> None:
    """Projection and attention in one: the weight's columns are queries, keys and values, each of all heads."""
    x, weight, y = op.input(0), op.input(1), op.output()
    heads = _number(op.node.attribute("num_heads"), y[2])
    values = _flat(op, y[2], heads)
    queries = _flat(op, None, heads, (weight[1].size - y[2].size) // 2)
    columns = op.concatenation(queries, queries, values)
    op.pair(weight[1], columns)
    for dim in (x[2], weight[0]):
        op.whole(dim, "the softmax needs the whole sum over it")
    if op.has(2):
        op.pair(op.input(2)[0], columns)
    _batch_and_queries(op, x, y)
    _mask(op, mask)
    _scores(op, scores, heads)
    present = op.output(1) if len(op.node.outputs) > 1 and op.node.outputs[1] is not None else None
    for axes in (op.inputs[past] if op.has(past) else None, present):
        if axes is not None:  # [2, b, h, t, hd]
            op.whole(axes[0], "keys and values")
            _apart(op, axes[1:], heads, axis=1)
    _whole(op, (length,))
    op.local_attribute("num_heads", local_count(heads), heads)
    if op.node.attribute("qkv_hidden_sizes"):
        widths = (queries, queries, values)
        op.local_attribute("qkv_hidden_sizes", lambda cut, rank: [cut.local_size(w, rank) for w in widths], heads)


@rule("RotaryEmbedding MRotaryEmbedding", domain=MICROSOFT)
def rotary(op: Relation) -> None:
    """Rotates pairs within a head: heads are free, the head size and the tables need whole."""
    x, ids = op.input(0), op.input(1)
    if len(ids) == 3:  # time, height and width
        op.whole(ids[0], "three positions of a token")
        ids = ids[1:]
    op.same(0)
    _whole(op, (2, 3))
    if len(ids) == 2 and not op.node.attribute("is_packed_batching", 0):
        for dim, other in zip(ids, (x[0], x[-2]), strict=True):
            op.pair_or_broadcast(dim, other)
    else:
        for dim in (*ids, x[0], x[-2]):
            op.whole(dim, "positions count from an offset")
    count = op.node.attribute("num_heads", 0)
    if len(x) == 4:
        heads = x[1]
        op.whole(x[3], "a rotation pairs features of a head")
    else:
        part = op.node.attribute("rotary_embedding_dim", 0)
        heads = _number(count if part else x[2].size // (2 * op.input(2)[1].size), x[2])
        _flat(op, x[2], heads)
    if count:
        if heads.size != count:
            raise NotCovered(f"{count} heads, but tables for {heads.size}")
        op.local_attribute("num_heads", local_count(heads), heads)


def _number(count: int, like: Dim) -> Dim:
    """A dim of a fixed size."""
    return Dim((count,) * len(like.sizes))


def _flat(op: Relation, dim: Dim | None, heads: Dim, width: int = 0) -> Dim:
    """An axis h·hd, or a new one of the width, as its heads and their features."""
    total = width if dim is None else dim.size
    if total <= 0 or total % heads.size or (dim is not None and not dim.static):
        raise NotCovered(f"{heads.size} heads do not divide {dim or total}")
    size = _number(total // heads.size, heads)
    op.whole(size, FEATURES)
    found = op.product(heads, size)
    if dim is not None:
        op.pair(dim, found)
    return found


def _apart(op: Relation, axes: Sequence[Dim], heads: Dim, axis: int) -> None:
    """Axes with the batch first and heads apart, all others whole."""
    op.pair(axes[0], op.output()[0])
    op.pair(axes[axis], heads)
    for k, dim in enumerate(axes):
        if k not in (0, axis):
            op.whole(dim, LOOKS_ALONG)


def _batch_and_queries(op: Relation, x: Sequence[Dim], y: Sequence[Dim]) -> None:
    op.pair(x[0], y[0])
    op.pair(x[1], y[1])
    op.whole(y[1], "masks and causality go by a query's position")


def _mask(op: Relation, index: int) -> None:
    """[b] lengths, [b, t], [b, s, t] or [b, 1, t, t]; other lists of lengths go by the whole batch."""
    if not op.has(index):
        return
    batch, axes = op.output()[0], op.input(index)
    for dim in axes[1:]:
        op.whole(dim, LOOKS_ALONG)
    if len(axes) > 1 or axes[0].sizes == batch.sizes:
        op.pair(axes[0], batch)
    else:
        op.whole(axes[0], "bounds of all sequences")
        op.whole(batch, "bounds of all sequences")


def _scores(op: Relation, index: int, heads: Dim) -> None:
    """What is added to scores, [b or 1, h or 1, s, t], and the fourth output, the scores."""
    given = [op.input(index)] if op.has(index) else []
    if len(op.node.outputs) > 3 and op.node.outputs[3] is not None:
        given.append(op.output(3))
    for axes in given:
        op.pair_or_broadcast(axes[0], op.output()[0])
        op.pair_or_broadcast(axes[1], heads)
        for dim in axes[2:]:
            op.whole(dim, LOOKS_ALONG)


def _caches(op: Relation, heads: Dim, inputs: tuple[int, int]) -> None:
    """Past and present keys and values, [b, h, t, hd]."""
    for k in inputs:
        if op.has(k):
            _apart(op, op.input(k), heads, axis=1)
    for k in (1, 2):
        if k < len(op.node.outputs) and op.node.outputs[k] is not None:
            _apart(op, op.output(k), heads, axis=1)


def _whole(op: Relation, operands: Sequence[int]) -> None:
    for k in operands:
        for dim in op.input(k) if op.has(k) else ():
            op.whole(dim, "the same for all heads")
