"""A LLaMA-shaped decoder as legacy exporters write it, at any size, with or without data: for benchmarks and tests.

Everything is decomposed: RMSNorm in nine nodes, rotary halves by Shape/Div/Slice, head counts that travel through
Shape -> Gather -> Unsqueeze -> Concat -> Reshape, constants as nodes. About 220 nodes a layer with grouped queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}
LOWEST = {"float16": -65504.0, "float32": -3.4e38}
PAGE = 4096


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a decoder; the defaults are those of LLaMA-7B. With `caches` keys and values come in and go out."""

    layers: int = 32
    hidden: int = 4096
    ffn: int = 11008
    heads: int = 32
    kv_heads: int = 32
    vocabulary: int = 32000
    dtype: str = "float16"
    caches: bool = False

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Every weight's name and shape; matrices lie [in, out] as ONNX MatMul takes them."""
        kv = self.kv_heads * self.head_size
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            found[f"{name}input_layernorm.weight"] = (self.hidden,)
            for projection, width in (("q", self.hidden), ("k", kv), ("v", kv), ("o", self.hidden)):
                found[f"{name}self_attn.{projection}_proj.weight"] = (self.hidden, width)
            found[f"{name}post_attention_layernorm.weight"] = (self.hidden,)
            found[f"{name}mlp.gate_proj.weight"] = found[f"{name}mlp.up_proj.weight"] = (self.hidden, self.ffn)
            found[f"{name}mlp.down_proj.weight"] = (self.ffn, self.hidden)
        found["model.norm.weight"] = (self.hidden,)
        found["lm_head.weight"] = (self.hidden, self.vocabulary)
        return found

    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(math.prod(shape) for shape in self.weights().values()) * np.dtype(self.dtype).itemsize


class GraphWriter:
    """Adds nodes under a scope, and names them and their outputs as the legacy exporter of PyTorch does."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.scope = ""
        self._taken: dict[str, int] = {}

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        name = f"{self.scope}/{op}"
        count = self._taken[name] = self._taken.get(name, -1) + 1
        name += f"_{count}" if count else ""
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_output_0"], name, **attributes))
        return f"{name}_output_0"

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """Add a Constant node."""
        return self.add("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def size(self, value: str, axis: int) -> str:
        """The size of an axis at run time, a scalar."""
        return self.add("Gather", self.add("Shape", value), self.constant(axis), axis=0)

    def vector(self, sizes: Sequence[str | int]) -> str:
        """A shape from scalars computed at run time and from fixed numbers."""
        parts = [
            self.constant([size]) if isinstance(size, int) else self.add("Unsqueeze", size, self.constant([0]))
            for size in sizes
        ]
        return self.add("Concat", *parts, axis=0)

    def slice(self, value: str, start: str | int, stop: str | int, axis: int) -> str:
        """A slice of one axis, with bounds computed at run time or fixed."""
        bounds = [
            self.constant([at]) if isinstance(at, int) else self.add("Unsqueeze", at, self.constant([0]))
            for at in (start, stop)
        ]
        return self.add("Slice", value, *bounds, self.constant([axis]), self.constant([1]))


def llama_graph(shape: LlamaShape, data_file: str = "model.onnx.data") -> onnx.ModelProto:
    """The model, its weights as references into `data_file` (which `write_data` makes; without it nothing can run)."""
    graph = GraphWriter()
    mask, cos, sin = prologue(graph, shape)
    hidden = graph.add("Gather", "model.embed_tokens.weight", "input_ids")
    for layer in range(shape.layers):
        hidden = decoder_layer(graph, shape, layer, hidden, mask, cos, sin)
    graph.scope = "/model/norm"
    hidden = rms_norm(graph, shape, hidden, "model.norm.weight")
    graph.nodes.append(helper.make_node("MatMul", [hidden, "lm_head.weight"], ["logits"], "/lm_head/MatMul"))
    inputs, outputs = doors(shape)
    made = helper.make_graph(graph.nodes, "main_graph", inputs, outputs, initializer=references(shape, data_file))
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="pytorch")


def doors(shape: LlamaShape) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """The model's inputs and outputs."""
    total, kind = "past + seq" if shape.caches else "seq", TYPES[shape.dtype]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])]
    inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", total]))
    outputs = [helper.make_tensor_value_info("logits", kind, ["batch", "seq", shape.vocabulary])]
    if shape.caches:
        inputs.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "seq"]))
        for layer in range(shape.layers):
            for side in ("key", "value"):
                lengths = (
                    ("past", f"past_key_values.{layer}.{side}", inputs),
                    (total, f"present.{layer}.{side}", outputs),
                )
                for length, name, doors_of_side in lengths:
                    axes: list[str | int | None] = ["batch", shape.kv_heads, length, shape.head_size]
                    doors_of_side.append(helper.make_tensor_value_info(name, kind, axes))
    return inputs, outputs


