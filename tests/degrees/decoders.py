"""Small decoders of any sizes: attention decomposed, as ai.onnx's Attention, or as ONNX Runtime's grouped one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.one_graph import Array

POSITIONS = 16
"""Rows of the rotary tables: more than any run needs."""


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder and the way it is written.

    written: "plain" takes attention apart; "onnx" is ai.onnx's Attention; "gqa" and "packed" are com.microsoft's
        GroupQueryAttention with three projections and with a fused one (both always have caches and rotate).
    fused: one weight makes queries, keys and values (plain and onnx).
    """

    heads: int
    kv_heads: int
    head_size: int = 8
    hidden: int = 36
    ffn: int = 170
    vocabulary: int = 503
    layers: int = 2
    written: Literal["plain", "onnx", "gqa", "packed"] = "plain"
    fused: bool = False
    tied: bool = False
    head_norms: bool = False
    biases: bool = False
    caches: bool = True

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    def __str__(self) -> str:
        said = [f"h{self.heads}kv{self.kv_heads}x{self.head_size}", f"f{self.ffn}", f"v{self.vocabulary}", self.written]
        said += [name for name in ("fused", "tied", "head_norms", "biases", "caches") if getattr(self, name)]
        return "-".join(said)


class Writer:
    """Nodes and weights of a graph under construction; weights are drawn with mixed signs."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(seed)

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node; the name of its output, or of its outputs as a list."""
        made = [f"{op}_{len(self.nodes)}" + (f".{k}" if outputs > 1 else "") for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), made, f"n{len(self.nodes)}", domain=domain, **attributes))
        return made if outputs > 1 else made[0]

    def weight(self, name: str, *shape: int, scale: float | None = None, mean: float = 0.0) -> str:
        """A stored tensor, of a size that keeps what it makes near 1."""
        values = mean + self.random.standard_normal(shape) * (shape[0] ** -0.5 if scale is None else scale)
        self.stored.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def constant(self, *values: int) -> str:
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def linear(self, x: str, name: str, rows: int, columns: int, bias: bool) -> str:
        found = self.add("MatMul", x, self.weight(f"{name}.w", rows, columns))
        return str(self.add("Add", found, self.weight(f"{name}.b", columns, scale=1.0)) if bias else found)

    def norm(self, x: str, name: str, size: int) -> str:
        scale = self.weight(f"{name}.g", size, scale=0.3, mean=1.0)
        return str(self.add("LayerNormalization", x, scale, self.weight(f"{name}.b", size, scale=0.3), axis=-1))


