"""What every attention is made of: heads apart, scores, weights, and caches that are written in place.

The product of queries and keys, the softmax and the product with values have four axes, and as many heads on all sides:
so TensorRT takes them as one kernel. Half precision is widened for the softmax alone, as ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpcompile.targets.lowering.registry import NotLowered
from tpcompile.targets.lowering.site import Site

HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Scoring:
    """How scores become weights.

    Attributes:
        scale: what the products of queries and keys are multiplied with.
        softcap: scores are bent into ±softcap, 0 for not at all.
        added: what is added then, each broadcastable to [b, h, s, t] and of the operands' type or `score_type`.
        visible: broadcastable to [b, h, s, t]: which keys a query sees, "" for all. Each must see one.
        sink: a number per head, [h], that takes a part of the weights as one more score would; "" for none.
    """

    scale: float
    softcap: float = 0.0
    added: Sequence[str] = ()
    visible: str = ""
    sink: str = ""


def score_type(dtype: str) -> str:
    """The type of scores from their product on."""
    return "float32" if dtype in HALF else dtype


def heads_apart(site: Site, x: str, heads: int, size: int) -> str:
    """[b, s, h·d] as [b, h, s, d]."""
    return site.transpose(site.reshape(x, 0, 0, heads, size), 0, 2, 1, 3)


def heads_together(site: Site, x: str, width: int) -> str:
    """[b, h, s, d] as [b, s, h·d], h·d being `width`."""
    return site.reshape(site.transpose(x, 0, 2, 1, 3), 0, 0, width)


def for_each_query_head(site: Site, x: str, heads: int, times: int, size: int) -> str:
    """[b, h, t, d] as [b, h·times, t, d], each head for `times` query heads."""
    if times == 1:
        return x
    copies = site.emit("Expand", [site.unsqueeze(x, 2), site.integers(1, 1, times, 1, 1)])
    return site.reshape(copies, 0, heads * times, -1, size)


def attend(site: Site, q: str, k: str, v: str, dtype: str, how: Scoring) -> tuple[str, str, str]:
    """Values by weights, [b, h, s, d of values]; the scores before the softmax, and the weights, [b, h, s, t].

    Args:
        site: where nodes are emitted.
        q: [b, h, s, d].
        k: [b, h, t, d].
        v: [b, h, t, d of values].
        dtype: the type of all three; scores and weights are of `score_type(dtype)`.
        how: how scores become weights.
    """
    wide = score_type(dtype)
    if how.scale != 1.0:
        q = site.emit("Mul", [q, site.constant(how.scale, dtype)])
    scores = site.emit("MatMul", [q, site.transpose(k, 0, 1, 3, 2)])
    if wide != dtype:
        scores = site.cast(scores, wide)
    if how.softcap:
        bent = site.emit("Tanh", [site.emit("Mul", [scores, site.constant(1.0 / how.softcap, wide)])])
        scores = site.emit("Mul", [bent, site.constant(how.softcap, wide)])
    for bias in how.added:
        scores = site.emit("Add", [scores, bias])
    if how.visible:
        scores = site.emit("Where", [how.visible, scores, lowest(site, wide)])
    weights = _with_sink(site, scores, how.sink) if how.sink else site.emit("Softmax", [scores], axis=-1)
    narrow = weights if wide == dtype else site.cast(weights, dtype)
    return site.emit("MatMul", [narrow, v]), scores, weights


def lowest(site: Site, dtype: str) -> str:
    """The lowest number of a type, for scores that must not count: no -inf, whose differences are no numbers."""
    return site.constant(float(np.finfo(np.dtype(dtype)).min), dtype)


def _with_sink(site: Site, scores: str, sink: str) -> str:
    """The softmax of scores and one more in each row, [1, h, 1, 1], without that one's weight."""
    keys = site.length(scores, 3)
    rows = site.slice(site.emit("Shape", [scores]), 0, 0, 3)
    more = site.emit("Expand", [sink, site.emit("Concat", [rows, site.integers(1)], axis=0)])
    weights = site.emit("Softmax", [site.emit("Concat", [scores, more], axis=3)], axis=-1)
    return site.slice(weights, 3, 0, keys)


def written(site: Site, past: str, new: str, source: str, filled: str, dtype: str, heads: int) -> tuple[str, str]:
    """A cache after a step, and past and new entries one after the other; both [b, h, ., d].

    TensorRT makes one kernel of it: each entry is read from where it lies and written once.

    Args:
        site: where nodes are emitted.
        past: the cache before, [b, h, p, d].
        new: the step's own entries, [b, h, s, d].
        source: which of p + s entries comes to stand where, [b, length of the cache after].
        filled: which of those count, [b, length of the cache after]; the others become 0.
        dtype: of the cache.
        heads: h.
    """
    if site.opset < 12:
        raise NotLowered("a cache needs GatherND with batches, of opset 12")
    joined = site.emit("Concat", [past, new], axis=2)
    indices = site.emit("Expand", [site.unsqueeze(source, 1, 3), site.integers(1, heads, 1, 1)])
    taken = site.emit("GatherND", [joined, indices], batch_dims=2)
    zero = site.constant(0, dtype)
    return site.emit("Where", [site.unsqueeze(filled, 1, 3), taken, zero]), joined