def prologue(graph: GraphWriter, shape: LlamaShape) -> tuple[str, str, str]:
    """What all layers share: the additive mask [batch, 1, seq, total] and the rotary cos and sin [batch, seq, size]."""
    graph.scope = "/model"
    length = graph.size("input_ids", 1)
    zero, one = graph.constant(0), graph.constant(1)
    past = graph.size("past_key_values.0.key", 2) if shape.caches else zero
    total = graph.add("Add", past, length)
    queries = graph.add("Unsqueeze", graph.add("Range", past, total, one), graph.constant([1]))
    causal = graph.add("LessOrEqual", graph.add("Range", zero, total, one), queries)
    attended = graph.add("Unsqueeze", graph.add("Cast", "attention_mask", to=TensorProto.BOOL), graph.constant([1, 2]))
    seen = graph.add("And", graph.add("Unsqueeze", causal, graph.constant([0, 1])), attended)
    mask = graph.add("Where", seen, graph.constant(0.0, shape.dtype), graph.constant(LOWEST[shape.dtype], shape.dtype))
    graph.scope = "/model/rotary_emb"
    positions = "position_ids"
    if not shape.caches:
        positions = graph.add("Unsqueeze", graph.add("Range", zero, total, one), graph.constant([0]))
    half = shape.head_size // 2
    inverse = graph.constant((10000.0 ** (-np.arange(half) / half))[None, :, None], "float32")
    target = graph.vector([graph.size(positions, 0), half, 1])
    frequencies = graph.add("Expand", inverse, target)
    at = graph.add("Cast", graph.add("Unsqueeze", positions, graph.constant([1])), to=TensorProto.FLOAT)
    angles = graph.add("Transpose", graph.add("MatMul", frequencies, at), perm=[0, 2, 1])
    angles = graph.add("Concat", angles, angles, axis=-1)
    cos, sin = (graph.add("Cast", graph.add(op, angles), to=TYPES[shape.dtype]) for op in ("Cos", "Sin"))
    graph.scope = "/model/embed_tokens"
    return mask, cos, sin


def decoder_layer(graph: GraphWriter, shape: LlamaShape, layer: int, hidden: str, mask: str, cos: str, sin: str) -> str:
    """Attention and FFN, each behind its norm and added to the residual."""
    scope, name = f"/model/layers.{layer}", f"model.layers.{layer}."
    graph.scope = f"{scope}/input_layernorm"
    normed = rms_norm(graph, shape, hidden, f"{name}input_layernorm.weight")
    graph.scope = f"{scope}/self_attn"
    attended = attention(graph, shape, layer, normed, mask, cos, sin)
    graph.scope = scope
    hidden = graph.add("Add", hidden, attended)
    graph.scope = f"{scope}/post_attention_layernorm"
    normed = rms_norm(graph, shape, hidden, f"{name}post_attention_layernorm.weight")
    graph.scope = f"{scope}/mlp"
    gate = graph.add("MatMul", normed, f"{name}mlp.gate_proj.weight")
    gate = graph.add("Mul", gate, graph.add("Sigmoid", gate))
    wide = graph.add("Mul", gate, graph.add("MatMul", normed, f"{name}mlp.up_proj.weight"))
    narrow = graph.add("MatMul", wide, f"{name}mlp.down_proj.weight")
    graph.scope = scope
    return graph.add("Add", hidden, narrow)


def rms_norm(graph: GraphWriter, shape: LlamaShape, hidden: str, weight: str) -> str:
    """RMSNorm in float32, as Hugging Face writes it."""
    exact = graph.add("Cast", hidden, to=TensorProto.FLOAT)
    mean = graph.add("ReduceMean", graph.add("Pow", exact, graph.constant(2.0, "float32")), axes=[-1], keepdims=1)
    root = graph.add("Sqrt", graph.add("Add", mean, graph.constant(1e-5, "float32")))
    normed = graph.add("Mul", exact, graph.add("Div", graph.constant(1.0, "float32"), root))
    return graph.add("Mul", weight, graph.add("Cast", normed, to=TYPES[shape.dtype]))


