"""Attention with as many key heads as query heads, and rotary embedding, in operators that TensorRT knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.rules.sample import Sample
from tests.rules.samples.attention import SAMPLES as STANDARD
from tests.rules.samples.fused import fused
from tests.rules.samples.fused_attention import MULTI, PROJECTED, ROTARY
from tests.targets.lowering.lowered import build_faults, error_of, largest_error, lowered, run
from tpcompile.targets.lowering import lower

SIZES = {"b": 2, "s": 3, "t": 5, "p": 4}
ONE = {"b": 3, "s": 1, "t": 1, "p": 0}
IN_PLACE = [sample for sample in MULTI if "past_present_share_buffer" in sample.graph]
MORE = [
    fused(
        "MultiHeadAttention",
        "float[b, s, 24] q, float[b, t, 24] k, float[b, t, 30] v, float[b, 1, s, t] a; float[78] c",
        "<num_heads = 6, unidirectional = 1>(q, k, v, c, , a)",
        "bias, causal, a bias of scores for all heads",
        sizes={**SIZES, "t": 3},
    ),
    fused(
        "MultiHeadAttention",
        "float[b, s, 24] q, float[b, s, 24] k, float[b, s, 24] v, float[b, 6, p, 4] pk, float[b, 6, p, 4] pv, "
        "int32[b, t] m",
        "<num_heads = 6, scale = 0.7>(q, k, v, , m, , pk, pv)",
        "past and present, a mask of all keys",
        outputs="y nk nv",
        values={"m": (0, 2)},
        sizes={**SIZES, "t": 7},
    ),
    fused(
        "Attention",
        "float[b, s, 10] x, int32[b, t] m, float[2, b, 6, p, 4] past; float[10, 72] w, float[72] c",
        "<num_heads = 6, unidirectional = 1, mask_filter_value = -50.0>(x, w, c, m, past)",
        "a mask of all keys and causal, past and present",
        outputs="y present",
        values={"m": (0, 2)},
        sizes={**SIZES, "t": 7},
    ),
    fused(
        "Attention",
        "float[b, s, 10] x, int32[b] n; float[10, 72] w, float[72] c",
        "<num_heads = 6, unidirectional = 1>(x, w, c, n)",
        "lengths and causal, present alone",
        outputs="y present",
        values={"n": (1, 4)},
        sizes=SIZES,
    ),
]
TURNED = [sample for sample in [*STANDARD, *ROTARY] if "RotaryEmbedding" in sample.op]
ITSELF = [sample for sample in STANDARD if sample.op == "Attention"]
ALL_PADDING = "bounds of all sequences"  # where every key is padding, -10000 takes half precision's digits
COVERED = [*ITSELF, *(sample for sample in MULTI if sample not in IN_PLACE), *PROJECTED, *MORE, *TURNED]


def half(sample: Sample) -> Sample:
    """The sample with all of it in half precision."""
    text = sample.graph.replace("float[", "float16[")
    return replace(sample, graph=text, note=f"{sample.note}, half precision")


@pytest.mark.parametrize("sample", COVERED, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < 1e-6


@pytest.mark.parametrize("sample", [half(sample) for sample in COVERED if sample.note != ALL_PADDING], ids=str)
def test_half_precision(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < 2e-3


@pytest.mark.parametrize(
    ("sample", "nodes"),
    [
        ("(float[b,6,s,4] q, float[b,6,t,4] k, float[b,6,t,4] v, float[b,1,s,t] m) { y = Attention(q, k, v, m) }", 0),
        ("(float[b,6,s,4] q, float[b,6,t,4] k, float[b,6,t,4] v) { y = Attention(q, k, v) }", 1),
        ("(float16[b,6,s,4] q, float16[b,2,t,4] k, float16[b,2,t,4] v) { y = Attention(q, k, v) }", 1),
        ("(float16[b,6,s,4] q, float16[b,2,s,4] k, float16[b,2,s,4] v) { y = Attention<is_causal = 1>(q, k, v) }", 1),
        ("(float16[b,6,s,4] q, float16[b,2,t,4] k, float16[b,2,t,4] v, bool[s,t] m) { y = Attention(q, k, v, m) }", 1),
        ("(float[b,6,s,4] q, float[b,6,t,4] k, float[b,6,t,4] v) { y = Attention<is_causal = 1>(q, k, v) }", 0),
        ("(float[b,6,s,4] q, float[b,6,t,4] k, float[b,6,t,5] v) { y = Attention(q, k, v) }", 0),
    ],
)
def test_what_tensorrt_takes_stays_one_operator(sample: str, nodes: int, tmp_path: Path) -> None:
    text = sample.replace(") {", ") => (float16[] y) {" if "float16" in sample else ") => (float[] y) {")
    found = lowered(Sample("Attention", text, sizes=SIZES), tmp_path).model.graph.node
    stayed = [node for node in found if node.op_type == "Attention"]
    assert len(stayed) == nodes
    assert all(entry.i for node in stayed for entry in node.attribute if entry.name == "TRT_decomposable")
    assert all(len(node.input) < 4 or node.input[3] != "m" or "bool" not in sample for node in stayed)


@pytest.mark.parametrize("sizes", [ONE, {**ONE, "p": 6, "t": 7}, {"b": 1, "s": 6, "p": 0, "t": 6}], ids=str)
@pytest.mark.parametrize("sample", [sample for sample in [*MULTI, *PROJECTED, *MORE] if "p, 4]" in sample.graph])
def test_first_and_later_steps(sample: Sample, sizes: Mapping[str, int], tmp_path: Path) -> None:
    if "m; " in sample.graph or "s, 7] m" in sample.graph:
        sample = replace(sample, graph=sample.graph.replace("s, 7] m", "s, t] m"))
    assert error_of(replace(sample, sizes=sizes), tmp_path) < 1e-6


@pytest.mark.parametrize("sample", IN_PLACE, ids=str)
def test_a_cache_in_place_gives_what_a_growing_one_gives(sample: Sample, tmp_path: Path) -> None:
    model = sample.model()
    feeds = sample.feeds(model)
    y, keys, values = run(lowered(sample, tmp_path).without_hints(), tmp_path, feeds)
    for cache, past in ((keys, feeds["pk"]), (values, feeds["pv"])):
        assert cache.shape == past.shape
        assert np.array_equal(cache[:, :, :4], past[:, :, :4])
        assert not cache[:, :, 5:].any()
    grown = fused(
        "MultiHeadAttention",
        "float[b, 1, 24] q, float[b, 1, 24] k, float[b, 1, 24] v, float[b, 6, 4, 4] pk, float[b, 6, 4, 4] pv",
        "<num_heads = 6>(q, k, v, , , , pk, pv)",
        outputs="y nk nv",
    )
    past = {name: feeds[name][:, :, :4] if name in ("pk", "pv") else feeds[name] for name in feeds}
    assert largest_error(run(grown.model(), tmp_path, past), [y, keys[:, :, :5], values[:, :, :5]]) < 1e-6


@pytest.mark.parametrize(
    ("attributes", "operands", "reason"),
    [
        ("do_rotary = 1", "x, w", "queries and keys turn within it, by angles that only its GPU kernels know"),
        ("unidirectional = 0", "x, w, , m", "a mask of all tokens by all tokens"),
    ],
)
def test_what_is_left_says_why(attributes: str, operands: str, reason: str, tmp_path: Path) -> None:
    sample = fused(
        "Attention",
        "float[b, s, 10] x, int32[b, 1, 9, 9] m; float[10, 72] w",
        f"<num_heads = 6, {attributes}>({operands})",
    )
    assert list(lower(sample.model(), tmp_path, "lowered.bin").left.values()) == [reason]


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("form", ["6, s, 4", "s, 24"])
@pytest.mark.parametrize("mask", ["bool", "infinite", "lowest"])
def test_a_query_that_sees_no_key_gives_zeros(mask: str, form: str, kind: str, causal: int, tmp_path: Path) -> None:
    """Padding at the left of a batch; numbers that are none would reach all tokens through the values."""
    heads = "q_num_heads = 6, kv_num_heads = 6, " if form == "s, 24" else ""
    operands = ", ".join(f"{kind}[b, {form}] {name}" for name in "qkv")
    sample = Sample(
        "Attention",
        f"({operands}, {'bool' if mask == 'bool' else kind}[b, 1, s, s] m) => ({kind}[] y) "
        f"{{ y = Attention<{heads}is_causal = {causal}>(q, k, v, m) }}",
        sizes=SIZES,
    )
    feeds = sample.feeds(sample.model())
    seen = np.ones((2, 1, 3, 3), np.bool_)
    seen[0, 0, 1], seen[1, 0, :, 0] = False, False
    away = -np.inf if mask == "infinite" else np.finfo(feeds["q"].dtype).min
    feeds["m"] = seen if mask == "bool" else np.where(seen, 0.5, away).astype(feeds["q"].dtype)
    before = run(sample.model(), tmp_path, feeds)
    assert not (before[0][0, :, 1] if form == "6, s, 4" else before[0][0, 1]).any()
    after = run(lowered(sample, tmp_path).without_hints(), tmp_path, feeds)
    assert largest_error(before, after) < (2e-3 if kind == "float16" else 1e-6)


CAUSAL = fused(
    "MultiHeadAttention",
    "float[b, s, 24] q, float[b, t, 24] k, float[b, t, 30] v, float[1, 1, s, t] a",
    "<num_heads = 6, unidirectional = 1>(q, k, v, , , a)",
    sizes=SIZES,
)


@pytest.mark.parametrize("queries", [1, 3])
def test_the_last_query_sees_all_keys_of_other_tokens(queries: int, tmp_path: Path) -> None:
    assert error_of(replace(CAUSAL, sizes={**SIZES, "s": queries}), tmp_path) < 1e-6


def test_attention_of_packed_sequences_is_left(tmp_path: Path) -> None:
    sample = fused(
        "PackedMultiHeadAttention",
        "float[n, 24] q, float[n, 24] k, float[n, 24] v, int32[b, s] at, int32[c] ends",
        "<num_heads = 6>(q, k, v, , at, ends)",
    )
    reason = "sequences without padding, or a cache in an order of the GPU's"
    assert list(lower(sample.model(), tmp_path, "lowered.bin").left.values()) == [reason]


def test_layers_share_their_masks(tmp_path: Path) -> None:
    layer = "com.microsoft.Attention<num_heads = 6, unidirectional = 1>"
    sample = Sample(
        "com.microsoft.Attention",
        f"""(float[b, s, 24] x, int32[b, s] m) => (float[b, s, 24] z) <float[24, 72] w, float[72] c>
        {{ y = {layer}(x, w, c, m) z = {layer}(y, w, c, m) }}""",
        values={"m": (0, 2)},
    )
    nodes = [node.op_type for node in lowered(sample, tmp_path).model.graph.node]
    assert (nodes.count("Softmax"), nodes.count("Greater"), nodes.count("Less")) == (2, 1, 1)
    assert error_of(sample, tmp_path) < 1e-6


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults([*COVERED, *IN_PLACE, *map(half, COVERED)], tmp_path) == {}
