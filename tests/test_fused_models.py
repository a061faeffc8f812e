"""Small models of ONNX Runtime's fused operators, as its tools write them, with numbers of heads that are unusual."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tpcompile
from tests.one_graph import Array, OneGraph
from tests.rules.forced import differs, run_whole
from tests.rules.sample import Sample

LAYERS = 2
DRAWN = (-0.25, 0.25)


class Written:
    """Collects the text of a model and the names of its weights."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.weights: list[str] = []
        self.lines: list[str] = []

    def weight(self, name: str, *shape: int) -> str:
        self.weights.append(f"float[{', '.join(map(str, shape))}] {name}")
        return name

    def sample(self, **more: tuple[float, float]) -> Sample:
        """The model; weights are small, so that no softmax is all one token."""
        body = "\n".join(self.lines)
        text = f"({', '.join(self.inputs)}) => ({', '.join(self.outputs)}) <{', '.join(self.weights)}> {{ {body} }}"
        values = {weight.split()[-1]: DRAWN for weight in self.weights if weight.startswith("float")}
        return Sample("com.microsoft.X", text, opset=20, values={**values, **more})


def grouped(heads: int, kv: int, packed: bool, extras: bool = False) -> Sample:
    """A decoder with caches: hidden 40, heads of 16, FFN 88, vocabulary 97."""
    w = Written()
    w.inputs += ["int64[b, s] ids", "int32[b] n", "int32 t"]
    w.outputs.append("float[b, s, 97] logits")
    w.weight("words", 97, 40), w.weight("cos", 64, 8), w.weight("sin", 64, 8)
    w.lines.append("r0 = Gather(words, ids)")
    w.lines.append(f"h0 = SimplifiedLayerNormalization<axis = -1>(r0, {w.weight('norm', 40)})")
    for k in range(LAYERS):
        w.inputs += [f"float[b, {kv}, p, 16] past_{side}{k}" for side in "kv"]
        w.outputs += [f"float[b, {kv}, q, 16] present_{side}{k}" for side in "kv"]
        widths = [(heads + 2 * kv) * 16] if packed else [heads * 16, kv * 16, kv * 16]
        for side, width in zip("qkv", widths, strict=False):
            w.lines.append(f"{side}m{k} = MatMul(h{2 * k}, {w.weight(f'{side}{k}', 40, width)})")
            w.lines.append(f"{side}a{k} = Add({side}m{k}, {w.weight(f'{side}c{k}', width)})")
        given = f"qa{k}, , " if packed else f"qa{k}, ka{k}, va{k}"
        sink = f", , , {w.weight(f'sink{k}', heads)}" if extras else ""
        more = ", softcap = 20.0, local_window_size = 3" if extras else ""
        w.lines.append(
            f"y{k}, present_k{k}, present_v{k} = com.microsoft.GroupQueryAttention<num_heads = {heads}, kv_num_heads = "
            f"{kv}, do_rotary = 1{more}>({given}, past_k{k}, past_v{k}, n, t, cos, sin{sink})"
        )
        w.lines.append(f"o{k} = MatMul(y{k}, {w.weight(f'out{k}', heads * 16, 40)})")
        w.lines.append(
            f"g{k}, g1{k}, g2{k}, s{k} = com.microsoft.SkipSimplifiedLayerNormalization(r{k}, o{k}, "
            f"{w.weight(f'inner{k}', 40)})"
        )
        w.lines.append(f"up{k} = MatMul(g{k}, {w.weight(f'u{k}', 40, 88)})")
        w.lines.append(f"f{k} = com.microsoft.QuickGelu<alpha = 1.0>(up{k})")
        w.lines.append(f"down{k} = MatMul(f{k}, {w.weight(f'd{k}', 88, 40)})")
        w.lines.append(
            f"h{2 * k + 2}, e1{k}, e2{k}, r{k + 1} = com.microsoft.SkipSimplifiedLayerNormalization(s{k}, down{k}, "
            f"{w.weight(f'outer{k}', 40)})"
        )
    w.lines.append(f"logits = MatMul(h{2 * LAYERS}, {w.weight('head', 40, 97)})")
    return w.sample()


