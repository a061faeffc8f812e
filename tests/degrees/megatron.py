"""What cutting a decoder by hand, as Megatron-LM does, would give: weights on the largest rank and collectives."""

from __future__ import annotations

import itertools
import math

from tests.degrees.decoders import POSITIONS, Decoder


def primes(tp: int) -> list[int]:
    return next(([p, *primes(tp // p)] for p in range(2, tp + 1) if tp % p == 0), [])


def shares(first: int, second: int, tp: int) -> list[tuple[int, int]]:
    """(largest block of `first`, largest of `second`) for each way to give prime factors of tp to one or the other."""
    parts = [(math.prod(a), math.prod(b)) for a, b in splits(tp)]
    return [(-(-first // a), -(-second // b)) for a, b in parts if a <= first and b <= second]


def splits(tp: int) -> list[tuple[list[int], list[int]]]:
    """The ways to give each prime factor of tp to one of two dims, or to neither."""
    uses = itertools.product((0, 1, 2), repeat=len(primes(tp)))
    each = [list(zip(primes(tp), use, strict=True)) for use in uses]
    return [([p for p, to in pairs if to == 0], [p for p, to in pairs if to == 1]) for pairs in each]


def largest_rank(shape: Decoder, tp: int) -> int:
    """Elements of the weights on the rank that has most, where heads, FFN and vocabulary are cut and no more.

    Key heads over some prime factors of tp, query heads of one group over the others; blocks as even as can be.
    """
    bias, hidden, size = int(shape.biases), shape.hidden, shape.head_size

    def attention(kv: int, group: int) -> int:
        q, kv_width = kv * group * size, kv * size
        return (q + 2 * kv_width) * (hidden + bias) + (q + bias) * hidden + 4 * size * shape.head_norms

    heads = min(attention(kv, group) for kv, group in shares(shape.kv_heads, shape.group, tp))
    ffn = min(2 * part * (hidden + bias) + (part + bias) * hidden for part, _ in shares(shape.ffn, 1, tp))
    rows = min(part for part, _ in shares(shape.vocabulary, 1, tp))
    tables = (1 if shape.tied else 2) * rows * hidden
    rest = 2 * hidden * (2 * shape.layers + 1) + POSITIONS * size + shape.layers
    return shape.layers * (heads + ffn) + tables + rest


def collectives(shape: Decoder, tp: int) -> int:
    """Two AllReduce a layer, one for the embedding, an AllGather of the logits.

    Where there are too few heads, something else of attention may be cut, for one more a layer.
    """
    return (2 if heads_suffice(shape, tp) else 3) * shape.layers + 2


def heads_suffice(shape: Decoder, tp: int) -> bool:
    """Whether key heads and the queries of a group can be cut into tp parts together."""
    return any(
        math.prod(first) * math.prod(second) == tp
        and math.prod(first) <= shape.kv_heads
        and math.prod(second) <= shape.group
        for first, second in splits(tp)
    )
