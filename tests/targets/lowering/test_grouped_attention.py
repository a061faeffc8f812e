"""GroupQueryAttention is written in operators that TensorRT knows, whatever its caches are and however long a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.rules.sample import Sample
from tests.rules.samples.fused_attention import GROUPED
from tests.targets.lowering.lowered import (
    Array,
    attends_in_one_kernel,
    build_faults,
    error_of,
    largest_error,
    lowered,
    run,
)
from tpcompile.targets.lowering import lower

STEPS: dict[str, dict[str, int]] = {
    "prompt": {"b": 2, "s": 5, "p": 0, "t": 5},
    "token": {"b": 3, "s": 1, "p": 4, "t": 5},
    "first token": {"b": 2, "s": 1, "p": 0, "t": 1},
    "more of a prompt": {"b": 1, "s": 3, "p": 7, "t": 10},
    "buffer, prompt": {"b": 2, "s": 5, "p": 9, "t": 5},
    "buffer, token": {"b": 3, "s": 1, "p": 9, "t": 6},
}
LENGTHS = """one = Constant<value = int64[1] {1}>()
    count = ReduceSum<keepdims = 0>(m, one)
    less = Sub(count, one)
    n = Cast<to = 6>(less)
    sizes = Shape(m)
    wide = Gather(sizes, one)
    t = Cast<to = 6>(wide)"""


def grown(projections: str, operands: str, attributes: str, note: str, more: str = "", stored: str = "") -> Sample:
    """A sample whose lengths come from a mask of tokens, as exporters of decoders write it; 12 query heads on 3."""
    return Sample(
        "com.microsoft.GroupQueryAttention",
        f"""({projections}, int64[b, t] m, KIND[b, 3, p, hd] pk, KIND[b, 3, p, hd] pv{more})
        => (KIND[] y, KIND[] nk, KIND[] nv) <{stored}> {{ {LENGTHS}
        y, nk, nv = com.microsoft.GroupQueryAttention<num_heads = 12, kv_num_heads = 3{attributes}>({operands}) }}""",
        note=note,
        values={"m": (1, 2), "at": (0, 12)},
        sizes={"hd": 16, **STEPS["token"]},
    )


def of(sample: Sample, kind: str) -> Sample:
    """The sample in one of the two float types."""
    note = sample.note if kind == "float" else f"{sample.note}, half precision"
    return replace(sample, graph=sample.graph.replace("KIND", kind), note=note)


TABLES = "KIND[12, 8] c, KIND[12, 8] d"
APART = "KIND[b, s, 192] q, KIND[b, s, 48] k, KIND[b, s, 48] v"
GROWN = [
    grown("KIND[b, s, 288] x", "x, , , pk, pv, n, t", "", "packed"),
    grown("KIND[b, s, 288] x", "x, , , pk, pv, n, t, c, d", ", do_rotary = 1", "packed, rotary", stored=TABLES),
    grown(
        APART,
        "q, k, v, pk, pv, n, t, c, d",
        ", do_rotary = 1, rotary_interleaved = 1, local_window_size = 3, softcap = 2.5, scale = 0.3",
        "rotary of neighbours, a window, a soft cap",
        stored=TABLES,
    ),
    grown(
        APART,
        "q, k, v, pk, pv, n, t, , , , a, sink",
        "",
        "a bias, sinks",
        more=", KIND[1, 12, s, t] a",
        stored="KIND[12] sink",
    ),
    grown(
        APART,
        "q, k, v, pk, pv, n, t, c, d, at",
        ", do_rotary = 1",
        "rotary at positions, of which a first prompt reads one",
        more=", int64[b, s] at",
        stored="KIND[30, 8] c, KIND[30, 8] d",
    ),
    grown(APART, "q, k, v, pk, pv, n, t", ", causal = 0", "not causal"),
    grown(APART, "q, k, v, pk, pv, n, t, , , , a", ", smooth_softmax = 1", "one bias", more=", KIND[b, 1, s, t] a"),
]
COVERED = [sample for sample in GROUPED if sample.note != "scores"]


@pytest.mark.parametrize("sizes", STEPS.values(), ids=list(STEPS))
@pytest.mark.parametrize("sample", [of(sample, "float") for sample in GROWN], ids=str)
def test_every_step_keeps_its_numbers(sample: Sample, sizes: Mapping[str, int], tmp_path: Path) -> None:
    assert error_of(replace(sample, sizes={**sample.sizes, **sizes}), tmp_path) < 2e-6


@pytest.mark.parametrize("sample", [of(sample, "float16") for sample in GROWN], ids=str)
def test_half_precision(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < 2e-3


@pytest.mark.parametrize("sample", COVERED, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < 1e-6


def with_lengths(sample: Sample, folder: Path, counts: list[int], **sizes: int) -> float:
    """The error where each sequence has its own count of tokens after the step."""
    sample = replace(sample, sizes={**sample.sizes, **sizes})
    model = sample.model()
    feeds: dict[str, Array] = sample.feeds(model)
    feeds["m"] = np.asarray([[k < count for k in range(sizes["t"])] for count in counts], np.int64)
    found = [run(model, folder, feeds), run(lowered(sample, folder).without_hints(), folder, feeds)]
    for y, *_ in found:
        for row, count in zip(y, counts, strict=True):
            row[count:] = 0  # what padding attends to is nobody's business
    return largest_error(*found)


@pytest.mark.parametrize("sample", [of(sample, "float") for sample in GROWN], ids=str)
def test_sequences_of_different_lengths(sample: Sample, tmp_path: Path) -> None:
    assert with_lengths(sample, tmp_path, [5, 3, 4], b=3, s=5, p=0, t=5) < 2e-6  # a padded prompt
    assert with_lengths(sample, tmp_path, [3, 6, 1], b=3, s=1, p=5, t=6) < 2e-6  # a token each
    assert with_lengths(sample, tmp_path, [3, 6, 1], b=3, s=1, p=8, t=6) < 2e-6  # into buffers


WINDOW = replace(
    of(grown(APART, "q, k, v, pk, pv, n, t", ", local_window_size = 3, sliding_window_cache = 1", "window"), "float"),
    sizes={"hd": 16, "b": 1, "s": 1, "p": 5, "t": 2},
)


@pytest.mark.parametrize(
    ("tokens", "total", "rows"),
    [(1, 1, 3), (4, 4, 3), (4, 4, 5), (1, 5, 5), (1, 6, 5), (1, 9, 5), (3, 9, 5), (7, 7, 5), (8, 11, 4), (2, 40, 6)],
)
def test_a_cache_of_a_window_drops_what_is_out_of_sight(tokens: int, total: int, rows: int, tmp_path: Path) -> None:
    sample = replace(WINDOW, sizes={**WINDOW.sizes, "s": tokens, "t": total, "p": rows})
    model = sample.model()
    feeds = sample.feeds(model)
    before, after = (run(each, tmp_path, feeds) for each in (model, lowered(sample, tmp_path).without_hints()))
    slack = rows - 3 + 1
    held = total - slack * max(-((total - rows) // -slack), 0)  # rows beyond those say nothing
    assert largest_error([y[:, :, :held] if y.ndim == 4 else y for y in before],
                         [y[:, :, :held] if y.ndim == 4 else y for y in after]) < 1e-6  # fmt: skip


APART_NORMED = """size = Constant<value = int64[4] {0, 0, -1, 16}>()
    flat = Constant<value = int64[3] {0, 0, -1}>()
    q4 = Reshape(q, size) qn = SimplifiedLayerNormalization<axis = -1, epsilon = 0.02>(q4, w) qf = Reshape(qn, flat)
    k4 = Reshape(k, size) kn = SimplifiedLayerNormalization<axis = -1, epsilon = 0.01>(k4, u) kf = Reshape(kn, flat)
    y, nk, nv"""


@pytest.mark.parametrize("packed", [False, True])
def test_queries_and_keys_are_normed_within_it(packed: bool, tmp_path: Path) -> None:
    """No kernel of ONNX Runtime's for CPUs does: held against the norms outside."""
    rotary, stored = ", do_rotary = 1", "float[12, 8] c, float[12, 8] d, float[16] w, float[16] u"
    outside = of(grown(APART, "qf, kf, v, pk, pv, n, t, c, d", rotary, "", stored=stored), "float")
    outside = replace(outside, graph=outside.graph.replace("y, nk, nv", APART_NORMED))
    projections = "KIND[b, s, 288] x" if packed else APART
    operands = ("x, , " if packed else "q, k, v") + ", pk, pv, n, t, c, d, , , , , , w, u"
    attributes = f"{rotary}, qk_norm_epsilon = 0.02, k_norm_epsilon = 0.01"
    within = of(grown(projections, operands, attributes, "", stored=stored), "float")
    feeds = outside.feeds(outside.model())
    expected = run(outside.model(), tmp_path, feeds)
    if packed:
        feeds["x"] = np.concatenate([feeds.pop(name) for name in "qkv"], axis=-1)
    assert largest_error(expected, run(lowered(within, tmp_path).without_hints(), tmp_path, feeds)) < 1e-6