def step(sample: Sample, batch: int, queries: int, past: int, total: int) -> dict[str, Array]:
    """Inputs of a decoder that has seen `past` tokens."""
    model = sample.model()
    random = np.random.default_rng(past + queries)
    shapes = {"b": batch, "s": queries, "p": past}
    feeds = {
        info.name: random.standard_normal(
            [d.dim_value or shapes[d.dim_param] for d in info.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for info in model.graph.input
        if info.name.startswith("past")
    }
    feeds["ids"] = random.integers(0, 97, (batch, queries))
    return feeds | {"n": np.full(batch, total - 1, np.int32), "t": np.array(total, np.int32)}


GROUPS = [(8, 8), (8, 1), (6, 2), (9, 3), (5, 5), (14, 2), (12, 4), (7, 1)]


@pytest.mark.parametrize("tp", [3, 4, 8])
@pytest.mark.parametrize("heads, kv", GROUPS, ids=str)
def test_a_decoder_of_grouped_heads(heads: int, kv: int, tp: int, tmp_path: Path) -> None:
    sample = grouped(heads, kv, packed=kv != 3, extras=kv in (2, 3))
    steps = (step(sample, 2, 1, 4, 5), step(sample, 1, 3, 0, 3), step(sample, 1, 3, 4, 7))
    bundle = compiled(sample, tp, tmp_path, *steps)
    assert bundle.collectives["all_reduce"] == 1 + 2 * LAYERS
    caches = {name for name, entry in bundle.manifest["inputs"].items() if entry["placement"]}
    divides = kv >= (3 if tp == 3 else 2)  # a prime factor of tp
    assert caches == ({f"past_{side}{k}" for side in "kv" for k in range(LAYERS)} if divides else set())


def compiled(sample: Sample, tp: int, folder: Path, *feeds: dict[str, Array]) -> OneGraph:
    """The bundle of a model; all its ranks together give the model's numbers."""
    model = sample.model()
    bundle = OneGraph(tpcompile.compile(model, tp, folder / "out").folder)
    for given in feeds or (sample.feeds(model),):
        got = bundle.run(given)
        assert differs(run_whole(model, given), list(got.values())) == ""
    return bundle


def encoder(heads: int) -> Sample:
    """As ONNX Runtime's optimizer leaves BERT: hidden 8 a head, FFN 88, vocabulary 97, three classes."""
    w, hidden = Written(), heads * 8
    w.inputs += ["int32[b, s] ids", "int32[b, s] kinds", "int32[b, s] mask"]
    w.outputs.append("float[b, s, 3] y")
    tables = [w.weight("words", 97, hidden), w.weight("places", 40, hidden), w.weight("types", 2, hidden)]
    norm = f"{w.weight('g', hidden)}, {w.weight('c', hidden)}"
    w.lines.append(f"h0, n = com.microsoft.EmbedLayerNormalization(ids, kinds, {', '.join(tables)}, {norm}, mask)")
    for k in range(LAYERS):
        qkv = f"{w.weight(f'qkv{k}', hidden, 3 * hidden)}, {w.weight(f'a{k}', 3 * hidden)}"
        w.lines.append(f"y{k} = com.microsoft.Attention<num_heads = {heads}>(h{k}, {qkv}, n)")
        w.lines.append(f"o{k} = MatMul(y{k}, {w.weight(f'o_{k}', hidden, hidden)})")
        norms = [f"{w.weight(f'g{side}{k}', hidden)}, {w.weight(f'c{side}{k}', hidden)}" for side in "ab"]
        w.lines.append(
            f"i{k} = com.microsoft.SkipLayerNormalization(o{k}, h{k}, {norms[0]}, {w.weight(f'b{k}', hidden)})"
        )
        w.lines.append(f"u{k} = com.microsoft.FusedMatMul<transB = 1>(i{k}, {w.weight(f'u_{k}', 88, hidden)})")
        w.lines.append(f"f{k} = com.microsoft.BiasGelu(u{k}, {w.weight(f'ub{k}', 88)})")
        w.lines.append(f"d{k} = MatMul(f{k}, {w.weight(f'd_{k}', 88, hidden)})")
        bias = w.weight(f"db{k}", hidden)
        w.lines.append(f"h{k + 1} = com.microsoft.SkipLayerNormalization(d{k}, i{k}, {norms[1]}, {bias})")
    w.lines.append(f"y = MatMul(h{LAYERS}, {w.weight('classes', hidden, 3)})")
    return w.sample(ids=(0, 97), kinds=(0, 2), mask=(1, 2))


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("heads", [5, 6])
def test_an_encoder(heads: int, tp: int, tmp_path: Path) -> None:
    bundle = compiled(encoder(heads), tp, tmp_path)
    assert dict(bundle.collectives) == {"all_reduce": 1 + 2 * LAYERS}


def cached(heads: int) -> Sample:
    """As ONNX Runtime's tools write GPT-2: keys and values of all steps in one cache."""
    w, hidden = Written(), heads * 8
    w.inputs += ["float[b, s, 40] h0", f"float[2, b, {heads}, p, 8] past"]
    w.outputs += ["float[b, s, 40] y", f"float[2, b, {heads}, q, 8] present"]
    qkv = f"{w.weight('qkv', 40, 3 * hidden)}, {w.weight('a', 3 * hidden)}"
    w.lines.append(f"m, present = com.microsoft.Attention<num_heads = {heads}, unidirectional = 1>(h0, {qkv}, , past)")
    w.lines.append(f"y = MatMul(m, {w.weight('out', hidden, 40)})")
    return w.sample()


@pytest.mark.parametrize("tp", [2, 3])
def test_a_cache_of_keys_and_values_in_one(tp: int, tmp_path: Path) -> None:
    sample = cached(5)
    bundle = compiled(
        Sample(sample.op, sample.graph, values=sample.values, sizes={"b": 2, "s": 3, "p": 4}), tp, tmp_path
    )
    assert dict(bundle.collectives) == {"all_reduce": 1}
    assert [pair["axis"] for pair in bundle.manifest["state"]] == [3]
    assert bundle.manifest["inputs"]["past"]["placement"]["axis"] == 2


def crossed(heads: int, op: str) -> Sample:
    """A decoder's layer: its own keys and values in a buffer, those of an encoder computed before."""
    w, hidden = Written(), heads * 8
    w.inputs += ["float[b, 1, 40] x", "int32[1] n"]
    w.outputs.append("float[b, 1, 40] z")
    for side in "kv":
        w.inputs += [f"float[b, {heads}, 9, 8] past_{side}", f"float[b, {heads}, t, 8] encoded_{side}_cache"]
        w.outputs.append(f"float[b, {heads}, 9, 8] present_{side}")
    for side in "qkv":
        w.lines.append(f"{side} = MatMul(x, {w.weight(f'w{side}', 40, hidden)})")
    w.lines.append(
        f"m, present_k, present_v = com.microsoft.DecoderMaskedMultiHeadAttention<num_heads = {heads}, "
        f"past_present_share_buffer = 1>(q, k, v, , , past_k, past_v, n, , , {w.weight('c', 3 * hidden)})"
    )
    w.lines.append(f"y = MatMul(m, {w.weight('out', hidden, 40)})")
    w.lines.append(f"g = com.microsoft.SkipSimplifiedLayerNormalization(y, x, {w.weight('norm', 40)})")
    w.lines.append(f"r = MatMul(g, {w.weight('wr', 40, hidden)})")
    w.lines.append(f"a = com.microsoft.{op}<num_heads = {heads}>(r, encoded_k_cache, encoded_v_cache)")
    w.lines.append(f"z = MatMul(a, {w.weight('back', hidden, 40)})")
    return w.sample(n=(4, 5))


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("op", ["MultiHeadAttention", "DecoderMaskedMultiHeadAttention"])
def test_a_decoder_that_looks_at_an_encoder(op: str, tp: int, tmp_path: Path) -> None:
    sample = crossed(5, op)
    bundle = compiled(Sample(sample.op, sample.graph, values=sample.values, sizes={"b": 2, "t": 6}), tp, tmp_path)
    assert dict(bundle.collectives) == {"all_reduce": 2}
    assert [(pair["input"], pair["kind"]) for pair in bundle.manifest["state"]] == [
        ("past_k", "in_place"),
        ("past_v", "in_place"),
    ]
    assert bundle.manifest["inputs"]["encoded_k_cache"]["placement"]["axis"] == 1


def recurrent(heads: int) -> Sample:
    """A layer of linear attention: convolution and recurrence carry states; queries have half the heads of values."""
    w, few = Written(), heads // 2
    width = (2 * few + heads) * 8
    w.inputs += ["float[b, s, 40] x", f"float[b, {width}, 3] past_conv", f"float[b, {heads}, 8, 8] past_state"]
    w.outputs += ["float[b, s, 40] y", f"float[b, {width}, 3] present_conv", f"float[b, {heads}, 8, 8] present_state"]
    w.weights.append(f"int64[3] parts = {{{few * 8}, {few * 8}, {heads * 8}}}")
    w.lines.append(f"p = MatMul(x, {w.weight('all', 40, width)}) t = Transpose<perm = [0, 2, 1]>(p)")
    kernel = w.weight("kernel", width, 1, 4)
    w.lines.append(
        f'c, present_conv = com.microsoft.CausalConvWithState<activation = "silu">(t, {kernel}, , past_conv)'
    )
    w.lines.append("m = Transpose<perm = [0, 2, 1]>(c) q, k, v = Split<axis = 2>(m, parts)")
    for gate in "ab":
        w.lines.append(f"{gate} = MatMul(x, {w.weight(f'w{gate}', 40, heads)})")
    rates = f"{w.weight('bias', heads)}, {w.weight('scale', heads)}"
    w.lines.append(f"decay, rate = com.microsoft.LinearAttentionGate(a, {rates}, b)")
    w.lines.append(
        f"o, present_state = com.microsoft.LinearAttention<q_num_heads = {few}, kv_num_heads = {heads}>"
        "(q, k, v, past_state, decay, rate)"
    )
    w.lines.append(f"z = MatMul(x, {w.weight('gate', 40, heads * 8)})")
    w.lines.append(f"n = com.microsoft.GatedRMSNorm(o, {w.weight('norm', 8)}, z)")
    w.lines.append(f"y = MatMul(n, {w.weight('out', heads * 8, 40)})")
    return w.sample(past_state=(-0.1, 0.1), scale=(-1, 0))


@pytest.mark.parametrize("tp", [2, 3])
def test_a_layer_of_linear_attention(tp: int, tmp_path: Path) -> None:
    bundle = compiled(recurrent(12), tp, tmp_path)
    assert dict(bundle.collectives) == {"all_reduce": 1}
    assert [pair["input"] for pair in bundle.manifest["state"]] == ["past_conv", "past_state"]
    assert bundle.manifest["inputs"]["past_conv"]["placement"]["ranges"][0] == [
        [0, 48 // tp],
        [48, 48 + 48 // tp],
        [96, 96 + 96 // tp],
    ]
