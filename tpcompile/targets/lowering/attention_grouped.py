"""ONNX Runtime's GroupQueryAttention: caches, rotary embedding, windows and sequences of different lengths in one.

Of a sequence with n entries in the cache after a step of s tokens, the first n - s were there before it (none, where a
first prompt is padded to more than n tokens). Its queries stand at positions from there on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpcompile.targets.lowering.attention_parts import (
    Heads,
    Scoring,
    attend,
    bounded,
    heads_together,
    written,
)
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.rotary import angles, count_to, turned
from tpcompile.targets.lowering.site import Site

FAR = 2**40
"""A position after all queries."""
REFUSED = {12: "caches are quantised", 13: "caches are quantised", 16: "prompts come in padded pieces"}
"""Operands with which the operator does more than is written here."""


@dataclass(frozen=True)
class Step:
    """Lengths and positions of a step, int64.

    Attributes:
        tokens: s, of one element.
        before: how many tokens each sequence had before, [b, 1] (or [1, 1] without caches).
        after: how many it has now, [b, 1]; fewer than s where a first prompt is padded.
        positions: of the queries, [b, s] (or [1, s]).
    """

    tokens: str
    before: str
    after: str
    positions: str


@dataclass(frozen=True)
class Keys:
    """What queries look at: keys and values [b, kv, t, d], each key's position [b or 1, t]; and the caches after."""

    k: str
    v: str
    positions: str
    caches: tuple[str, str]


@dataclass(frozen=True)
class Rows:
    """Which positions the rows of caches are of, int64: [b, 1] (or [1, 1] where the same for all) but the length.

    Attributes:
        length: rows after the step, of one element.
        here: how many rows count before it.
        start: the position of row 0 before it.
        first: the position of row 0 after it.
        filled: how many rows count after it.
    """

    length: str
    here: str
    start: str
    first: str
    filled: str


