"""Shape functions of ONNX Runtime's attention operators, and of those that carry a state instead."""

from __future__ import annotations

from tpcompile.graph.contrib_shapes import MICROSOFT
from tpcompile.graph.shape_functions import UNKNOWN, Described, ShapeQuery, shape_function


@shape_function(MICROSOFT, "GroupQueryAttention")
def group_query_attention(op: ShapeQuery) -> list[Described]:
    """[batch, queries, heads · size]; the caches; scores.

    A cache grows by what is new, unless it is a buffer: one of a fixed length, or of the length of a window.
    """
    heads, kv = op.attribute("num_heads"), op.attribute("kv_num_heads")
    batch, queries, width = op.shape(0)
    size = width // (heads if op.has(1) else heads + 2 * kv)
    keys = op.shape(1)[1] if op.has(1) else queries
    y: Described = (op.dtype(0), (batch, queries, heads * size))
    if not op.has(3):
        cache: Described = (op.dtype(0), (batch, kv, keys, size))
        return [y, cache, cache, (op.dtype(0), (batch, heads, queries, keys))]
    past, total = op.shape(3)[2], op.data[6]
    buffer = _fixed(op, 3, axis=2)
    length, visible = past + keys, None if buffer else past + keys
    if buffer:
        length = past
        given = op.node.inputs[6]
        if total is not None and given is not None and given.fixed:
            visible = int(total.reshape(-1)[0])
            length = max(past, visible)
    if op.attribute("sliding_window_cache", 0):
        length, visible = past, None
    caches: list[Described] = [(op.dtype(k), (*op.shape(k)[:2], length, *op.shape(k)[3:])) for k in (3, 4)]
    return [y, *caches, (op.dtype(0), (batch, heads, queries, visible))]


def _fixed(op: ShapeQuery, index: int, axis: int) -> bool:
    """Whether the length of an axis is one number whatever the inputs."""
    value = op.node.inputs[index]
    return value is not None and value.sizes is not None and len(set(value.sizes[axis])) == 1


@shape_function(MICROSOFT, "MultiHeadAttention")
def multi_head_attention(op: ShapeQuery) -> list[Described]:
    """[batch, queries, heads · size of values]; the caches; scores."""
    heads = op.attribute("num_heads")
    batch, queries = op.shape(0)[:2]
    size = op.shape(0)[4] if len(op.shape(0)) == 5 else op.shape(0)[2] // heads
    keys, values = queries, size
    if op.has(1):
        keys = op.shape(1)[2 if len(op.shape(1)) == 4 else 1]
    if op.has(2):
        values = op.shape(2)[3] if len(op.shape(2)) == 4 else op.shape(2)[2] // heads
    return _with_caches(op, (batch, queries, keys), heads, (size, values), past=6, shared=op.has(8))


@shape_function(MICROSOFT, "DecoderMaskedMultiHeadAttention")
def decoder_masked_attention(op: ShapeQuery) -> list[Described]:
    """As MultiHeadAttention for one query; packed operands have all of q, k and v."""
    heads = op.attribute("num_heads")
    batch, queries, width = op.shape(0)
    size = width // heads // (1 if op.has(1) else 3)
    keys, values = queries, size
    if op.has(1):
        keys = op.shape(1)[2 if len(op.shape(1)) == 4 else 1]
    if op.has(2):
        values = op.shape(2)[3] if len(op.shape(2)) == 4 else op.shape(2)[2] // heads
    shared = bool(op.attribute("past_present_share_buffer", 0))
    return _with_caches(op, (batch, queries, keys), heads, (size, values), past=5, shared=shared)


def _with_caches(
    op: ShapeQuery, lengths: tuple[int, int, int], heads: int, sizes: tuple[int, int], *, past: int, shared: bool
) -> list[Described]:
    """The outputs of an attention with caches for keys and values, operands `past` and `past` + 1."""
    batch, queries, keys = lengths
    before = op.shape(past)[2] if op.has(past) else 0
    length = before if shared and before else before + keys
    caches: list[Described] = [(op.dtype(0), (batch, heads, length, size)) for size in sizes]
    scores: Described = UNKNOWN if shared else (op.dtype(0), (batch, heads, queries, length))
    return [(op.dtype(0), (batch, queries, heads * sizes[1])), *caches, scores]


@shape_function(MICROSOFT, "Attention")
def attention(op: ShapeQuery) -> list[Described]:
    """[batch, queries, heads · size of values]; keys and values of all steps in one cache."""
    batch, queries, _ = op.shape(0)
    widths = op.attribute("qkv_hidden_sizes") or [op.shape(1)[1] // 3] * 3
    y: Described = (op.dtype(0), (batch, queries, widths[2]))
    heads = op.attribute("num_heads")
    before = op.shape(4)[3] if op.has(4) else 0
    length = before if before and op.attribute("past_present_share_buffer", 0) else before + queries
    if widths[1] != widths[2]:
        return [y]  # no cache holds both
    return [y, (op.dtype(0), (2, batch, heads, length, widths[1] // heads))]


@shape_function(MICROSOFT, "LinearAttention")
def linear_attention(op: ShapeQuery) -> list[Described]:
    """[batch, length, heads · size of values], and a state per head."""
    heads, kv = op.attribute("q_num_heads"), op.attribute("kv_num_heads")
    batch, length, width = op.shape(0)
    values = op.shape(2)[2] // kv
    state: Described = op.like(3) if op.has(3) else (op.dtype(0), (batch, kv, width // heads, values))
    return [(op.dtype(0), (batch, length, max(heads, kv) * values)), state]


@shape_function(MICROSOFT, "CausalConvWithState")
def causal_conv(op: ShapeQuery) -> list[Described]:
    """The input's, and what the next step needs of it."""
    if op.has(3):
        return [op.like(0), op.like(3)]
    kept = (op.shape(1)[-1] - 1) * op.attribute("dilation", 1)
    shape = list(op.shape(0))
    shape[1 if op.attribute("channels_last", 0) else -1] = kept
    plain = not op.attribute("state_window", 0) and not op.attribute("state_length", 0)
    return [op.like(0), (op.dtype(0), tuple(shape)) if plain else UNKNOWN]
