"""Small decoders whose weights go by the names that families of models have, in the forms that exporters give them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from tests.plan.models import model

LLAMA = {
    "table": "model.embed_tokens.weight", "q": "model.layers.0.self_attn.q_proj.weight",
    "k": "model.layers.0.self_attn.k_proj.weight", "v": "model.layers.0.self_attn.v_proj.weight",
    "o": "model.layers.0.self_attn.o_proj.weight", "up": "model.layers.0.mlp.up_proj.weight",
    "gate": "model.layers.0.mlp.gate_proj.weight", "down": "model.layers.0.mlp.down_proj.weight",
    "head": "lm_head.weight",
}  # fmt: skip
BERT = {
    "table": "bert.embeddings.word_embeddings.weight", "q": "bert.encoder.layer.0.attention.self.query.weight",
    "k": "bert.encoder.layer.0.attention.self.key.weight", "v": "bert.encoder.layer.0.attention.self.value.weight",
    "o": "bert.encoder.layer.0.attention.output.dense.weight", "up": "bert.encoder.layer.0.intermediate.dense.weight",
    "down": "bert.encoder.layer.0.output.dense.weight", "head": "cls.predictions.decoder.weight",
}  # fmt: skip
T5 = {
    "table": "shared.weight", "q": "decoder.block.0.layer.0.SelfAttention.q.weight",
    "k": "decoder.block.0.layer.0.SelfAttention.k.weight", "v": "decoder.block.0.layer.0.SelfAttention.v.weight",
    "o": "decoder.block.0.layer.0.SelfAttention.o.weight", "gate": "decoder.block.0.layer.1.DenseReluDense.wi_0.weight",
    "up": "decoder.block.0.layer.1.DenseReluDense.wi_1.weight",
    "down": "decoder.block.0.layer.1.DenseReluDense.wo.weight", "head": "lm_head.weight",
}  # fmt: skip
VIT = {
    "q": "vit.encoder.layer.0.attention.attention.query.weight", "up": "vit.encoder.layer.0.intermediate.dense.weight",
    "k": "vit.encoder.layer.0.attention.attention.key.weight", "down": "vit.encoder.layer.0.output.dense.weight",
    "v": "vit.encoder.layer.0.attention.attention.value.weight",
    "o": "vit.encoder.layer.0.attention.output.dense.weight",
}  # fmt: skip


def decoder(names: Mapping[str, str] | None = None, kv_heads: int = 2, experts: int = 0) -> onnx.ModelProto:
    """One layer between a table and a head: 6 heads of 4, a gated feed-forward of 36, 50 words.

    Args:
        names: what the weights table, q, k, v, o, gate, up, down and head are called.
        kv_heads: key heads, which queries share.
        experts: in place of one feed-forward, so many of which a route picks one for each batch.
    """
    gated = (
        "g0 = MatMul(x1, gate)  u0 = MatMul(x1, up)  g1 = Sigmoid(g0)  g2 = Mul(g1, u0)  d0 = MatMul(g2, down)"
        if not experts
        else "gw = Gather(gate, route)  uw = Gather(up, route)  dw = Gather(down, route)  g0 = MatMul(x1, gw) "
        "u0 = MatMul(x1, uw)  g1 = Sigmoid(g0)  g2 = Mul(g1, u0)  d0 = MatMul(g2, dw)"
    )
    shape, route = (f"{experts}, ", ", int64[batch] route") if experts else ("", "")
    found = model(f"""(int64[batch, seq] ids{route}) => (float[batch, seq, 50] logits)
    <float[50, 24] table, float[24, 24] q, float[24, {kv_heads * 4}] k, float[24, {kv_heads * 4}] v, float[24, 24] o,
     float[{shape}24, 36] gate, float[{shape}24, 36] up, float[{shape}36, 24] down, float[24, 50] head,
     float scale = {{0.5}}, int64[4] q_shape = {{0, 0, 6, 4}}, int64[4] kv_shape = {{0, 0, {kv_heads}, 4}},
     int64[1] two = {{2}}, int64[5] repeats = {{1, 1, {6 // kv_heads}, 1, 1}}, int64[4] all_heads = {{0, 6, -1, 4}},
     int64[3] flat = {{0, 0, 24}}>
    {{
     x = Gather(table, ids)
     q0 = MatMul(x, q)  q1 = Reshape(q0, q_shape)  q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
     k0 = MatMul(x, k)  k1 = Reshape(k0, kv_shape)  k2 = Transpose<perm = [0, 2, 1, 3]>(k1)
     v0 = MatMul(x, v)  v1 = Reshape(v0, kv_shape)  v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
     k3 = Unsqueeze(k2, two)  k4 = Expand(k3, repeats)  k5 = Reshape(k4, all_heads)
     k6 = Transpose<perm = [0, 1, 3, 2]>(k5)
     v3 = Unsqueeze(v2, two)  v4 = Expand(v3, repeats)  v5 = Reshape(v4, all_heads)
     s0 = MatMul(q2, k6)  s1 = Mul(s0, scale)  s2 = Softmax<axis = -1>(s1)
     z0 = MatMul(s2, v5)  z1 = Transpose<perm = [0, 2, 1, 3]>(z0)  z2 = Reshape(z1, flat)  z3 = MatMul(z2, o)
     x1 = Add(x, z3)
     {gated}
     x2 = Add(x1, d0)  logits = MatMul(x2, head)
    }}""")
    return renamed(found, names or {})


def renamed(found: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """A model whose weights have other names: the text form of ONNX takes no dots."""
    for tensor in found.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in found.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return found


def as_exported(found: onnx.ModelProto, names: Mapping[str, str], scoped: bool = False) -> onnx.ModelProto:
    """A model as exporters write it that rename weights: the module is told by the path of the node that reads it, or
    (`scoped`) by the node's metadata alone.
    """
    modules = {short: name.removesuffix(".weight") for short, name in names.items()}
    for node in found.graph.node:
        short = next((name for name in node.input if name in modules), None)
        if short is None:
            continue
        if scoped:
            entry = node.metadata_props.add()
            entry.key, entry.value = "pkg.torch.onnx.name_scopes", f"['', '{modules[short]}', 'linear']"
        else:
            node.name = f"/{modules[short].replace('.', '/')}/{node.op_type}".replace("layers/", "layers.")
    return renamed(found, {short: f"onnx::MatMul_{700 + place}" for place, short in enumerate(names)})