def attention(graph: GraphWriter, shape: LlamaShape, layer: int, normed: str, mask: str, cos: str, sin: str) -> str:
    """Grouped-query attention with rotary positions; appends to the caches where the model has them."""
    name = f"model.layers.{layer}.self_attn."
    batch, length = graph.size(normed, 0), graph.size(normed, 1)
    projected = {side: graph.add("MatMul", normed, f"{name}{side}_proj.weight") for side in "qkv"}
    heads = {"q": shape.heads, "k": shape.kv_heads, "v": shape.kv_heads}
    for side, value in projected.items():
        target = graph.vector([batch, length, heads[side], shape.head_size])
        projected[side] = graph.add("Transpose", graph.add("Reshape", value, target), perm=[0, 2, 1, 3])
    wave = [graph.add("Unsqueeze", table, graph.constant([1])) for table in (cos, sin)]
    query, key = (rotate(graph, projected[side], *wave) for side in "qk")
    value = projected["v"]
    if shape.caches:
        key, value = (append(graph, layer, side, new) for side, new in (("key", key), ("value", value)))
    if shape.kv_heads < shape.heads:
        key, value = (repeat_heads(graph, shape, each) for each in (key, value))
    scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = graph.add("Div", scores, graph.constant(math.sqrt(shape.head_size), shape.dtype))
    scores = graph.add("Add", scores, graph.slice(mask, 0, graph.size(key, 2), 3))
    weights = graph.add("Softmax", graph.add("Cast", scores, to=TensorProto.FLOAT), axis=-1)
    mixed = graph.add("MatMul", graph.add("Cast", weights, to=TYPES[shape.dtype]), value)
    mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = graph.add("Reshape", mixed, graph.vector([batch, length, shape.hidden]))
    return graph.add("MatMul", mixed, f"{name}o_proj.weight")


def rotate(graph: GraphWriter, heads: str, cos: str, sin: str) -> str:
    """x * cos + rotate_half(x) * sin, the half taken from the shape at run time."""
    size = graph.size(heads, 3)
    half = graph.add("Cast", graph.add("Div", size, graph.constant(2)), to=TensorProto.INT64)
    first = graph.slice(heads, 0, half, 3)
    second = graph.add("Neg", graph.slice(heads, half, np.iinfo(np.int64).max, 3))
    turned = graph.add("Concat", second, first, axis=-1)
    return graph.add("Add", graph.add("Mul", heads, cos), graph.add("Mul", turned, sin))


def append(graph: GraphWriter, layer: int, side: str, new: str) -> str:
    """The cache with the new positions behind it, which is also an output of the model."""
    name = f"present.{layer}.{side}"
    past = f"past_key_values.{layer}.{side}"
    graph.nodes.append(helper.make_node("Concat", [past, new], [name], f"{graph.scope}/Concat_{side}", axis=2))
    return name


def repeat_heads(graph: GraphWriter, shape: LlamaShape, heads: str) -> str:
    """Each key/value head as often as queries share it: Unsqueeze, Expand (through Where, as exported), Reshape."""
    batch, count, length, size = (graph.size(heads, axis) for axis in range(4))
    group = shape.heads // shape.kv_heads
    wide = graph.add("Unsqueeze", heads, graph.constant([2]))
    target = graph.vector([batch, count, group, length, size])
    ones = graph.add("ConstantOfShape", graph.add("Shape", target), value=helper.make_tensor("", 7, [1], [1]))
    kept = graph.add("Equal", target, graph.add("Mul", ones, graph.constant(-1)))
    wide = graph.add("Expand", wide, graph.add("Where", kept, ones, target))
    merged = graph.add("Mul", count, graph.constant(group))
    return graph.add("Reshape", wide, graph.vector([batch, merged, length, size]))


def references(shape: LlamaShape, data_file: str) -> list[onnx.TensorProto]:
    """The weights as references into `data_file`, in the order and at the places `write_data` puts them."""
    found, offset = [], 0
    for name, sizes in shape.weights().items():
        nbytes = math.prod(sizes) * np.dtype(shape.dtype).itemsize
        tensor = onnx.TensorProto(name=name, data_type=TYPES[shape.dtype], dims=sizes)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", data_file), ("offset", offset), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        found.append(tensor)
        offset += -(-nbytes // PAGE) * PAGE
    return found


def write_data(shape: LlamaShape, path: Path, seed: int = 0) -> None:
    """Dense random weights: both signs, of the size that keeps activations near 1; norms between 1 and 2."""
    rng = np.random.default_rng(seed)
    bits, mantissa, bias = {"float16": (16, 10, 15), "float32": (32, 23, 127)}[shape.dtype]
    word = np.dtype(f"u{bits // 8}")
    with path.open("wb") as file:
        for sizes in shape.weights().values():
            is_norm = len(sizes) == 1
            exponent = bias if is_norm else bias - round(math.log2(sizes[0]) / 2) - 1
            fixed, free = word.type(exponent << mantissa), word.type((1 << mantissa) - 1 | (not is_norm) << bits - 1)
            left = math.prod(sizes)
            while left:
                count = min(left, 1 << 22)
                random = np.frombuffer(rng.bytes(count * word.itemsize), word)
                file.write((random & free | fixed).data)
                left -= count
            file.write(bytes(-file.tell() % PAGE))


def write_llama(shape: LlamaShape, folder: Path) -> Path:
    """Model and data as `model.onnx` and `model.onnx.data` in `folder`; returns the model's path."""
    onnx.save(llama_graph(shape), folder / "model.onnx")
    write_data(shape, folder / "model.onnx.data")
    return folder / "model.onnx"
