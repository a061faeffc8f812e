"""Samples of ONNX Runtime's attention operators and rotary embedding."""

from tests.rules.sample import Sample
from tests.rules.samples.fused import fused

_PROMPT = {"b": 2, "s": 3}
_STEP = {"b": 2, "s": 1, "p": 4}
_AFTER = {"b": 1, "s": 3, "p": 4}


def grouped(
    operands: str, heads: tuple[int, int], call: str, note: str, *, total: int, outputs: str = "y nk nv", free: str,
    attributes: str = "", values: dict[str, tuple[float, float]] | None = None, **claims: object,
) -> Sample:  # fmt: skip
    """A sample of GroupQueryAttention where every sequence has `total` tokens after the step."""
    given, _, stored = operands.partition(";")
    more = f"num_heads = {heads[0]}, kv_num_heads = {heads[1]}" + (f", {attributes}" if attributes else "")
    return fused(
        "GroupQueryAttention",
        f"{given}, int32[b] n; int32 t = {{{total}}}{',' + stored if stored else ''}",
        f"<{more}>({call})",
        note,
        outputs=outputs,
        free=free,
        values={"n": (total - 1, total), **(values or {})},
        **claims,
    )


GROUPED = [
    grouped(
        "float[b, s, 96] q, float[b, s, 48] k, float[b, s, 48] v",
        (12, 6),
        "q, k, v, , , n, t",
        "a prompt",
        total=3,
        free="q[2].0 q[2].1",
        sizes=_PROMPT,
    ),
    grouped(
        "float[b, s, 96] q, float[b, s, 96] k, float[b, s, 96] v",
        (12, 12),
        "q, k, v, , , n, t",
        "as many key heads, no caches",
        total=3,
        outputs="y",
        free="q[2].0",
        sizes=_PROMPT,
    ),
    grouped(
        "float[b, s, 144] x, float[b, 3, p, 8] pk, float[b, 3, p, 8] pv",
        (12, 3),
        "x, , , pk, pv, n, t",
        "packed, past and present",
        total=5,
        free="x[2].0 x[2].1",
        sizes=_STEP,
    ),
    grouped(
        "float[b, s, 128] x, float[b, 1, p, 16] pk, float[b, 1, p, 16] pv; float[9, 8] c, float[9, 8] d",
        (6, 1),
        "x, , , pk, pv, n, t, c, d",
        "packed, one key head, rotary",
        total=5,
        free="x[2].0",
        attributes="do_rotary = 1",
        sizes=_STEP,
    ),
    grouped(
        """float[b, s, 96] q, float[b, s, 48] k, float[b, s, 48] v, float[b, 3, p, 16] pk, float[b, 3, p, 16] pv,
        int64[b, s] at; float[9, 8] c, float[9, 8] d""",
        (6, 3),
        "q, k, v, pk, pv, n, t, c, d, at",
        "rotary at positions, a window, a soft cap",
        total=7,
        free="q[2].0 q[2].1",
        attributes="do_rotary = 1, rotary_interleaved = 1, local_window_size = 2, softcap = 1.5, scale = 0.3",
        values={"at": (4, 7)},
        sizes=_AFTER,
    ),
    grouped(
        """float[b, s, 96] q, float[b, s, 32] k, float[b, s, 32] v, float[b, 4, p, 8] pk, float[b, 4, p, 8] pv,
        float[b, 12, s, 7] m; float[12] sink""",
        (12, 4),
        "q, k, v, pk, pv, n, t, , , , m, sink",
        "a bias and a sink per head",
        total=7,
        free="q[2].0 q[2].1",
        sizes=_AFTER,
    ),
    grouped(
        "float[b, s, 64] q, float[b, s, 32] k, float[b, s, 32] v, float[b, 2, 9, 16] pk, float[b, 2, 9, 16] pv, "
        "float[1, 1, s, 5] m",
        (4, 2),
        "q, k, v, pk, pv, n, t, , , , m",
        "caches in place, a bias for all heads",
        total=5,
        free="q[2].0 q[2].1",
        attributes="smooth_softmax = 1",
        sizes=_STEP,
    ),
    grouped(
        "float[b, s, 48] q, float[b, s, 48] k, float[b, s, 48] v, float[b, 6, p, 8] pk, float[b, 6, p, 8] pv",
        (6, 6),
        "q, k, v, pk, pv, n, t",
        "scores",
        total=7,
        outputs="y nk nv w",
        free="q[2].0",
        attributes="qk_output = 2",
        sizes=_AFTER,
    ),
    grouped(
        "float[b, s, 96] q, float[b, s, 48] k, float[b, s, 48] v, float[b, 6, 4, 8] pk, float[b, 6, 4, 8] pv",
        (12, 6),
        "q, k, v, pk, pv, n, t",
        "a cache of a window",
        total=9,
        free="q[2].0 q[2].1",
        attributes="local_window_size = 4, sliding_window_cache = 1",
        sizes=_STEP,
    ),
]