def decoder(shape: Decoder, seed: int = 0) -> onnx.ModelProto:
    """The model: token ids in, logits out, keys and values in and out where it has caches."""
    graph = Writer(seed)
    inputs = [_door("ids", TensorProto.INT64, "B", "S")]
    outputs = [_door("logits", TensorProto.FLOAT, "B", "S", shape.vocabulary)]
    if shape.written in ("plain", "onnx"):
        inputs.append(_door("positions", TensorProto.INT64, "B", "S"))
        inputs.append(_door("mask", TensorProto.FLOAT, "B", 1, "S", "T" if shape.caches else "S"))
    else:
        inputs.append(_door("lengths", TensorProto.INT32, "B"))
        inputs.append(_door("total", TensorProto.INT32))
    angles = np.arange(POSITIONS)[:, None] * 10.0 ** (-np.arange(shape.head_size // 2) / 3)
    for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
        graph.stored.append(numpy_helper.from_array(table.astype(np.float32), name))
    table = graph.weight("embed", shape.vocabulary, shape.hidden, scale=1.0)
    x = graph.add("Gather", table, "ids")
    for layer in range(shape.layers):
        if shape.caches:
            for side in "kv":
                inputs.append(
                    _door(f"past.{layer}.{side}", TensorProto.FLOAT, "B", shape.kv_heads, "P", shape.head_size)
                )
                outputs.append(
                    _door(f"present.{layer}.{side}", TensorProto.FLOAT, "B", shape.kv_heads, "T", shape.head_size)
                )
        x = graph.add("Add", x, _attention(graph, shape, layer, graph.norm(x, f"{layer}.norm1", shape.hidden)))
        x = graph.add("Add", x, _ffn(graph, shape, layer, graph.norm(x, f"{layer}.norm2", shape.hidden)))
    head = (
        graph.add("Transpose", table, perm=[1, 0])
        if shape.tied
        else graph.weight("head", shape.hidden, shape.vocabulary)
    )
    x = graph.norm(x, "norm", shape.hidden)
    graph.nodes.append(helper.make_node("MatMul", [x, head], ["logits"], "head"))
    made = helper.make_graph(graph.nodes, str(shape), inputs, outputs, graph.stored)
    opsets = [helper.make_opsetid("", 23 if shape.written == "onnx" else 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def _door(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def _ffn(graph: Writer, shape: Decoder, layer: int, x: str) -> str:
    gate = graph.linear(x, f"{layer}.gate", shape.hidden, shape.ffn, shape.biases)
    gate = graph.add("Mul", gate, graph.add("Sigmoid", gate))
    wide = graph.add("Mul", gate, graph.linear(x, f"{layer}.up", shape.hidden, shape.ffn, shape.biases))
    return graph.linear(wide, f"{layer}.down", shape.ffn, shape.hidden, shape.biases)


def _attention(graph: Writer, shape: Decoder, layer: int, x: str) -> str:
    widths = [shape.heads * shape.head_size, *[shape.kv_heads * shape.head_size] * 2]
    packed = ""
    if shape.fused or shape.written == "packed":
        packed = graph.linear(x, f"{layer}.qkv", shape.hidden, sum(widths), shape.biases)
    if shape.written == "packed":
        mixed = _grouped(graph, shape, layer, packed, "", "")
    else:
        if packed:
            q, k, v = graph.add("Split", packed, graph.constant(*widths), outputs=3, axis=-1)
        else:
            q, k, v = (
                graph.linear(x, f"{layer}.{side}", shape.hidden, width, shape.biases)
                for side, width in zip("qkv", widths, strict=True)
            )
        if shape.written == "gqa":
            mixed = _grouped(graph, shape, layer, q, k, v)
        else:
            q, k = (_rotated(graph, _heads(graph, shape, layer, side, value)) for side, value in (("q", q), ("k", k)))
            v = _heads(graph, shape, layer, "v", v)
            mixed = (_plain if shape.written == "plain" else _onnx)(graph, shape, layer, q, k, v)
            mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
            mixed = graph.add("Reshape", mixed, graph.constant(0, 0, widths[0]))
    return graph.linear(mixed, f"{layer}.o", widths[0], shape.hidden, shape.biases)


def _heads(graph: Writer, shape: Decoder, layer: int, side: str, x: str) -> str:
    """[B, S, width] → [B, heads, S, head size], each head normed where the decoder does that."""
    count = shape.heads if side == "q" else shape.kv_heads
    x = graph.add("Reshape", x, graph.constant(0, 0, count, shape.head_size))
    if shape.head_norms and side != "v":
        x = graph.norm(x, f"{layer}.{side}_norm", shape.head_size)
    return str(graph.add("Transpose", x, perm=[0, 2, 1, 3]))


def _rotated(graph: Writer, x: str) -> str:
    first, second = graph.add("Split", x, outputs=2, axis=-1, num_outputs=2)
    cos, sin = (
        graph.add("Unsqueeze", graph.add("Gather", table, "positions"), graph.constant(1)) for table in ("cos", "sin")
    )
    a = graph.add("Sub", graph.add("Mul", first, cos), graph.add("Mul", second, sin))
    b = graph.add("Add", graph.add("Mul", second, cos), graph.add("Mul", first, sin))
    return str(graph.add("Concat", a, b, axis=-1))


def _appended(graph: Writer, layer: int, side: str, x: str) -> str:
    name = f"present.{layer}.{side}"
    graph.nodes.append(helper.make_node("Concat", [f"past.{layer}.{side}", x], [name], f"{name}.n", axis=2))
    return name


def _plain(graph: Writer, shape: Decoder, layer: int, q: str, k: str, v: str) -> str:
    if shape.caches:
        k, v = (_appended(graph, layer, side, x) for side, x in (("k", k), ("v", v)))
    if shape.group > 1:
        repeat = graph.constant(1, 1, shape.group, 1, 1)
        merged = graph.constant(0, shape.heads, -1, shape.head_size)
        k, v = (
            graph.add("Reshape", graph.add("Expand", graph.add("Unsqueeze", x, graph.constant(2)), repeat), merged)
            for x in (k, v)
        )
    scores = graph.add("MatMul", q, graph.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = graph.add("Mul", scores, graph.weight(f"{layer}.scale", scale=0.0, mean=shape.head_size**-0.5))
    return str(graph.add("MatMul", graph.add("Softmax", graph.add("Add", scores, "mask"), axis=-1), v))


def _onnx(graph: Writer, shape: Decoder, layer: int, q: str, k: str, v: str) -> str:
    made = f"mixed.{layer}"
    sides = ["k", "v"] if shape.caches else []
    inputs = [q, k, v, "mask", *(f"past.{layer}.{side}" for side in sides)]
    outputs = [made, *(f"present.{layer}.{side}" for side in sides)]
    graph.nodes.append(helper.make_node("Attention", inputs, outputs, f"{layer}.attention"))
    return made


def _grouped(graph: Writer, shape: Decoder, layer: int, q: str, k: str, v: str) -> str:
    made = f"mixed.{layer}"
    caches = [f"{end}.{layer}.{side}" for end in ("past", "present") for side in "kv"]
    graph.nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            [q, k, v, *caches[:2], "lengths", "total", "cos", "sin"],
            [made, *caches[2:]],
            f"{layer}.attention",
            domain="com.microsoft",
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            do_rotary=1,
        )
    )
    return made


def feeds(shape: Decoder, batch: int, length: int, past: int, seed: int = 1) -> dict[str, Array]:
    """Inputs of one run: `length` new tokens behind `past` ones; one id is counted from the end, as ONNX allows."""
    random = np.random.default_rng(seed)
    total = past + length
    found: dict[str, Array] = {"ids": random.integers(0, shape.vocabulary, (batch, length))}
    if shape.written in ("plain", "onnx"):
        found["positions"] = np.tile(np.arange(past, total), (batch, 1))
        seen = np.arange(total)[None, :] <= np.arange(past, total)[:, None]
        found["mask"] = np.tile(np.where(seen, 0.0, -1e4).astype(np.float32), (batch, 1, 1, 1))
        found["ids"][0, -1] -= shape.vocabulary
    else:
        found["lengths"] = np.full(batch, total - 1, np.int32)
        found["total"] = np.array(total, np.int32)
    if shape.caches:
        for layer in range(shape.layers):
            for side in "kv":
                drawn = random.standard_normal((batch, shape.kv_heads, past, shape.head_size))
                found[f"past.{layer}.{side}"] = drawn.astype(np.float32)
    return found
