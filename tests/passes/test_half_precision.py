"""Sums of half precision in float32, in the rank files themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tpcompile
from tests.one_graph import OneGraph

SEED = 7


def half_model() -> onnx.ModelProto:
    """Two products in float16, the second row parallel: [batch, 8] → [batch, 24] → [batch, 10]."""
    draw = np.random.default_rng(SEED)
    up, down = (draw.standard_normal(shape).astype(np.float16) for shape in ((8, 24), (24, 10)))
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "down"], ["t"]),
        helper.make_node("Tanh", ["t"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["batch", 10])],
        [numpy_helper.from_array(up, "up"), numpy_helper.from_array(down, "down")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def summed(folder: Path) -> list[str]:
    """The types of what the first rank's collectives make, and the operators before and after."""
    model = onnx.load(folder / "model_tp2_rank0.onnx")
    told = {info.name: info.type.tensor_type.elem_type for info in model.graph.value_info}
    found = []
    for k, node in enumerate(model.graph.node):
        if node.op_type == "DistCollective":
            around = model.graph.node[k - 1].op_type, model.graph.node[k + 1].op_type
            found.append(f"{around[0]} {TensorProto.DataType.Name(told[node.output[0]])} {around[1]}")
    return found


def test_as_they_are_where_asked_for(tmp_path: Path) -> None:
    bundle = tpcompile.compile(half_model(), 2, tmp_path / "b", reduce_dtype="model")
    assert summed(tmp_path / "b") == ["MatMul FLOAT16 Tanh"]
    assert [(call.dtype, call.bytes) for call in bundle.manifest.collectives] == [("float16", "batch*20")]


def test_in_float32_by_default(tmp_path: Path) -> None:
    source = half_model()
    bundle = tpcompile.compile(source, 2, tmp_path / "b", verify=True)
    assert summed(tmp_path / "b") == ["Cast FLOAT Cast"]
    assert [(call.dtype, call.bytes) for call in bundle.manifest.collectives] == [("float32", "batch*40")]
    x = np.random.default_rng(SEED).standard_normal((3, 8)).astype(np.float16)
    want = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x})[0]
    got = OneGraph(tmp_path / "b").run({"x": x})["y"]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), atol=2e-2)
