"""Small models in ONNX text, compiled for some ranks and held against onnxruntime's run of the source.

A model's text declares stored tensors without values, between < and >: `<float[8, 24] w, float[24] b>`. They are drawn
here with mixed signs; those whose name starts with `b` (biases) are of order 10, so that one added twice shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tpcompile
from tests.one_graph import Array, OneGraph, difference, session

LIMIT = 3e-5
SIZES = {"B": 2, "S": 5}
"""What symbols stand for when a model is run; and once more with 1."""


def model(text: str, opset: int = 20, seed: int = 1, **values: Any) -> onnx.ModelProto:
    """The model of a text, its stored tensors drawn; `values` gives some of them."""
    contributed = ', "com.microsoft" : 1' if "com.microsoft." in text else ""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}{contributed}]>\ng {text}')
    graph, random = proto.graph, np.random.default_rng(seed)
    made = {name for node in graph.node for name in node.output}
    for info in [info for info in graph.value_info if info.name not in made]:
        shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
        drawn = random.standard_normal(shape) * (10.0 if info.name.startswith("b") else max([1, *shape]) ** -0.5)
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        stored = np.asarray(values.get(info.name, drawn)).astype(dtype).reshape(shape)
        graph.initializer.append(numpy_helper.from_array(stored, info.name))
        graph.value_info.remove(info)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def feeds_of(proto: onnx.ModelProto, sizes: dict[str, int], **given: Any) -> dict[str, Array]:
    """Inputs drawn with mixed signs; `given` says some of them (ids)."""
    random, found = np.random.default_rng(2), {}
    for value in proto.graph.input:
        shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        found[value.name] = np.asarray(given.get(value.name, random.standard_normal(shape))).astype(dtype)
    return found


class Ranks:
    """A model compiled for `tp` ranks, everything that can be cut cut; checked on construction."""

    def __init__(
        self, proto: onnx.ModelProto, tp: int, folder: Path, *, given: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self.source, self.tp, self.folder = proto, tp, folder / f"tp{tp}"
        tpcompile.compile(proto, tp, self.folder, force=True, **({"objective": "memory"} | options))
        self.graph = OneGraph(self.folder)
        self.models = [onnx.load(self.folder / rank["model"]) for rank in self.graph.manifest["ranks"]]
        reference = session(proto.SerializeToString())
        for sizes in [SIZES] if given else [SIZES, dict.fromkeys(SIZES, 1)]:
            feeds = feeds_of(proto, sizes, **(given or {}))
            names = [output.name for output in proto.graph.output]
            wanted, got = dict(zip(names, reference.run(names, feeds), strict=True)), self.graph.run(feeds)
            assert list(got) == names
            errors = {name: difference(wanted[name], got[name]) for name in names}
            assert max(errors.values()) <= LIMIT, errors

    @property
    def collectives(self) -> dict[str, int]:
        """How many of each kind one run takes."""
        return dict(self.graph.collectives)

    def nodes(self, rank: int, op: str) -> list[onnx.NodeProto]:
        return [node for node in self.models[rank].graph.node if node.op_type == op]

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        """The shape of a stored tensor on each rank."""
        return [stored(proto, name).shape for proto in self.models]

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "bundle.json").read_text())
        return found


def stored(proto: onnx.ModelProto, name: str) -> Array:
    """A stored tensor of a model."""
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
    return numpy_helper.to_array(tensor)


def blocks(size: int, tp: int) -> list[int]:
    """Even blocks, the larger ones first."""
    return [size // tp + (rank < size % tp) for rank in range(tp)]


def attention(heads: int, kv: int, size: int, width: int, *, norm: bool = False) -> str:
    """Grouped attention over x [B, S, width]: q, k, v apart with biases, keys repeated, an output product with bias."""
    q, k, out = heads * size, kv * size, width + 1
    k_norm = "kn = LayerNormalization <axis = -1> (kr, g_k)" if norm else "kn = Identity(kr)"
    return f"""(float[B, S, {width}] x) => (float[B, S, {out}] y)
<float[{width}, {q}] w_q, float[{q}] b_q, float[{width}, {k}] w_k, float[{k}] b_k,
 float[{width}, {k}] w_v, float[{k}] b_v,
 float[{q}, {out}] w_o, float[{out}] b_o, float[{size}] g_k, float scale = {{0.1}},
 int64[4] q_shape = {{0, 0, {heads}, {size}}}, int64[4] k_shape = {{0, 0, {kv}, {size}}}, int64[1] two = {{2}},
 int64[5] repeat = {{1, 1, {heads // kv}, 1, 1}}, int64[4] merged = {{0, {heads}, -1, {size}}},
 int64[3] flat = {{0, 0, {q}}}>
{{
 qm = MatMul(x, w_q) qb = Add(qm, b_q) qr = Reshape(qb, q_shape) q = Transpose <perm = [0, 2, 1, 3]> (qr)
 km = MatMul(x, w_k) kb = Add(km, b_k) kr = Reshape(kb, k_shape) {k_norm} kt = Transpose <perm = [0, 2, 1, 3]> (kn)
 vm = MatMul(x, w_v) vb = Add(vm, b_v) vr = Reshape(vb, k_shape) vt = Transpose <perm = [0, 2, 1, 3]> (vr)
 ku = Unsqueeze(kt, two) ke = Expand(ku, repeat) k = Reshape(ke, merged)
 vu = Unsqueeze(vt, two) ve = Expand(vu, repeat) v = Reshape(ve, merged)
 {core(flat="flat")} m = MatMul(joined, w_o) y = Add(m, b_o)
}}"""


def core(flat: str) -> str:
    """Scores, softmax and values of q, k, v [B, heads, S, size]; `joined` is reshaped to the constant `flat`."""
    return f"""k_t = Transpose <perm = [0, 1, 3, 2]> (k) s = MatMul(q, k_t) scaled = Mul(s, scale)
 p = Softmax <axis = -1> (scaled) o = MatMul(p, v) ot = Transpose <perm = [0, 2, 1, 3]> (o)
 joined = Reshape(ot, {flat})"""
