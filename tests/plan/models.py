"""Small models to plan, as ONNX text with seeded weights, and what a bundle of one says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tests.one_graph import OneGraph, difference, session

Array = npt.NDArray[Any]
SIZES = {"batch": 2, "seq": 3, "past": 4}
LIMIT = 3e-5
"""Relative error that float32 sums in another order may make."""

TWO_LAYERS = """(int64[batch, seq] ids) => (float[batch, seq, 50] logits)
<float[50, 16] table, float[16, 36] up0, float[36] bias0, float[36, 16] down0,
 float[16, 36] up1, float[36] bias1, float[36, 16] down1, float[16, 50] head>
{
 x0 = Gather(table, ids)
 a0 = MatMul(x0, up0)  b0 = Add(a0, bias0)  c0 = Relu(b0)  d0 = MatMul(c0, down0)  x1 = Add(x0, d0)
 a1 = MatMul(x1, up1)  b1 = Add(a1, bias1)  c1 = Relu(b1)  d1 = MatMul(c1, down1)  x2 = Add(x1, d1)
 logits = MatMul(x2, head)
}"""
"""An embedding, two feed-forward layers of width 36, a head."""

MIXED = """(float[4, batch, 6] x) => (float[four, batch, 6] y)
<float[6] w, float[6, 12] v, float[12, 6] u, int64[1] flat = {-1}, int64 zero = {0}, int64[3] shape = {4, -1, 6}>
{ x1 = Reshape(x, flat) x2 = CumSum(x1, zero) r = Reshape(x2, shape) a = Add(r, w)
  b = MatMul(a, v) c = MatMul(b, u) y = Mul(c, w) }"""
"""An axis of 4 · batch · 6, made whole, of which weights would have the 6 cut."""


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    """The model of a graph; tensors that nothing makes are weights of normal numbers."""
    found = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> small {text}')
    made = {name for node in found.graph.node for name in node.output}
    random = np.random.default_rng(11)
    for info in list(found.graph.value_info):
        if info.name not in made:
            shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
            array = random.standard_normal(shape).astype(np.float32)
            found.graph.initializer.append(numpy_helper.from_array(array, info.name))
            found.graph.value_info.remove(info)
    return found


def attention(heads: int, kv_heads: int, size: int = 4, width: int = 24) -> onnx.ModelProto:
    """Grouped attention with separate q, k, v, and a residual; kv heads are repeated as exporters do it."""
    return model(f"""(float[batch, seq, {width}] x) => (float[batch, seq, {width}] y)
    <float[{width}, {heads * size}] q, float[{width}, {kv_heads * size}] k, float[{width}, {kv_heads * size}] v,
     float[{heads * size}, {width}] o, float scale = {{0.5}},
     int64[4] q_shape = {{0, 0, {heads}, {size}}}, int64[4] kv_shape = {{0, 0, {kv_heads}, {size}}},
     int64[1] two = {{2}},
     int64[5] repeats = {{1, 1, {heads // kv_heads}, 1, 1}}, int64[4] all_heads = {{0, {heads}, -1, {size}}},
     int64[3] flat = {{0, 0, {heads * size}}}>
    {{
     q0 = MatMul(x, q)  q1 = Reshape(q0, q_shape)  q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
     k0 = MatMul(x, k)  k1 = Reshape(k0, kv_shape)  k2 = Transpose<perm = [0, 2, 1, 3]>(k1)
     v0 = MatMul(x, v)  v1 = Reshape(v0, kv_shape)  v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
     k3 = Unsqueeze(k2, two)  k4 = Expand(k3, repeats)  k5 = Reshape(k4, all_heads)
     k6 = Transpose<perm = [0, 1, 3, 2]>(k5)
     v3 = Unsqueeze(v2, two)  v4 = Expand(v3, repeats)  v5 = Reshape(v4, all_heads)
     s0 = MatMul(q2, k6)  s1 = Mul(s0, scale)  s2 = Softmax<axis = -1>(s1)
     z0 = MatMul(s2, v5)  z1 = Transpose<perm = [0, 2, 1, 3]>(z0)  z2 = Reshape(z1, flat)  z3 = MatMul(z2, o)
     y = Add(x, z3)
    }}""")


def feeds(source: onnx.ModelProto) -> dict[str, Array]:
    """Random inputs of sizes that no analysis has seen; ids of both ends of the first table."""
    random = np.random.default_rng(12)
    rows = next((tensor.dims[0] for tensor in source.graph.initializer if len(tensor.dims) == 2), 1)
    found: dict[str, Array] = {}
    for info in source.graph.input:
        shape = [dim.dim_value or SIZES[dim.dim_param] for dim in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            found[info.name] = random.integers(-rows, rows, shape)
        else:
            found[info.name] = random.standard_normal(shape).astype(np.float32)
    return found


def error_of(source: onnx.ModelProto, bundle: Path, given: dict[str, Array] | None = None) -> float:
    """The largest relative error of a bundle's outputs, by an oracle that shares no code with tpcompile."""
    reference = session(source.SerializeToString())
    names = [output.name for output in reference.get_outputs()]
    given = feeds(source) if given is None else given
    wanted = dict(zip(names, reference.run(names, given), strict=True))
    got = OneGraph(bundle).run(given)
    assert list(got) == names
    return max(difference(wanted[name], got[name]) for name in names)


def held(bundle: Path, weight: str) -> list[list[list[list[int]] | None] | None]:
    """The ranges of each axis that each rank stores of a weight, None where it stores all of it."""
    manifest = json.loads((bundle / "bundle.json").read_text())
    found: list[list[list[list[int]] | None] | None] = []
    for entry in manifest["ranks"]:
        tensors = {t.name: t for t in onnx.load(bundle / entry["model"], load_external_data=False).graph.initializer}
        ranges = {prop.key: prop.value for prop in tensors[weight].metadata_props}.get("tpcompile.ranges")
        found.append(None if ranges is None else json.loads(ranges))
    return found