@pytest.mark.parametrize(
    ("tokens", "past", "present"), [(1, 4, 5), (1, 9, 9), (5, 0, 5)], ids=["grows", "buffer", "empty"]
)
def test_caches_of_one_length_grow_where_they_hold_too_little(
    tokens: int, past: int, present: int, tmp_path: Path
) -> None:
    sample = of(GROWN[0], "float")
    graph = sample.graph
    for symbol, size in (("b", 2), ("s", tokens), ("t", 5), ("p", past)):
        graph = graph.replace(f"[{symbol},", f"[{size},").replace(f", {symbol}]", f", {size}]")
        graph = graph.replace(f" {symbol},", f" {size},")
    sample = replace(sample, graph=graph, sizes={"hd": 16})
    feeds = sample.feeds(sample.model())
    after = run(lowered(sample, tmp_path).without_hints(), tmp_path, feeds)
    assert [cache.shape for cache in after[1:]] == [(2, 3, present, 16)] * 2
    assert largest_error(run(sample.model(), tmp_path, feeds), after) < 2e-6


def left(sample: Sample, folder: Path) -> list[str]:
    return list(lower(sample.model(), folder, "lowered.bin").left.values())


@pytest.mark.parametrize(
    ("operands", "more", "reason"),
    [
        ("q, k, v, pk, pv, n, t, , , , , , e, e", ", KIND[1] e", "caches are quantised"),
        ("q, k, v, pk, pv, n, t, , , , , , , , , , c", ", int32[b] c", "prompts come in padded pieces"),
    ],
)
def test_what_is_left_says_why(operands: str, more: str, reason: str, tmp_path: Path) -> None:
    assert left(of(grown(APART, operands, "", "", more=more), "float"), tmp_path) == [reason]