_MULTI = {"b": 2, "s": 3, "t": 5, "p": 4}

MULTI = [
    fused(
        "MultiHeadAttention",
        "float[b, s, 24] q, float[b, t, 24] k, float[b, t, 30] v",
        "<num_heads = 6>(q, k, v)",
        free="q[2].0",
        sizes=_MULTI,
    ),
    fused(
        "MultiHeadAttention",
        "float[b, s, 24] q, float[b, t, 24] k, float[b, t, 30] v, int32[b, t] m; float[78] c",
        "<num_heads = 6, scale = 0.3>(q, k, v, c, m)",
        "bias, a mask of keys",
        free="q[2].0",
        values={"m": (0, 2)},
        sizes=_MULTI,
    ),
    fused(
        "MultiHeadAttention",
        "float[b, s, 24] q, float[b, t, 6, 2, 4] kv",
        "<num_heads = 6, scale = 0.3>(q, kv)",
        "packed keys and values",
        free="q[2].0",
        sizes=_MULTI,
    ),
    fused(
        "MultiHeadAttention",
        "float[b, s, 6, 3, 4] qkv",
        "<num_heads = 6>(qkv)",
        "packed",
        free="qkv[2]",
        sizes=_MULTI,
    ),
    fused(
        "MultiHeadAttention",
        "float[b, s, 24] q, float[b, 6, t, 4] k, float[b, 6, t, 4] v, int32[b] n",
        "<num_heads = 6>(q, k, v, , n)",
        "keys with heads apart, lengths",
        free="q[2].0",
        values={"n": (2, 6)},
        sizes=_MULTI,
    ),
    fused(
        "MultiHeadAttention",
        "float[b, s, 24] q, float[b, s, 24] k, float[b, s, 24] v, float[b, 6, p, 4] pk, float[b, 6, p, 4] pv, "
        "float[1, 6, s, 7] m",
        "<num_heads = 6, unidirectional = 1>(q, k, v, , , m, pk, pv)",
        "past and present, a bias per head",
        outputs="y nk nv",
        free="q[2].0",
        sizes=_MULTI,
    ),
    fused(
        "MultiHeadAttention",
        "float[b, s, 24] q, float[b, s, 24] k, float[b, s, 24] v, int32[b, s, s] m, float[b, 1, s, s] a",
        "<num_heads = 6, mask_filter_value = -100.0>(q, k, v, , m, a)",
        "a mask per query, a bias for all heads, scores",
        outputs="y _ _ w",
        free="q[2].0",
        values={"m": (0, 2)},
        sizes=_MULTI,
    ),
    fused(
        "MultiHeadAttention",
        "float[4, 3, 24] q, float[4, 3, 24] k, float[4, 3, 24] v, int32[4, 3] m",
        "<num_heads = 6>(q, k, v, , m)",
        "a fixed batch",
        free="q[0] q[2].0",
        values={"m": (1, 2)},
    ),
    fused(
        "DecoderMaskedMultiHeadAttention",
        "float[b, 1, 24] q, float[b, 1, 24] k, float[b, 1, 24] v, float[b, 6, 9, 4] pk, float[b, 6, 9, 4] pv; "
        "int32[1] n = {4}",
        "<num_heads = 6, past_present_share_buffer = 1>(q, k, v, , , pk, pv, n)",
        outputs="y nk nv",
        free="q[2].0",
    ),
    fused(
        "DecoderMaskedMultiHeadAttention",
        "float[b, 1, 24] q, float[b, 6, t, 4] k, float[b, 6, t, 4] v, int32[b, t] m",
        "<num_heads = 6>(q, k, v, m)",
        "keys with heads apart",
        free="q[2].0",
        values={"m": (0, 2)},
        sizes=_MULTI,
    ),
]

