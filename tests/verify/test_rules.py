"""The checker's rules of fused and quantised operators: right cuts put the whole together, wrong ones are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.verify.one_operator import Array, Cuts, Operator, accepts, blocks, heads, rejects

MS = "com.microsoft"


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


B, S, PAST = 2, 3, 4
HALVES = blocks(10, 6, 4)

# norms and fused elementwise functions

SKIP = Operator(
    "SkipLayerNormalization",
    [normal(B, S, 10), normal(B, S, 10, seed=1), normal(10), normal(10, seed=1), normal(10, seed=2)],
    {"epsilon": 1e-5},
    outputs=4,
    domain=MS,
)
RMS = Operator(
    "SkipSimplifiedLayerNormalization", [normal(B, S, 10), normal(B, S, 10, seed=1), normal(10)], outputs=4, domain=MS
)
GELU = Operator("BiasGelu", [normal(B, S, 10), normal(10)], domain=MS)
FUSED = Operator(
    "FusedMatMul", [normal(B, 4, S), normal(B, 10, 4)], {"transA": 1, "transB": 1, "alpha": 0.5}, domain=MS
)
BATCHED = Operator(
    "FusedMatMul", [normal(4, B, S, 6), normal(6, B, S, 10)], {"transBatchA": 1, "transBatchB": 1}, domain=MS
)
CUTS_OF_SKIP: dict[int, Cuts] = {0: {1: blocks(S, 2, 1)}, 1: {1: blocks(S, 2, 1)}}

# attention

NQ, NKV, D = 6, 2, 8
GQ = 16
QUERY_HEADS, KEY_HEADS = [[0, 1, 2], [3, 4, 5]], [[0], [1]]


def group_query(packed: bool, **options: Any) -> Operator:
    """6 query heads in 2 groups; the first sequence has 3 tokens of the past, as the caches say 4."""
    q, k, v = normal(1, S, NQ * GQ), normal(1, S, NKV * GQ, seed=1), normal(1, S, NKV * GQ, seed=2)
    past = [normal(1, NKV, PAST, GQ, seed=seed) for seed in (3, 4)]
    inputs = [np.concatenate([q, k, v], 2), None, None] if packed else [q, k, v]
    rest = [np.array([PAST + S - 1], np.int32), np.array(PAST + S, np.int32)]
    turned = np.arange(16)[:, None] / 10.0 ** (np.arange(GQ // 2)[None] / GQ)
    rotary = [np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)]
    key_columns, query_columns = heads(KEY_HEADS, GQ), heads(QUERY_HEADS, GQ)
    if packed:
        starts = (0, NQ * GQ, (NQ + NKV) * GQ)
        columns = (query_columns, key_columns, key_columns)
        mine = [[s + i for s, held in zip(starts, columns, strict=True) for i in held[rank]] for rank in range(2)]
        cuts: dict[int, Cuts] = {0: {2: mine}}
    else:
        cuts = {0: {2: query_columns}, 1: {2: key_columns}, 2: {2: key_columns}}
    return Operator(
        "GroupQueryAttention",
        [*inputs, *past, *rest, *rotary],
        {"num_heads": NQ, "kv_num_heads": NKV, "do_rotary": 1},
        outputs=3,
        domain=MS,
        local={"num_heads": [3, 3], "kv_num_heads": [1, 1]},
        cuts=cuts | {3: {1: KEY_HEADS}, 4: {1: KEY_HEADS}},
        **options,
    )


N = 5
LEFT, RIGHT = [0, 1, 2], [3, 4]


def multi_head(bias: bool = True) -> Operator:
    """5 heads of 8, uneven."""
    q, k, v = (normal(B, S, N * D, seed=seed) for seed in range(3))
    columns = heads([LEFT, RIGHT], D)
    three = [[part * N * D + i for part in range(3) for i in columns[rank]] for rank in range(2)]
    attention_bias = normal(1, N, S, S)
    return Operator(
        "MultiHeadAttention",
        [q, k, v, normal(3 * N * D) if bias else None, None, attention_bias],
        {"num_heads": N},
        domain=MS,
        local={"num_heads": [3, 2]},
        cuts={0: {2: columns}, 1: {2: columns}, 2: {2: columns}, 5: {1: [LEFT, RIGHT]}}
        | ({3: {0: three}} if bias else {}),
    )


def packed_attention() -> Operator:
    columns = heads([LEFT, RIGHT], D)
    three = [[part * N * D + i for part in range(3) for i in columns[rank]] for rank in range(2)]
    return Operator(
        "Attention",
        [normal(B, S, 12), normal(12, 3 * N * D), normal(3 * N * D), None, normal(2, B, N, PAST, D)],
        {"num_heads": N, "unidirectional": 1},
        outputs=2,
        domain=MS,
        local={"num_heads": [3, 2]},
        cuts={1: {1: three}, 2: {0: three}, 4: {2: [LEFT, RIGHT]}},
    )


def turned(heads_told: bool) -> Operator:
    angles = normal(9, D // 2)
    return Operator(
        "RotaryEmbedding",
        [normal(B, S, N * D), np.array([2], np.int64), np.cos(angles), np.sin(angles)],
        {"num_heads": N, "rotary_embedding_dim": D} if heads_told else {},
        domain=MS,
        local={"num_heads": [3, 2]} if heads_told else {},
        cuts={0: {2: heads([LEFT, RIGHT], D)}},
    )


# quantised

BLOCK = 16


def nbits(cut: str, zero_points: bool = True) -> Operator:
    """MatMulNBits with 96 = 6 blocks of 16, 4 bits, and 10 columns."""
    rng = np.random.default_rng(3)
    count, k, n = 6, 6 * BLOCK, 10
    weight = rng.integers(0, 256, (n, count, BLOCK // 2)).astype(np.uint8)
    scales = rng.uniform(0.1, 1, (n, count)).astype(np.float32)
    zeros = rng.integers(0, 256, (n, count // 2)).astype(np.uint8) if zero_points else None
    inputs = [normal(B, S, k), weight, scales, zeros, None, normal(n)]
    cuts: dict[int, Cuts]
    local: Mapping[str, Any]
    if cut == "N":
        cuts, local = {at: {0: HALVES} for at in (1, 2, 3, 5)}, {"N": [6, 4]}
    else:
        rows = [list(range(4 * BLOCK)), list(range(4 * BLOCK, k))]
        cuts = {0: {2: rows}, 1: {1: blocks(6, 4, 2)}, 2: {1: blocks(6, 4, 2)}, 3: {1: blocks(3, 2, 1)}}
        local = {"K": [4 * BLOCK, 2 * BLOCK]}
    attributes = {"K": k, "N": n, "bits": 4, "block_size": BLOCK}
    return Operator(
        "MatMulNBits", inputs, attributes, domain=MS, local=local, cuts=cuts, zeroed=(5,) if cut == "K" else ()
    )


def looked_up(cuts: dict[int, Cuts]) -> Operator:
    """A table [10, 32] in 4 bits with blocks of 16."""
    rng = np.random.default_rng(4)
    data = rng.integers(0, 256, (10, 16)).astype(np.uint8)
    scales = rng.uniform(0.1, 1, (10, 2)).astype(np.float32)
    ids = np.array([[1, 9, 4], [0, 3, 3]])
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": 4}
    return Operator("GatherBlockQuantized", [data, ids, scales], attributes, domain=MS, cuts=cuts)


ints = np.random.default_rng(5).integers(-100, 100, (4, 10)).astype(np.int8)
unsigned = np.random.default_rng(6).integers(0, 200, (B, S, 12)).astype(np.uint8)
PER_COLUMN = Operator("DequantizeLinear", [ints, np.abs(normal(10)), np.zeros(10, np.int8)], {"axis": 1})
PER_BLOCK = Operator("DequantizeLinear", [ints, np.abs(normal(2, 10))], {"axis": 0, "block_size": 2})
INTEGER = Operator(
    "MatMulInteger",
    [
        unsigned,
        np.random.default_rng(7).integers(-9, 9, (12, 10)).astype(np.int8),
        np.array(7, np.uint8),
        np.array(2, np.int8),
    ],
)
DYNAMIC = Operator(
    "DynamicQuantizeMatMul",
    [
        normal(B, S, 12),
        np.random.default_rng(7).integers(-9, 9, (12, 10)).astype(np.int8),
        np.abs(normal(10)),
        np.zeros(10, np.int8),
        normal(10),
    ],
    domain=MS,
)

# images, and along an axis

IMAGE = normal(B, 6, 8, 7)
CHANNELS = blocks(6, 4, 2)
NUMBERS = [normal(6, seed=1), normal(6, seed=2), normal(6, seed=3), np.abs(normal(6)) + 1]
NORM = Operator("BatchNormalization", [IMAGE, *NUMBERS])
GROUPS = Operator("GroupNormalization", [IMAGE, *NUMBERS[:2]], {"num_groups": 3})
DEPTHWISE = Operator("Conv", [IMAGE, normal(12, 1, 3, 3), normal(12)], {"group": 6})
TRANSPOSED = Operator("ConvTranspose", [IMAGE, normal(6, 5, 3, 3), normal(5)], {"strides": [2, 2]})
SIZED = Operator("Resize", [IMAGE, None, np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"})

GOOD: dict[str, tuple[Operator, list[str]]] = {
    "skip norm, positions cut": (replace(SKIP, cuts=CUTS_OF_SKIP), ["axis 1: 3 cut 0-1|2"] * 4),
    "skip rms norm, positions cut": (replace(RMS, cuts=CUTS_OF_SKIP), ["axis 1: 3 cut 0-1|2"] * 4),
    "gelu and its bias": (replace(GELU, cuts={0: {2: HALVES}, 1: {0: HALVES}}), ["axis 2: 10 cut 0-5|6-9"]),
    "quick gelu": (
        Operator("QuickGelu", [normal(S, 10)], domain=MS, cuts={0: {1: HALVES}}),
        ["axis 1: 10 cut 0-5|6-9"],
    ),
    "column parallel": (replace(FUSED, cuts={1: {1: HALVES}}), ["axis 2: 10 cut 0-5|6-9"]),
    "row parallel": (replace(FUSED, cuts={0: {1: blocks(4, 3, 1)}, 1: {2: blocks(4, 3, 1)}}), ["partial (sum)"]),
    "turned batches": (replace(BATCHED, cuts={1: {3: HALVES}}), ["axis 3: 10 cut 0-5|6-9"]),
    "groups of queries, packed": (
        group_query(True),
        ["axis 2: 96 cut 0-47|48-95", "axis 1: 2 cut 0|1", "axis 1: 2 cut 0|1"],
    ),
    "groups of queries": (group_query(False), ["axis 2: 96 cut 0-47|48-95", "axis 1: 2 cut 0|1", "axis 1: 2 cut 0|1"]),
    "heads, uneven": (multi_head(), ["axis 2: 40 cut 0-23|24-39"]),
    "heads without bias": (multi_head(bias=False), ["axis 2: 40 cut 0-23|24-39"]),
    "attention with its product": (packed_attention(), ["axis 2: 40 cut 0-23|24-39", "axis 2: 5 cut 0-2|3-4"]),
    "turned heads": (turned(heads_told=True), ["axis 2: 40 cut 0-23|24-39"]),
    "turned heads, told by the cosines": (turned(heads_told=False), ["axis 2: 40 cut 0-23|24-39"]),
    "columns in 4 bits": (nbits("N"), ["axis 2: 10 cut 0-5|6-9"]),
    "rows in 4 bits": (nbits("K"), ["partial (sum)"]),
    "rows in 4 bits without zero points": (nbits("K", zero_points=False), ["partial (sum)"]),
    "a table cut across": (looked_up({0: {1: blocks(16)}, 2: {1: blocks(2)}}), ["axis 2: 32 cut 0-15|16-31"]),
    "a scale per column": (
        replace(PER_COLUMN, cuts={at: {0 if at else 1: HALVES} for at in range(3)}),
        ["axis 1: 10 cut 0-5|6-9"],
    ),
    "a scale per column, rows cut": (replace(PER_COLUMN, cuts={0: {0: blocks(4, 3, 1)}}), ["axis 0: 4 cut 0-2|3"]),
    "a scale per block, blocks cut": (
        replace(PER_BLOCK, cuts={0: {0: blocks(4)}, 1: {0: blocks(2)}}),
        ["axis 0: 4 cut 0-1|2-3"],
    ),
    "a scale per block, columns cut": (
        replace(PER_BLOCK, cuts={0: {1: HALVES}, 1: {1: HALVES}}),
        ["axis 1: 10 cut 0-5|6-9"],
    ),
    "integers, columns": (replace(INTEGER, cuts={1: {1: HALVES}}), ["axis 2: 10 cut 0-5|6-9"]),
    "integers, rows": (replace(INTEGER, cuts={0: {2: blocks(12, 5, 7)}, 1: {0: blocks(12, 5, 7)}}), ["partial (sum)"]),
    "quantised on the way, columns": (
        replace(DYNAMIC, cuts={1: {1: HALVES}, 2: {0: HALVES}, 3: {0: HALVES}, 4: {0: HALVES}}),
        ["axis 2: 10 cut 0-5|6-9"],
    ),
    "a pool": (
        Operator("MaxPool", [IMAGE], {"kernel_shape": [2, 2]}, cuts={0: {1: CHANNELS}}),
        ["axis 1: 6 cut 0-3|4-5"],
    ),
    "a global pool": (Operator("GlobalAveragePool", [IMAGE], cuts={0: {1: CHANNELS}}), ["axis 1: 6 cut 0-3|4-5"]),
    "batch norm": (
        replace(NORM, cuts={at: {0 if at else 1: CHANNELS} for at in range(5)}),
        ["axis 1: 6 cut 0-3|4-5"],
    ),
    "group norm": (
        replace(GROUPS, local={"num_groups": [2, 1]}, cuts={at: {0 if at else 1: CHANNELS} for at in range(3)}),
        ["axis 1: 6 cut 0-3|4-5"],
    ),
    "a depthwise conv": (
        replace(
            DEPTHWISE,
            local={"group": [4, 2]},
            cuts={0: {1: CHANNELS}, 1: {0: blocks(12, 8, 4)}, 2: {0: blocks(12, 8, 4)}},
        ),
        ["axis 1: 12 cut 0-7|8-11"],
    ),
    "conv, rows": (
        Operator(
            "Conv", [IMAGE, normal(5, 6, 3, 3), normal(5)], cuts={0: {1: CHANNELS}, 1: {1: CHANNELS}}, zeroed=(2,)
        ),
        ["partial (sum)"],
    ),
    "conv transposed, columns": (
        replace(TRANSPOSED, cuts={1: {1: blocks(5)}, 2: {0: blocks(5)}}),
        ["axis 1: 5 cut 0-1|2-4"],
    ),
    "conv transposed, rows": (
        replace(TRANSPOSED, cuts={0: {1: CHANNELS}, 1: {0: CHANNELS}}, zeroed=(2,)),
        ["partial (sum)"],
    ),
    "resize": (replace(SIZED, cuts={0: {1: CHANNELS}}), ["axis 1: 6 cut 0-3|4-5"]),
    "cumsum": (
        Operator("CumSum", [IMAGE, np.array(2)], cuts={0: {1: CHANNELS}}),
        ["axis 1: 6 cut 0-3|4-5"],
    ),
    "topk": (
        Operator("TopK", [IMAGE, np.array([3])], {"axis": 3}, outputs=2, cuts={0: {1: CHANNELS}}),
        ["axis 1: 6 cut 0-3|4-5"] * 2,
    ),
    "argmax": (
        Operator("ArgMax", [IMAGE], {"axis": 2, "keepdims": 0}, cuts={0: {1: CHANNELS}}),
        ["axis 1: 6 cut 0-3|4-5"],
    ),
    "einsum, a letter kept": (
        Operator("Einsum", [normal(3, 4), normal(4, 10)], {"equation": "ij,jk->ki"}, cuts={1: {1: HALVES}}),
        ["axis 0: 10 cut 0-5|6-9"],
    ),
    "einsum, a letter summed": (
        Operator(
            "Einsum", [normal(3, 10), normal(10, 4)], {"equation": "ij,jk->ki"}, cuts={0: {1: HALVES}, 1: {0: HALVES}}
        ),
        ["partial (sum)"],
    ),
    "picked entries": (
        Operator(
            "GatherElements",
            [normal(6, 5), np.array([[0, 1], [2, 2], [4, 0], [1, 1], [3, 2], [0, 4]])],
            {"axis": 1},
            cuts={0: {0: CHANNELS}, 1: {0: CHANNELS}},
        ),
        ["axis 0: 6 cut 0-3|4-5"],
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_right_cut(name: str) -> None:
    operator, lies = GOOD[name]
    assert accepts(operator) == lies


def other(operator: Operator, **changes: Any) -> Operator:
    """The operator with some inputs cut otherwise (None: whole), or with other attributes by rank."""
    cuts = dict(operator.cuts)
    for name, cut in changes.items():
        if name.startswith("x"):
            cuts.pop(int(name[1:]), None)
            if cut is not None:
                cuts[int(name[1:])] = cut
    rest = {name: value for name, value in changes.items() if not name.startswith("x")}
    return replace(operator, cuts=cuts, **rest)


SWAPPED = [HALVES[1], HALVES[0]]
CROSSED = heads([[3, 4, 5], [0, 1, 2]], GQ)
BAD: dict[str, tuple[Callable[[], Operator], str]] = {
    "skip norm over a cut axis": (
        lambda: replace(SKIP, cuts={at: {2 if at < 2 else 0: HALVES} for at in range(5)}),
        "TP526 needs all of the last axis, which is 10 cut 0-5|6-9",
    ),
    "skip that lies otherwise": (
        lambda: other(replace(RMS, cuts=CUTS_OF_SKIP), x1={1: blocks(S, 1, 2)}),
        "TP526 axis -2",
    ),
    "gelu with another bias": (
        lambda: replace(GELU, cuts={0: {2: blocks(10)}, 1: {0: [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]}}),
        "TP526 axis -1 of its inputs do not lie alike: 10 cut 0-4|5-9 and 10 cut 5-9|0-4",
    ),
    "gelu of a partial sum": (lambda: replace(GELU, zeroed=(0,)), "TP524 reads 'x0', which is partial (sum)"),
    "a product of other rows": (
        lambda: replace(FUSED, cuts={0: {1: blocks(4)}, 1: {2: [[2, 3], [0, 1]]}}),
        "TP526 the contracted axes do not lie alike",
    ),
    "queries of other groups": (
        lambda: other(group_query(False), x0={2: CROSSED}),
        "TP526 the query heads (6 cut 3-5|0-2) are not those that the key heads (2 cut 0|1) serve",
    ),
    "half a head of queries": (
        lambda: other(group_query(False), x0={2: blocks(96, 40, 56)}),
        "TP526 has [3, 3] heads by rank in queries",
    ),
    "a head count of the whole model": (
        lambda: replace(group_query(True), local={}),
        "TP526",
    ),
    "caches of other heads": (
        lambda: other(group_query(False), x3={1: [[1], [0]]}),
        "TP526 the heads of the cache and of new keys",
    ),
    "heads of q, k and v by rank, not by part": (
        lambda: other(group_query(True), x0={2: blocks(160)}),
        "takes 0-47 and 80-127 of 160 cut 0-79|80-159 for one part",
    ),
    "keys of other heads": (
        lambda: other(multi_head(bias=False), x1={2: heads([[0, 1, 3], [2, 4]], D)}),
        "TP526 the heads of queries and keys do not lie alike",
    ),
    "a bias of other heads": (
        lambda: other(multi_head(), x3={0: heads([list(range(9)), list(range(9, 15))], D)}),
        "TP526 takes 0-23 and 72-87 of 120 cut 0-71|72-119 for one part, which is no run of it",
    ),
    "an attention bias of other heads": (
        lambda: other(multi_head(), x5={1: [[2, 3, 4], [0, 1]]}),
        "TP526 the heads of the attention bias and of the queries",
    ),
    "weights cut across q | k | v": (
        lambda: other(packed_attention(), x1={1: blocks(120, 72, 48)}),
        "TP526 takes 0-23 and 72-87 of 120 cut 0-71|72-119 for one part, which is no run of it",
    ),
    "an input that is cut where it is summed": (
        lambda: other(packed_attention(), x0={2: blocks(12)}, x1={0: blocks(12)}),
        "TP526 needs all of the summed axis",
    ),
    "a head that is cut": (
        lambda: other(turned(heads_told=False), x0={2: blocks(40, 20, 20)}),
        "TP526 turns heads of 8 in an axis that is 40 cut 0-19|20-39",
    ),
    "scales of other columns": (
        lambda: other(nbits("N"), x2={0: [list(range(4, 10)), list(range(4))]}),
        "TP526 rows of 'x2' and of the weight",
    ),
    "an attribute of the whole weight": (
        lambda: replace(nbits("N"), local={}),
        "TP526 attribute N is [10, 10] by rank, and there are [6, 4]",
    ),
    "rows that are not those of the blocks": (
        lambda: other(nbits("K"), x0={2: [list(range(32, 96)), list(range(32))]}),
        "TP526 the blocks of the weight and the summed axis do not lie alike",
    ),
    "zero points of other blocks": (
        lambda: other(nbits("K"), x3={1: [[1, 2], [0]]}),
        "TP526 packed zero points and the blocks of the weight do not lie alike",
    ),
    "a bias that every rank adds": (lambda: replace(nbits("K"), zeroed=()), "TP525 adds 'x5', which every rank holds"),
    "whole ids in a cut table": (
        lambda: looked_up({0: {0: HALVES}, 2: {0: HALVES}}),
        "TP528 looks whole 'x1' up in 'x0', whose axis 0 is",
    ),
    "scales of other rows": (
        lambda: looked_up({0: {0: blocks(10)}, 2: {0: [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]}}),
        "TP526 rows of 'x2' and of the table do not lie alike",
    ),
    "scales of the other columns": (
        lambda: replace(PER_COLUMN, cuts={0: {1: blocks(10)}, 1: {0: [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]}}),
        "TP526 'x1' and axis 1 do not lie alike",
    ),
    "scales of the other blocks": (
        lambda: replace(PER_BLOCK, cuts={0: {0: blocks(4)}, 1: {0: [[1], [0]]}}),
        "TP526 'x1' and the blocks of axis 0 do not lie alike",
    ),
    "a range of some entries": (
        lambda: Operator("DynamicQuantizeLinear", [normal(S, 10)], outputs=3, cuts={0: {1: HALVES}}),
        "TP526 needs all of axis 1, to find the range, which is 10 cut 0-5|6-9",
    ),
    "zero points of other columns": (
        lambda: replace(
            INTEGER,
            inputs=[*INTEGER.inputs[:3], np.arange(10, dtype=np.int8)],
            cuts={1: {1: blocks(10)}, 3: {0: [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]}},
        ),
        "TP526 zero points and what they belong to do not lie alike",
    ),
    "quantised by a range of some entries": (
        lambda: replace(DYNAMIC, cuts={0: {2: blocks(12)}, 1: {0: blocks(12)}}),
        "TP526 needs all of axis 2 of 'x0'",
    ),
    "a pool over cut space": (
        lambda: Operator("MaxPool", [IMAGE], {"kernel_shape": [2, 2]}, cuts={0: {2: blocks(8)}}),
        "TP526 needs all of a spatial axis",
    ),
    "means of other channels": (
        lambda: replace(NORM, cuts={0: {1: blocks(6)}, **{at: {0: [[3, 4, 5], [0, 1, 2]]} for at in range(1, 5)}}),
        "TP526 'x1' and the channels do not lie alike",
    ),
    "scales of other groups": (
        lambda: replace(
            GROUPS,
            local={"num_groups": [2, 1]},
            cuts={0: {1: CHANNELS}, 1: {0: [[2, 3, 4, 5], [0, 1]]}, 2: {0: CHANNELS}},
        ),
        "TP526 'x1' and what it scales do not lie alike",
    ),
    "channels of other groups": (
        lambda: replace(
            DEPTHWISE,
            local={"group": [3, 3]},
            cuts={0: {1: blocks(6)}, 1: {0: [[6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4, 5]]}, 2: {0: blocks(12)}},
        ),
        "TP526 the groups of the input and of the weight do not lie alike",
    ),
    "a bias of every rank in a conv": (
        lambda: replace(TRANSPOSED, cuts={0: {1: CHANNELS}, 1: {0: CHANNELS}}),
        "TP525 adds bias 'x2'",
    ),
    "a resize of cut rows": (
        lambda: replace(SIZED, cuts={0: {2: blocks(8)}}),
        "TP526 needs all of an axis that changes",
    ),
    "a cumulative sum over a cut axis": (
        lambda: Operator("CumSum", [IMAGE, np.array(1)], cuts={0: {1: CHANNELS}}),
        "TP526 needs all of axis 1",
    ),
    "einsum over other rows": (
        lambda: Operator(
            "Einsum",
            [normal(3, 10), normal(10, 4)],
            {"equation": "ij,jk->ki"},
            cuts={0: {1: blocks(10)}, 1: {0: [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]}},
        ),
        "TP526 the axes of 'j' do not lie alike",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_cut(name: str) -> None:
    make, text = BAD[name]
    assert text in rejects(make())
