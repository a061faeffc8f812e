"""ONNX Runtime's attention with as many key heads as query heads: projections given, or made within.

Padding of keys is told by additions to scores (`mask_filter_value`), what comes after a query by exclusion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpcompile.targets.lowering.attention_parts import (
    Attended,
    Heads,
    Scoring,
    attend,
    bounded,
    heads_apart,
    heads_together,
    lowest_of,
    written,
)
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.rotary import count_to
from tpcompile.targets.lowering.site import Site


@dataclass(frozen=True)
class Roles:
    """Which operand is what: the bias of projections, the mask of keys, additions to scores, past keys (values are the
    next one), and the length of what is in a cache that is written in place."""

    bias: int
    mask: int
    added: int
    past: int
    length: int


@dataclass(frozen=True)
class Sides:
    """Queries [b, h, s, d], keys [b, h, t, d], values [b, h, t, d of values]; keys from `filled` on do not count.

    `before` keys stand before the first query's own ("" for none); `filled` is "" where all count. These, s and t are
    of one element. `own`: new keys are those of the queries' tokens.
    """

    q: str
    k: str
    v: str
    queries: str
    keys: str
    before: str = ""
    filled: str = ""
    own: bool = True


@lowering("com.microsoft", "MultiHeadAttention")
def multi_head_attention(site: Site) -> list[str | None]:
    """Keys and values come apart, packed, or with heads apart as a cache holds them."""
    return _attention(site, Roles(bias=3, mask=4, added=5, past=6, length=8), beams=(9,))


@lowering("com.microsoft", "DecoderMaskedMultiHeadAttention")
def decoder_masked_attention(site: Site) -> list[str | None]:
    """As MultiHeadAttention, of one query."""
    return _attention(site, Roles(bias=10, mask=3, added=4, past=5, length=7), beams=(8, 9))


def _attention(site: Site, roles: Roles, beams: Sequence[int]) -> list[str | None]:
    if any(site.has(index) for index in beams):
        raise NotLowered("keys are taken from several beams")
    heads, dtype = site.attribute("num_heads"), site.dtype(site.input(0))
    (q, k, v), (size, values) = _projections(site, roles.bias, heads)
    queries = site.length(site.input(0), 1)
    axis = 2 if site.has(1) and site.rank(site.input(1)) == 4 else 1
    keys = site.length(site.input(1), axis) if site.has(1) else queries
    own = not site.has(1) or site.same_length(site.input(1), axis, site.input(0), 1)
    shape = Heads(heads, 1, size, values, dtype)
    sides = _with_past(site, roles, Sides(q, k, v, queries, keys, own=own), shape)
    found = _attended(site, sides, roles, shape)
    return [heads_together(site, found.y, heads * values), sides.k, sides.v, found.scores or None]


def _attended(site: Site, sides: Sides, roles: Roles, heads: Heads) -> Attended:
    """Values by weights; what masks and causality say goes into the scores."""
    if site.wants(3) and sides.filled:
        raise NotLowered("scores of a cache that is written in place are an output")
    keys = site.unsqueeze(count_to(site, sides.keys), 0)  # [1, t]
    added = _padding(site, roles, keys, heads.dtype)
    if site.has(roles.added):
        bias = bounded(site, site.input(roles.added), heads.dtype)
        if sides.filled:  # the cache is longer than what is in it
            bias = _columns(site, bias, site.length(bias, 3), keys, axis=3)
        added.append(bias)
    scale = site.attribute("scale", 0.0) or 1.0 / math.sqrt(heads.size)
    by_query = site.attribute("unidirectional", 0) or site.has(roles.added)
    how = Scoring(scale, added=added, visible=_seen(site, sides, keys), queries="" if by_query else sides.queries)
    return attend(site, sides.q, sides.k, sides.v, heads, how, tell=site.wants(3))


def _seen(site: Site, sides: Sides, keys: str) -> str:
    """Which keys queries see, [1, 1, s or 1, t], "" for all."""
    rules = []
    if site.attribute("unidirectional", 0):
        queries = steps = count_to(site, sides.queries)
        if sides.before:
            queries = site.emit("Add", [queries, sides.before])
        seen = site.emit("Not", [site.emit("Less", [site.unsqueeze(queries, 1), keys])])  # [s, t]
        if not sides.own:  # ONNX Runtime lets the last query see all keys
            last = site.emit("Equal", [steps, site.emit("Sub", [sides.queries, site.integers(1)])])
            seen = site.emit("Or", [seen, site.unsqueeze(last, 1)])
        rules.append(seen)
    if sides.filled:
        rules.append(site.emit("Less", [keys, sides.filled]))
    if not rules:
        return ""
    return site.unsqueeze(rules[0] if len(rules) == 1 else site.emit("And", rules), 0, 1)


def _padding(site: Site, roles: Roles, keys: str, dtype: str) -> list[str]:
    """What a mask adds to scores: lengths [b], ends and starts [2·b], or zeros for padding, [b, t] or [b, s, t]."""
    if not site.has(roles.mask):
        return []
    mask = site.input(roles.mask)
    rank = site.rank(mask)
    if rank == 1:
        counts = site.cast(mask, "int64")
        if site.same_length(mask, 0, site.input(0), 0):
            bounds = [counts]
        elif site.same_length(mask, 0, site.input(0), 0, times=2):
            bounds = site.split(site.reshape(counts, 2, -1), 0, [1, 1])
        else:
            raise NotLowered("bounds of all sequences one after the other")
        ends, *starts = (site.reshape(each, -1, 1) for each in bounds)
        kept = site.emit("Less", [keys, ends])
        for start in starts:
            kept = site.emit("And", [kept, site.emit("Not", [site.emit("Less", [keys, start])])])
        kept = site.unsqueeze(kept, 1, 2)
    elif rank == 2 and site.shape(mask)[1] == 1 and not site.same_length(mask, 1, site.input(0), 1):
        return []  # the same for all keys
    elif rank in (2, 3):
        if site.has(roles.past) and not site.has(roles.length) and site.same_length(mask, rank - 1, site.input(0), 1):
            raise NotLowered("a mask of the new keys alone beside past ones")
        kept = site.unsqueeze(site.emit("Greater", [mask, site.constant(0, site.dtype(mask))]), *range(1, 5 - rank))
        if site.has(roles.length):
            kept = _columns(site, kept, site.length(mask, rank - 1), keys, axis=3)
    else:
        raise NotLowered("a mask of all tokens by all tokens")
    away = max(site.attribute("mask_filter_value", -10000.0), lowest_of(dtype) / 2)
    return [site.emit("Where", [kept, site.constant(0, dtype), site.constant(away, dtype)])]


def _columns(site: Site, x: str, count: str, keys: str, axis: int) -> str:
    """Columns of `x` for all keys of a cache; those beyond its `count` are of keys that nobody sees."""
    last = site.emit("Sub", [count, site.integers(1)])
    return site.emit("Gather", [x, site.squeeze(site.emit("Min", [keys, last]), 0)], axis=axis)


def _projections(site: Site, bias: int, heads: int) -> tuple[list[str], tuple[int, int]]:
    """Queries, keys and values [b, h, ., .], and the sizes of a head of queries and of values."""
    x = site.input(0)
    if site.rank(x) == 5:  # [b, s, h, 3, d]
        size = site.size(x, 4)
        return _biased(site, _unpacked(site, x, 3), bias, heads, (size, size)), (size, size)
    if not site.has(1):  # q | k | v
        width = site.size(x, 2) // 3
        given = [site.emit("Add", [x, site.input(bias)]) if site.has(bias) else x]
        parts = site.split(given[0], 2, [width] * 3)
        size = width // heads
        return [heads_apart(site, part, heads, size) for part in parts], (size, size)
    size, key = site.size(x, 2) // heads, site.input(1)
    if site.rank(key) == 5:  # [b, t, h, 2, d]
        q, (k, v) = heads_apart(site, x, heads, size), _unpacked(site, key, 2)
        return _biased(site, [q, k, v], bias, heads, (size, size)), (size, size)
    if site.rank(key) == 4:  # [b, h, t, d]
        if site.has(bias):
            raise NotLowered("a bias beside keys with heads apart")
        values = site.size(site.input(2), 3)
        return [heads_apart(site, x, heads, size), key, site.input(2)], (size, values)
    values = site.size(site.input(2), 2) // heads
    sizes = (size, size, values)
    given = [site.input(index) for index in range(3)]
    if site.has(bias):
        parts = site.split(site.input(bias), 0, [heads * each for each in sizes])
        given = [site.emit("Add", pair) for pair in zip(given, parts, strict=True)]
    return [heads_apart(site, part, heads, each) for part, each in zip(given, sizes, strict=True)], (size, values)


def _unpacked(site: Site, x: str, count: int) -> list[str]:
    """[b, s, h, count, d] as `count` values [b, h, s, d]."""
    parts = site.split(site.transpose(x, 3, 0, 2, 1, 4), 0, [1] * count)
    return [site.squeeze(part, 0) for part in parts]


def _biased(site: Site, sides: list[str], bias: int, heads: int, sizes: tuple[int, int]) -> list[str]:
    """Values [b, h, ., d] with the bias of the projections, q | k | v, added."""
    if not site.has(bias):
        return sides
    each = (sizes[0], sizes[0], sizes[1])
    parts = site.split(site.input(bias), 0, [heads * size for size in each])
    return [
        site.emit("Add", [side, site.reshape(part, 1, heads, 1, size)])
        for side, part, size in zip(sides, parts, each, strict=True)
    ]


def _with_past(site: Site, roles: Roles, sides: Sides, heads: Heads) -> Sides:
    """Keys and values after those of a cache, or within one that is written in place."""
    if not site.has(roles.past):
        return sides
    past = []
    for index, size in ((roles.past, heads.size), (roles.past + 1, heads.values)):
        site.types.settle(site.input(index), 3, size)
        past.append(site.reshape(site.input(index), 0, heads.keys, 0, size))
    held = site.length(site.input(roles.past), 2)
    if not site.has(roles.length):
        k, v = (site.emit("Concat", pair, axis=2) for pair in zip(past, (sides.k, sides.v), strict=True))
        return replace(sides, k=k, v=v, keys=site.emit("Add", [held, sides.keys]), before=held)
    before = site.reshape(site.cast(site.input(roles.length), "int64"), 1)
    filled = site.emit("Add", [before, sides.keys])
    entries = site.unsqueeze(count_to(site, held), 0)
    was_there = site.emit("Less", [entries, before])
    moved = site.emit("Add", [site.emit("Sub", [entries, before]), held])
    last = site.emit("Sub", [site.emit("Add", [held, sides.keys]), site.integers(1)])
    source = site.emit("Min", [site.emit("Where", [was_there, entries, moved]), last])
    batch = site.emit("Concat", [site.length(site.input(0), 0), site.integers(1)], axis=0)
    source = site.emit("Expand", [source, batch])
    counts = site.emit("Less", [entries, filled])
    k, v = (written(site, a, b, source, counts, heads)[0] for a, b in zip(past, (sides.k, sides.v), strict=True))
    return replace(sides, k=k, v=v, keys=held, before=before, filled=filled)


@lowering("com.microsoft", "Attention")
def projected_attention(site: Site) -> list[str | None]:
    """The projections q | k | v are made within; keys and values of all steps lie in one cache."""
    if site.attribute("do_rotary", 0):
        raise NotLowered("queries and keys turn within it, by angles that only its GPU kernels know")
    if site.attribute("past_present_share_buffer", 0):
        raise NotLowered("its cache is written in place")
    dtype = site.dtype(site.input(0))
    total = site.size(site.input(1), 1)
    widths = site.attribute("qkv_hidden_sizes") or [total // 3] * 3
    x = site.emit("MatMul", [site.input(0), site.input(1)])
    if site.has(2):
        x = site.emit("Add", [x, site.input(2)])
    return attention_from(site, x, widths, dtype, Roles(bias=2, mask=3, added=5, past=4, length=99))


def attention_from(site: Site, x: str, widths: Sequence[int], dtype: str, roles: Roles) -> list[str | None]:
    """Attention of projections q | k | v [b, s, sum of widths], and the present cache [2, b, h, t, d] if it is read."""
    heads = site.attribute("num_heads")
    size, values = widths[0] // heads, widths[2] // heads
    if len(set(widths)) == 1:
        q, k, v = site.split(heads_apart(site, x, 3 * heads, size), 1, [heads] * 3)
    else:
        parts = zip(site.split(x, 2, widths), (size, size, values), strict=True)
        q, k, v = (heads_apart(site, part, heads, each) for part, each in parts)
    tokens = site.length(site.input(0), 1)
    sides = Sides(q, k, v, tokens, tokens)
    if site.has(roles.past):
        past = site.input(roles.past)
        site.types.settle(past, 4, size)
        both = site.split(site.reshape(past, 0, 0, heads, 0, size), 0, [1, 1])
        k, v = (site.emit("Concat", [site.squeeze(old, 0), new], axis=2) for old, new in zip(both, (k, v), strict=True))
        held = site.length(past, 3)
        sides = Sides(q, k, v, tokens, site.emit("Add", [held, tokens]), before=held)
    found = _attended(site, sides, roles, Heads(heads, 1, size, values, dtype))
    present = None
    if site.wants(1):
        present = site.emit("Concat", [site.unsqueeze(sides.k, 0), site.unsqueeze(sides.v, 0)], axis=0)
    return [heads_together(site, found.y, heads * values), present]


@lowering("com.microsoft", "PackedAttention", "PackedMultiHeadAttention", "DecoderMaskedSelfAttention")
def gpu_only(site: Site) -> list[str | None]:
    """Only ONNX Runtime's GPU kernels have these, with layouts of their own; exporters do not write them."""
    raise NotLowered("sequences without padding, or a cache in an order of the GPU's")