def test_scores_are_no_output(tmp_path: Path) -> None:
    sample = next(sample for sample in GROUPED if sample.note == "scores")
    assert left(sample, tmp_path) == ["scores are an output"]


@pytest.mark.parametrize("keys", ["KIND[b, p, 48] k, KIND[b, p, 48] v", "KIND[b, 3, s, 16] k, KIND[b, 3, s, 16] v"])
def test_keys_of_other_tokens_are_left(keys: str, tmp_path: Path) -> None:
    sample = of(grown(f"KIND[b, s, 192] q, {keys}", "q, k, v, pk, pv, n, t", "", ""), "float")
    assert left(sample, tmp_path) == ["keys that are not those of its queries' tokens"]


def test_a_bias_with_a_window_is_left(tmp_path: Path) -> None:
    attributes = ", local_window_size = 3, sliding_window_cache = 1"
    sample = grown(APART, "q, k, v, pk, pv, n, t, , , , a", attributes, "", more=", KIND[b, 1, s, t] a")
    assert left(of(sample, "float"), tmp_path) == ["a bias with a cache of a window"]


def test_the_size_of_a_head_is_written_where_a_cache_left_it_open(tmp_path: Path) -> None:
    graph = lowered(of(GROWN[0], "float"), tmp_path).model.graph
    past = next(info for info in graph.input if info.name == "pk")
    assert [dim.dim_param or dim.dim_value for dim in past.type.tensor_type.shape.dim] == ["b", 3, "p", 16]


@pytest.mark.parametrize("opset", [17, 20])
def test_half_precision_attends_in_one_kernel(opset: int, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    sizes = {"hd": 16, "b": 2, "s": 64, "p": 64, "t": 128}
    assert attends_in_one_kernel(replace(of(GROWN[0], "float16"), opset=opset, sizes=sizes), tmp_path)


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    samples = [of(sample, kind) for sample in GROWN for kind in ("float", "float16")]
    samples += [replace(of(GROWN[1], "float"), note=note, sizes={"hd": 16, **sizes}) for note, sizes in STEPS.items()]
    assert build_faults([*samples, *COVERED, WINDOW], tmp_path) == {}
