"""What every attention is made of: heads apart, scores, weights, and caches that are written in place.

In half precision attention is ai.onnx's operator where the model's opset has it: TensorRT makes one kernel of it, which
reads each key head once for all its query heads. Elsewhere it is a product, a softmax and a product of four axes with
as many heads on all sides; half precision is widened for the softmax, as ONNX Runtime does. One kernel as well, but
for copies of key heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tpcompile.graph.dtypes import numpy_dtype
from tpcompile.targets.lowering.registry import NotLowered
from tpcompile.targets.lowering.site import Site

HALF = ("float16", "bfloat16")
ATTENTION_OPSET = 23
"""The opset that brought Attention."""


@dataclass(frozen=True)
class Heads:
    """What is attended: `keys` heads of keys and values, each for `times` query heads.

    `size` is that of a head of queries and keys, `values` that of one of values; `dtype` is of all three.
    """

    keys: int
    times: int
    size: int
    values: int
    dtype: str

    @property
    def scores(self) -> str:
        """The type of scores from their product on."""
        return "float32" if self.dtype in HALF else self.dtype


@dataclass(frozen=True)
class Scoring:
    """How scores become weights.

    Attributes:
        scale: what the products of queries and keys are multiplied with.
        softcap: scores are bent into ±softcap, 0 for not at all.
        added: what is added then, each broadcastable to [b, h, s, t] and of the operands' type.
        visible: broadcastable to [b, h, s, t]: which keys a query sees, "" for all. Each must see one.
        sink: a number per head, [1, h, 1, 1] of the scores' type, that takes a part of the weights as one more score
            would; "" for none.
        queries: s, of one element, where what is added and visible is the same for all queries; "" where it is not.
    """

    scale: float
    softcap: float = 0.0
    added: Sequence[str] = ()
    visible: str = ""
    sink: str = ""
    queries: str = ""


@dataclass(frozen=True)
class Attended:
    """The result [b, h, s, d of values]; where scores are an output, what they were on the way, [b, h, s, t]."""

    y: str
    products: str = ""
    scores: str = ""
    weights: str = ""


def heads_apart(site: Site, x: str, heads: int, size: int) -> str:
    """[b, s, h·d] as [b, h, s, d]."""
    return site.transpose(site.reshape(x, 0, 0, heads, size), 0, 2, 1, 3)


def heads_together(site: Site, x: str, width: int) -> str:
    """[b, h, s, d] as [b, s, h·d], h·d being `width`."""
    return site.reshape(site.transpose(x, 0, 2, 1, 3), 0, 0, width)


def attend(site: Site, q: str, k: str, v: str, heads: Heads, how: Scoring, *, tell: bool = False) -> Attended:
    """Values by weights.

    Args:
        site: where nodes are emitted.
        q: [b, keys·times, s, size].
        k: [b, keys, t, size].
        v: [b, keys, t, values].
        heads: what the three are.
        how: how scores become weights.
        tell: whether scores are asked for.
    """
    bent = how.softcap or how.sink or tell
    if site.opset >= ATTENTION_OPSET and heads.dtype in HALF and heads.size == heads.values and not bent:
        mask = _mask(site, heads, how)
        return Attended(site.emit("Attention", [q, k, v, mask], scale=how.scale, TRT_decomposable=1))
    wide = heads.scores
    k, v = _for_query_heads(site, k, heads, heads.size), _for_query_heads(site, v, heads, heads.values)
    if how.scale != 1.0:
        q = site.emit("Mul", [q, site.constant(how.scale, heads.dtype)])
    products = scores = _widened(site, site.emit("MatMul", [q, site.transpose(k, 0, 1, 3, 2)]), heads)
    if how.softcap:
        curve = site.emit("Tanh", [site.emit("Mul", [scores, site.constant(1.0 / how.softcap, wide)])])
        scores = site.emit("Mul", [curve, site.constant(how.softcap, wide)])
    for bias in how.added:
        scores = site.emit("Add", [scores, _widened(site, bias, heads)])
    if how.visible:
        scores = site.emit("Where", [how.visible, scores, lowest(site, wide)])
    weights = _with_sink(site, scores, how.sink) if how.sink else site.emit("Softmax", [scores], axis=-1)
    y = site.emit("MatMul", [_narrowed(site, weights, heads), v])
    told = [_narrowed(site, each, heads) for each in (products, scores, weights)] if tell else []
    return Attended(y, *told)


def bounded(site: Site, added: str, dtype: str) -> str:
    """What is added to scores, infinities bounded: sums stay numbers, and keys that nobody sees weigh less still."""
    return site.emit("Max", [added, site.constant(lowest_of(dtype) / 2, dtype)])


def lowest(site: Site, dtype: str) -> str:
    """The lowest number of a type, for scores that must not count: no -inf, whose differences are no numbers."""
    return site.constant(lowest_of(dtype), dtype)


def lowest_of(dtype: str) -> float:
    """The lowest finite number of a float type."""
    info: Any = ml_dtypes.finfo if dtype == "bfloat16" else np.finfo  # neither knows the other's types
    return float(info(numpy_dtype(dtype)).min)


def _mask(site: Site, heads: Heads, how: Scoring) -> str | None:
    """All that is added to scores, in the operands' type; TensorRT's kernel takes it as it is, bools not."""
    if not how.added and not how.visible:
        return None
    mask = how.added[0] if how.added else site.constant(0, heads.dtype)
    for bias in how.added[1:]:
        mask = site.emit("Add", [mask, bias])
    if how.visible:
        mask = site.emit("Where", [how.visible, mask, lowest(site, heads.dtype)])
    if how.queries:  # ONNX Runtime wants a row per query
        one = site.integers(1)
        rows = site.emit("Concat", [one, one, how.queries, one], axis=0)
        mask = site.emit("Expand", [mask, rows])
    return mask


def _for_query_heads(site: Site, x: str, heads: Heads, size: int) -> str:
    """[b, keys, t, size] as [b, keys·times, t, size]."""
    if heads.times == 1:
        return x
    copies = site.emit("Expand", [site.unsqueeze(x, 2), site.integers(1, 1, heads.times, 1, 1)])
    return site.reshape(copies, 0, heads.keys * heads.times, -1, size)


def _widened(site: Site, x: str, heads: Heads) -> str:
    return site.cast(x, heads.scores) if heads.scores != heads.dtype else x


def _narrowed(site: Site, x: str, heads: Heads) -> str:
    return site.cast(x, heads.dtype) if heads.scores != heads.dtype else x


def _with_sink(site: Site, scores: str, sink: str) -> str:
    """The softmax of scores and one more in each row, [1, h, 1, 1], without that one's weight."""
    keys = site.length(scores, 3)
    rows = site.slice(site.emit("Shape", [scores]), 0, 0, 3)
    more = site.emit("Expand", [sink, site.emit("Concat", [rows, site.integers(1)], axis=0)])
    weights = site.emit("Softmax", [site.emit("Concat", [scores, more], axis=3)], axis=-1)
    return site.slice(weights, 3, 0, keys)


def written(site: Site, past: str, new: str, source: str, filled: str, heads: Heads) -> tuple[str, str]:
    """A cache after a step, and past and new entries one after the other; both [b, h, ., d].

    TensorRT makes one kernel of it: each entry is read from where it lies and written once.

    Args:
        site: where nodes are emitted.
        past: the cache before, [b, h, p, d].
        new: the step's own entries, [b, h, s, d].
        source: which of p + s entries comes to stand where, [b, length of the cache after].
        filled: which of those count, [b, length of the cache after]; the others become 0.
        heads: what the cache holds.
    """
    if site.opset < 12:
        raise NotLowered("a cache needs GatherND with batches, of opset 12")
    joined = site.emit("Concat", [past, new], axis=2)
    indices = site.emit("Expand", [site.unsqueeze(source, 1, 3), site.integers(1, heads.keys, 1, 1)])
    taken = site.emit("GatherND", [joined, indices], batch_dims=2)
    zero = site.constant(0, heads.dtype)
    return site.emit("Where", [site.unsqueeze(filled, 1, 3), taken, zero]), joined