@lowering("com.microsoft", "GroupQueryAttention")
def group_query_attention(site: Site) -> list[str | None]:
    """Projections come apart or as q | k | v; caches grow, or are written in place, or hold a window."""
    for index, reason in REFUSED.items():
        if site.has(index):
            raise NotLowered(reason)
    if site.wants(3):
        raise NotLowered("scores are an output")
    if site.has(1) and not (site.rank(site.input(1)) == 3 and site.same_length(site.input(1), 1, site.input(0), 1)):
        raise NotLowered("keys that are not those of its queries' tokens")
    heads, kv = site.attribute("num_heads"), site.attribute("kv_num_heads")
    packed = not site.has(1)
    size = site.size(site.input(0), 2) // (heads + 2 * kv if packed else heads)
    dtype = site.dtype(site.input(0))
    shape = Heads(kv, heads // kv, size, size, dtype)
    step = _step(site)
    q, k, v = _projections(site, step, heads, kv, size)
    keys = _keys(site, step, k, v, shape)
    sink = ""
    if site.has(11):
        sink = site.reshape(site.cast(site.input(11), shape.scores), 1, heads, 1, 1)
    elif site.attribute("smooth_softmax", 0):
        sink = site.constant([[[[0.0]]]], shape.scores)
    how = Scoring(
        scale=site.attribute("scale", 0.0) or 1.0 / math.sqrt(size),
        softcap=site.attribute("softcap", 0.0),
        added=[_bias(site, keys)] if site.has(10) else [],
        visible=_visible(site, step, keys.positions),
        sink=sink,
    )
    y = attend(site, q, keys.k, keys.v, shape, how).y
    return [heads_together(site, y, heads * size), *keys.caches]


def _step(site: Site) -> Step:
    tokens = site.length(site.input(0), 1)
    steps = site.unsqueeze(count_to(site, tokens), 0)
    after = site.emit("Add", [_column(site, 5), site.integers(1)])
    if not site.has(3):
        return Step(tokens, site.constant([[0]], "int64"), after, steps)
    before = site.emit("Max", [site.emit("Sub", [after, tokens]), site.integers(0)])
    return Step(tokens, before, after, site.emit("Add", [before, steps]))


def _column(site: Site, index: int) -> str:
    """An integer per sequence, [b, 1], as int64."""
    return site.reshape(site.cast(site.input(index), "int64"), -1, 1)


def _projections(site: Site, step: Step, heads: int, kv: int, size: int) -> tuple[str, str, str]:
    """Queries, keys and values [b, h, s, d], normed and turned where the operator does it."""
    if site.has(1):
        parts = zip((0, 1, 2), (heads, kv, kv), strict=True)
        q, k, v = (site.transpose(site.reshape(site.input(i), 0, 0, count, size), 0, 2, 1, 3) for i, count in parts)
        turning = [q, k]
    else:
        both = site.transpose(site.reshape(site.input(0), 0, 0, heads + 2 * kv, size), 0, 2, 1, 3)
        if site.attribute("do_rotary", 0) and not site.has(14):
            joined, v = site.split(both, 1, [heads + kv, kv])
            turning = [joined]
        else:
            q, k, v = site.split(both, 1, [heads, kv, kv])
            turning = [q, k]
    if site.has(14):
        turning = [_normed(site, x, which) for x, which in zip(turning, ("q", "k"), strict=True)]
    if site.attribute("do_rotary", 0):
        where = _angle_positions(site, step)
        cosines, sines = (angles(site, site.input(index), where, 1) for index in (7, 8))
        width = 2 * site.size(site.input(7), 1)
        interleaved = bool(site.attribute("rotary_interleaved", 0))
        turning = [turned(site, x, cosines, sines, size, width, interleaved=interleaved) for x in turning]
    q, k = turning if len(turning) == 2 else site.split(turning[0], 1, [heads, kv])
    return q, k, v


def _normed(site: Site, x: str, which: str) -> str:
    """Queries ("q") or keys ("k"), each head divided by its root mean square and scaled."""
    epsilon = site.attribute(f"{which}_norm_epsilon", site.attribute("qk_norm_epsilon", 1e-6))
    weight = site.input(14 if which == "q" else 15)
    return site.emit("SimplifiedLayerNormalization", [x, weight], axis=-1, epsilon=epsilon, stash_type=1)


def _angle_positions(site: Site, step: Step) -> str:
    """Positions for the angles: the queries' own, or those given, of which a first prompt reads the first one."""
    if not site.has(9):
        return step.positions
    given = site.input(9)
    first = site.reshape(site.slice(site.reshape(given, -1), 0, 0, 1), 1, 1)
    counted = site.emit("Add", [first, site.unsqueeze(count_to(site, step.tokens), 0)])
    total = site.reshape(site.cast(site.input(6), "int64"), 1)
    return site.emit("Where", [site.emit("Equal", [total, step.tokens]), counted, given])


def _keys(site: Site, step: Step, k: str, v: str, heads: Heads) -> Keys:
    """Past and new entries one after the other, which TensorRT's kernel reads as they are; and the caches after."""
    if not site.has(3):
        return Keys(k, v, site.unsqueeze(count_to(site, step.tokens), 0), (k, v))
    past = []
    for index in (3, 4):  # exporters leave the size of a head open in caches; a concatenation needs it
        site.types.settle(site.input(index), 3, heads.size)
        past.append(site.reshape(site.input(index), 0, heads.keys, 0, heads.size))
    held = site.length(site.input(3), 2)
    if site.attribute("sliding_window_cache", 0):
        rows = _window(site, step, held)
    else:
        zero = site.constant([[0]], "int64")
        filled = site.emit("Add", [step.before, step.tokens])  # padding is written as it comes
        rows = Rows(_cache_length(site, step, held), step.before, zero, zero, filled)
    after = site.unsqueeze(count_to(site, rows.length), 0)
    kept = site.emit("Add", [after, rows.first])
    from_new = site.emit("Add", [site.emit("Sub", [kept, step.before]), held])
    source = site.emit(
        "Where", [site.emit("Less", [kept, step.before]), site.emit("Sub", [kept, rows.start]), from_new]
    )
    joined = site.emit("Add", [held, step.tokens])
    source = site.emit("Min", [source, site.emit("Sub", [joined, site.integers(1)])])  # rows that do not count
    counts = site.emit("Less", [after, rows.filled])
    made = [written(site, *pair, source, counts, heads) for pair in zip(past, (k, v), strict=True)]
    caches = (made[0][0], made[1][0])
    if site.has(10):  # a bias has a column per position
        if site.attribute("sliding_window_cache", 0):
            raise NotLowered("a bias with a cache of a window")
        return Keys(*caches, after, caches)
    both = site.unsqueeze(count_to(site, joined), 0)
    old = site.emit(
        "Where",
        [site.emit("Less", [both, rows.here]), site.emit("Add", [both, rows.start]), site.integers(FAR)],
    )
    fresh = site.emit("Add", [site.emit("Sub", [both, held]), step.before])
    positions = site.emit("Where", [site.emit("Less", [both, held]), old, fresh])
    return Keys(made[0][1], made[1][1], positions, caches)


def _cache_length(site: Site, step: Step, held: str) -> str:
    """A cache written in place keeps its length; one that holds too little grows to all tokens of the longest."""
    past, present = site.shape(site.input(3))[2], site.types.shape(site.output(1))
    if past and (present is None or present[2] == past):  # one of length 0 is no buffer
        return held
    if site.is_stored(site.input(6)) or site.follows_shapes(site.input(6)):
        total = site.reshape(site.cast(site.input(6), "int64"), 1)
        return site.emit("Max", [total, held])
    return site.emit("Add", [held, step.tokens])


def _window(site: Site, step: Step, held: str) -> Rows:
    """Caches that hold the last positions from row 0 on, at least those of the window."""
    one = site.integers(1)
    window = site.integers(site.attribute("local_window_size"))
    slack = site.emit("Add", [site.emit("Sub", [held, window]), one])

    def resident(count: str) -> str:
        """How many of `count` tokens a cache holds: rows beyond its length are dropped `slack` at once."""
        over = site.emit("Max", [site.emit("Sub", [count, held]), site.integers(0)])
        times = site.emit("Div", [site.emit("Sub", [site.emit("Add", [over, slack]), one]), slack])
        return site.emit("Sub", [count, site.emit("Mul", [times, slack])])

    here, stays = resident(step.before), resident(step.after)
    return Rows(held, here, site.emit("Sub", [step.before, here]), site.emit("Sub", [step.after, stays]), stays)


def _visible(site: Site, step: Step, positions: str) -> str:
    """Which keys a query sees, [b or 1, 1, s, t]: none after it, none before its window."""
    keys = site.unsqueeze(positions, 1, 2)
    counted = site.emit("Less", [keys, site.unsqueeze(step.after, 1, 2)])  # padding of a prompt is seen by nobody
    if not site.attribute("causal", 1):
        return counted
    queries = site.unsqueeze(step.positions, 1, 3)
    seen = site.emit("And", [counted, site.emit("Not", [site.emit("Less", [queries, keys])])])
    window = site.attribute("local_window_size", -1)
    if window < 0:
        return seen
    first = site.emit("Sub", [queries, site.integers(window)])
    return site.emit("And", [seen, site.emit("Less", [first, keys])])


def _bias(site: Site, keys: Keys) -> str:
    """What is added to scores, its columns being positions."""
    bias = bounded(site, site.input(10), site.dtype(site.input(0)))
    if not site.has(3):
        return bias
    last = site.emit("Sub", [site.length(bias, 3), site.integers(1)])
    columns = site.squeeze(site.emit("Min", [keys.positions, last]), 0)
    return site.emit("Gather", [bias, columns], axis=3)