_PROJECTED = "; float[10, 72] w, float[72] c"

PROJECTED = [
    fused(
        "Attention",
        "float[b, s, 10] x; float[10, 72] w",
        "<num_heads = 6, unidirectional = 1>(x, w)",
        free="w[1].0",
        sizes=_MULTI,
    ),
    fused(
        "Attention",
        "float[b, s, 10] x, int32[b, s] m" + _PROJECTED,
        "<num_heads = 6, mask_filter_value = -100.0>(x, w, c, m)",
        "bias, a mask of keys",
        free="w[1].0",
        values={"m": (0, 2)},
        sizes=_MULTI,
    ),
    fused(
        "Attention",
        "float[b, s, 10] x, int32[b] n; float[10, 78] w, float[78] c",
        "<num_heads = 6, qkv_hidden_sizes = [24, 24, 30]>(x, w, c, n)",
        "widths, lengths",
        free="w[1].0",
        values={"n": (2, 4)},
        sizes=_MULTI,
    ),
    fused(
        "Attention",
        "float[b, s, 10] x, float[2, b, 6, p, 4] past" + _PROJECTED,
        "<num_heads = 6, unidirectional = 1>(x, w, c, , past)",
        "past and present",
        outputs="y present",
        free="w[1].0",
        sizes=_MULTI,
    ),
    fused(
        "Attention",
        "float[b, s, 10] x, float[1, 6, s, s] a" + _PROJECTED,
        "<num_heads = 6, scale = 0.3>(x, w, c, , , a)",
        "a bias per head",
        free="w[1].0",
        sizes=_MULTI,
    ),
    fused(
        "Attention",
        "float[b, s, 10] x, int32[b, s, s] m" + _PROJECTED,
        "<num_heads = 6>(x, w, c, m)",
        "a mask per query",
        free="w[1].0",
        values={"m": (0, 2)},
        sizes=_MULTI,
    ),
    fused(
        "Attention",
        "float[4, 3, 10] x, int32[8] n" + _PROJECTED,
        "<num_heads = 6>(x, w, c, n)",
        "bounds of all sequences",
        free="w[1].0",
        values={"n": (3, 4)},
    ),
]

ROTARY = [
    fused(
        "RotaryEmbedding",
        "float[b, s, 48] x, int64[b, s] at; float[9, 4] c, float[9, 4] d",
        "(x, at, c, d)",
        free="x[2].0",
        values={"at": (0, 9)},
    ),
    fused(
        "RotaryEmbedding",
        "float[b, s, 48] x, int64[1] at; float[9, 2] c, float[9, 2] d",
        "<num_heads = 6, rotary_embedding_dim = 4, interleaved = 1>(x, at, c, d)",
        "part of a head, from an offset",
        free="x[2].0",
        values={"at": (2, 5)},
    ),
    fused(
        "RotaryEmbedding",
        "float[b, 6, s, 8] x, int64[b, s] at; float[9, 4] c, float[9, 4] d",
        "<num_heads = 6, scale = 1.0>(x, at, c, d)",
        "heads apart",
        free="x[1]",
        values={"at": (0, 9)},
    ),
    fused(
        "RotaryEmbedding",
        "float[4, 6, 3, 8] x, int64[4, 3] at; float[9, 3] c, float[9, 3] d",
        "<num_heads = 6, rotary_embedding_dim = 6>(x, at, c, d)",
        "heads apart, part of a head",
        free="x[0] x[1] x[2]",
        values={"at": (0, 9)},
    ),
]

ROTARY += [
    fused(
        "MRotaryEmbedding",
        "float[b, s, 48] x, int64[3, b, s] at; float[9, 4] c, float[9, 4] d",
        "<num_heads = 6, mrope_section = [2, 1, 1]>(x, at, c, d)",
        free="x[2].0",
        values={"at": (0, 9)},
    ),
    fused(
        "MRotaryEmbedding",
        "float[b, 6, s, 8] x, int64[3, b, s] at; float[9, 4] c, float[9, 4] d",
        "<num_heads = 6, mrope_section = [2, 1, 1], mrope_layout = 1>(x, at, c, d)",
        "heads apart",
        free="x[1]",
        values={"at": (0, 9)},
    ),
]

SAMPLES = [*GROUPED, *MULTI, *PROJECTED, *ROTARY]
