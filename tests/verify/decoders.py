"""A small decoder with all that can be cut wrong: 4 query heads on 2 key heads, fused q | k | v, 503 words, caches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tpcompile
from tests.verify.bundles import node

Array = np.ndarray[Any, np.dtype[Any]]
VOCABULARY, WIDTH, HIDDEN, HEADS, KEYS, SIZE = 503, 24, 48, 4, 2, 16
Q, K = HEADS * SIZE, KEYS * SIZE


def weights() -> dict[str, Array]:
    """Mixed signs, biases of order 5; at two ranks the local part of `up` is square."""
    rng = np.random.default_rng(17)
    shapes = {
        "table": (VOCABULARY, WIDTH), "qkv": (WIDTH, Q + 2 * K), "qkv_bias": (Q + 2 * K,), "o": (Q, WIDTH),
        "o_bias": (WIDTH,), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH), "head": (WIDTH, VOCABULARY),
        "norm_1": (WIDTH,), "norm_2": (WIDTH,), "norm_q": (SIZE,),
    }  # fmt: skip
    found: dict[str, Array] = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for name, shape in shapes.items()
    }
    found["o_bias"] = (rng.standard_normal(WIDTH) * 5).astype(np.float32)
    found |= {"parts": np.array([Q, K, K]), "apart": np.array([0, 0, HEADS, SIZE]), "joined": np.array([0, 0, Q])}
    return found


def source_model() -> onnx.ModelProto:
    nodes = [
        node("Gather", "table ids", "h"),
        node("RMSNormalization", "h norm_1", "n1"),
        node("MatMul", "n1 qkv", "qkv_out"),
        node("Add", "qkv_out qkv_bias", "qkv_sum"),
        node("Split", "qkv_sum parts", "q k v", axis=2),
        node("Reshape", "q apart", "q_heads"),
        node("RMSNormalization", "q_heads norm_q", "q_norm"),
        node("Reshape", "q_norm joined", "q_all"),
        helper.make_node(
            "Attention", ["q_all", "k", "v", "", "past_k", "past_v"], ["a", "present_k", "present_v"], name="attention",
            q_num_heads=HEADS, kv_num_heads=KEYS, is_causal=1,
        ),
        node("MatMul", "a o", "o_out"),
        node("Add", "o_out o_bias", "o_sum"),
        node("Add", "h o_sum", "h1"),
        node("RMSNormalization", "h1 norm_2", "n2"),
        node("MatMul", "n2 up", "up_out"),
        node("Tanh", "up_out", "active"),
        node("MatMul", "active down", "down_out"),
        node("Add", "h1 down_out", "h2"),
        node("MatMul", "h2 head", "logits"),
    ]  # fmt: skip
    cache = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", KEYS, "past", SIZE])
        for name in ("past_k", "past_v")
    ]
    grown = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", KEYS, "total", SIZE])
        for name in ("present_k", "present_v")
    ]
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"]), *cache],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", VOCABULARY]), *grown],
        [numpy_helper.from_array(array, name) for name, array in weights().items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def compiled(folder: Path, tp: int = 2) -> Path:
    """`model.onnx` in the folder and the bundle `out` beside it."""
    onnx.save(source_model(), folder / "model.onnx")
    tpcompile.compile(folder / "model.onnx", tp, folder / "out")
    return folder / "out"


def copied(good: Path, folder: Path) -> Path:
    """A bundle of its own to damage, its source beside it."""
    shutil.copytree(good, folder / "out")
    shutil.copy(good.parent / "model.onnx", folder / "model.onnx")
    return folder / "out"


def inputs() -> dict[str, Array]:
    """Ids on both sides of where the vocabulary is cut, and filled caches."""
    rng = np.random.default_rng(3)
    ids = np.array([[0, 251, 252, 502, 7], [250, 253, 1, 400, 33]])
    return {"ids": ids} | {n: rng.standard_normal((2, KEYS, 3, SIZE)).astype(np.float32) for n in ("past_k", "past_v")}
