"""ONNX operators as torch calls: enough for the decomposed transformers that gpu_check carries.

Each function takes a `Call` and gives its result, or a tuple where the operator has several. Small integers (sizes,
axes) stay on the host where they were made; whatever meets a tensor of the GPU goes there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from onnx import TensorProto
from torch import Tensor
from torch.nn import functional

TYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32, TensorProto.DOUBLE: torch.float64, TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16, TensorProto.BOOL: torch.bool, TensorProto.UINT8: torch.uint8,
    TensorProto.INT8: torch.int8, TensorProto.INT16: torch.int16, TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
}  # fmt: skip


@dataclass
class Call:
    """One node with its operands: None where one is left out; `opset` of ai.onnx; `outputs` is their number."""

    op: str
    inputs: list[Tensor | None]
    attributes: dict[str, Any]
    opset: int
    outputs: int

    def __getitem__(self, at: int) -> Tensor:
        found = self.inputs[at]
        assert found is not None, f"{self.op} lacks its input {at}"
        return found

    def has(self, at: int) -> bool:
        return at < len(self.inputs) and self.inputs[at] is not None

    def numbers(self, at: int, name: str) -> list[int] | None:
        """A list that is an attribute in old opsets, an input in new ones."""
        if self.has(at):
            return [int(number) for number in self[at].reshape(-1).tolist()]
        return self.attributes.get(name)

    def axis(self, default: int = -1) -> int:
        return int(self.attributes.get("axis", default))


Operator = Callable[[Call], Any]
OPERATORS: dict[str, Operator] = {}


def operator(*names: str) -> Callable[[Operator], Operator]:
    def note(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return note


READ_ON_HOST = {
    "Reshape", "Slice", "Expand", "Unsqueeze", "Squeeze", "Tile", "Pad", "Split", "Trilu", "CumSum", "Range",
    "ConstantOfShape", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin",
}  # fmt: skip
"""Operators whose operands after the first are sizes and axes: they stay where they are."""


def together(op: str, inputs: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The operands of a node: all on the GPU where one of them is there."""
    if op in READ_ON_HOST:
        return list(inputs)
    device = next((x.device for x in inputs if x is not None and x.device.type != "cpu"), None)
    return list(inputs) if device is None else [x if x is None else x.to(device) for x in inputs]


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs, "Neg": torch.neg, "Sqrt": torch.sqrt, "Exp": torch.exp, "Log": torch.log, "Cos": torch.cos,
    "Sin": torch.sin, "Tanh": torch.tanh, "Erf": torch.erf, "Sigmoid": torch.sigmoid, "Relu": torch.relu,
    "Reciprocal": torch.reciprocal, "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round,
    "Not": torch.logical_not, "IsNaN": torch.isnan, "Identity": lambda x: x, "Softplus": functional.softplus,
    "Dropout": lambda x: x, "Sign": torch.sign,
}  # fmt: skip
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Equal": torch.eq, "Less": torch.lt,
    "LessOrEqual": torch.le, "Greater": torch.gt, "GreaterOrEqual": torch.ge, "And": torch.logical_and,
    "Or": torch.logical_or, "Xor": torch.logical_xor, "MatMul": torch.matmul,
    "Pow": lambda x, y: torch.pow(x, y.to(x.dtype)),
    "Div": lambda x, y: torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc"),
}  # fmt: skip
FOLDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": torch.maximum, "Min": torch.minimum, "Sum": torch.add,
}  # fmt: skip
REDUCED: dict[str, Callable[..., Tensor]] = {
    "ReduceMean": torch.mean, "ReduceSum": torch.sum, "ReduceMax": torch.amax, "ReduceMin": torch.amin,
}  # fmt: skip


@operator(*UNARY)
def unary(call: Call) -> Tensor:
    return UNARY[call.op](call[0])


@operator(*BINARY)
def binary(call: Call) -> Tensor:
    return BINARY[call.op](call[0], call[1])


@operator(*FOLDED)
def folded(call: Call) -> Tensor:
    total = call[0]
    for at in range(1, len(call.inputs)):
        total = FOLDED[call.op](total, call[at])
    return total


@operator(*REDUCED)
def reduced(call: Call) -> Tensor:
    axes = call.numbers(1, "axes")
    if not axes and call.attributes.get("noop_with_empty_axes"):
        return call[0]
    kept = {"keepdim": bool(call.attributes.get("keepdims", 1))}
    kind = {"dtype": call[0].dtype} if call.op == "ReduceSum" else {}
    return REDUCED[call.op](call[0], dim=axes or list(range(call[0].ndim)), **kept, **kind)


@operator("Cast")
def cast(call: Call) -> Tensor:
    return call[0].to(TYPES[call.attributes["to"]])


@operator("Where")
def where(call: Call) -> Tensor:
    return torch.where(call[0], call[1], call[2])


@operator("Clip")
def clip(call: Call) -> Tensor:
    low, high = ((call[at] if call.has(at) else None) for at in (1, 2))
    return torch.clamp(call[0], low, high)


@operator("Gelu")
def gelu(call: Call) -> Tensor:
    return functional.gelu(call[0], approximate=call.attributes.get("approximate", "none"))


@operator("Softmax")
def softmax(call: Call) -> Tensor:
    return torch.softmax(call[0], call.axis())


@operator("LayerNormalization")
def layer_normalization(call: Call) -> Tensor:
    axis = call.axis() % call[0].ndim
    shape = call[0].shape[axis:]
    bias = call[2].reshape(shape) if call.has(2) else None
    return functional.layer_norm(call[0], shape, call[1].reshape(shape), bias, call.attributes.get("epsilon", 1e-5))


@operator("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(call: Call) -> Tensor:
    axis = call.axis() % call[0].ndim
    wide = call[0].float()
    mean = wide.pow(2).mean(dim=list(range(axis, wide.ndim)), keepdim=True)
    scaled = wide * torch.rsqrt(mean + call.attributes.get("epsilon", 1e-5))
    return scaled.to(call[0].dtype) * call[1]


@operator("Gemm")
def gemm(call: Call) -> Tensor:
    a = call[0].T if call.attributes.get("transA") else call[0]
    b = call[1].T if call.attributes.get("transB") else call[1]
    product = call.attributes.get("alpha", 1.0) * (a @ b)
    return product + call.attributes.get("beta", 1.0) * call[2] if call.has(2) else product


@operator("Conv")
def conv(call: Call) -> Tensor:
    spatial = call[1].ndim - 2
    pads = call.attributes.get("pads", [0] * (2 * spatial))
    x = functional.pad(call[0], [size for k in reversed(range(spatial)) for size in (pads[k], pads[k + spatial])])
    function = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[spatial]
    return function(
        x, call[1], call[2] if call.has(2) else None, call.attributes.get("strides", 1), 0,
        call.attributes.get("dilations", 1), call.attributes.get("group", 1),
    )  # fmt: skip


@operator("Gather")
def gather(call: Call) -> Tensor:
    axis, x, indices = call.axis(0) % call[0].ndim, call[0], call[1]
    indices = torch.where(indices < 0, indices + x.shape[axis], indices)
    found = torch.index_select(x, axis, indices.reshape(-1))
    return found.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


@operator("GatherElements")
def gather_elements(call: Call) -> Tensor:
    axis, indices = call.axis(0), call[1]
    return torch.gather(call[0], axis, torch.where(indices < 0, indices + call[0].shape[axis], indices))


@operator("GatherND")
def gather_nd(call: Call) -> Tensor:
    batch, x, indices = call.attributes.get("batch_dims", 0), call[0], call[1]
    flat = x.reshape(-1, *x.shape[batch:]), indices.reshape(-1, *indices.shape[batch:])
    rows = [one[tuple(at.unbind(-1))] for one, at in zip(*flat, strict=True)]
    return torch.stack(rows).reshape((*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :]))


@operator("ScatterND")
def scatter_nd(call: Call) -> Tensor:
    made = call[0].clone()
    made[tuple(call[1].unbind(-1))] = call[2]
    return made


@operator("Slice")
def slice_(call: Call) -> Tensor:
    x = call[0]
    starts, ends = call.numbers(1, "starts") or [], call.numbers(2, "ends") or []
    axes, steps = call.numbers(3, "axes") or list(range(len(starts))), call.numbers(4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[axis]
        chosen = range(size)[start:end:step] if step > 0 else range(size)[start : None if end < -size else end : step]
        if step == 1:
            x = torch.narrow(x, axis, chosen.start, len(chosen))
        else:
            x = torch.index_select(x, axis, torch.tensor(list(chosen), device=x.device))
    return x


@operator("Split")
def split(call: Call) -> tuple[Tensor, ...]:
    axis = call.axis(0)
    part = -(-call[0].shape[axis] // call.outputs)
    return torch.split(call[0], call.numbers(1, "split") or part, axis)


@operator("Concat")
def concat(call: Call) -> Tensor:
    return torch.cat([x for x in call.inputs if x is not None], call.axis())


@operator("Reshape")
def reshape(call: Call) -> Tensor:
    wanted = call.numbers(1, "shape") or []
    if not call.attributes.get("allowzero"):
        wanted = [call[0].shape[k] if size == 0 else size for k, size in enumerate(wanted)]
    if -1 in wanted and not call[0].numel():  # torch cannot tell what is left of nothing
        rest = math.prod(size for size in wanted if size != -1)
        wanted = [(call[0].numel() // rest if rest else 0) if size == -1 else size for size in wanted]
    return call[0].reshape(wanted)


@operator("Flatten")
def flatten(call: Call) -> Tensor:
    axis = call.axis(1)
    return call[0].reshape(math.prod(call[0].shape[:axis]), -1)


@operator("Transpose")
def transpose(call: Call) -> Tensor:
    return call[0].permute(call.attributes.get("perm") or list(range(call[0].ndim))[::-1])


@operator("Squeeze")
def squeeze(call: Call) -> Tensor:
    axes = call.numbers(1, "axes")
    return call[0].squeeze() if axes is None else call[0].squeeze(tuple(axes))


@operator("Unsqueeze")
def unsqueeze(call: Call) -> Tensor:
    axes = call.numbers(1, "axes") or []
    x, rank = call[0], call[0].ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


@operator("Expand")
def expand(call: Call) -> Tensor:
    return call[0].expand(torch.broadcast_shapes(call[0].shape, call.numbers(1, "shape") or []))


@operator("Tile")
def tile(call: Call) -> Tensor:
    return call[0].repeat(call.numbers(1, "repeats") or [])


@operator("Shape")
def shape(call: Call) -> Tensor:
    start, end = call.attributes.get("start", 0), call.attributes.get("end")
    return torch.tensor(list(call[0].shape)[start:end])


@operator("ConstantOfShape")
def constant_of_shape(call: Call) -> Tensor:
    value = call.attributes.get("value", torch.zeros(1))
    return value.reshape(()).expand(call.numbers(0, "shape") or []).clone()


@operator("Range")
def range_(call: Call) -> Tensor:
    return torch.arange(*(call[at].item() for at in range(3)), dtype=call[0].dtype)


@operator("Trilu")
def trilu(call: Call) -> Tensor:
    k = int(call[1].item()) if call.has(1) else 0
    return torch.triu(call[0], k) if call.attributes.get("upper", 1) else torch.tril(call[0], k)


@operator("CumSum")
def cumsum(call: Call) -> Tensor:
    return torch.cumsum(call[0], int(call[1].item()), dtype=call[0].dtype)


@operator("Pad")
def pad(call: Call) -> Tensor:
    sizes, rank = call.numbers(1, "pads") or [], call[0].ndim
    value = call[2].item() if call.has(2) else 0
    axes = call.numbers(3, "axes") or list(range(rank))
    before, after = dict(zip(axes, sizes, strict=False)), dict(zip(axes, sizes[len(axes) :], strict=True))
    return functional.pad(
        call[0], [size for k in reversed(range(rank)) for size in (before.get(k, 0), after.get(k, 0))], value=value
    )


@operator("RotaryEmbedding")
def rotary_embedding(call: Call) -> Tensor:
    x, cos, sin = call[0], call[1], call[2]
    heads = call.attributes.get("num_heads", 0)
    split_heads = x.reshape(*x.shape[:2], heads, -1).transpose(1, 2) if x.ndim == 3 else x
    if call.has(3):
        cos, sin = cos[call[3]], sin[call[3]]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    size = call.attributes.get("rotary_embedding_dim") or split_heads.shape[-1]
    turned, rest = split_heads[..., :size], split_heads[..., size:]
    if call.attributes.get("interleaved"):
        a, b = turned[..., ::2], turned[..., 1::2]
        made = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        made = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    made = torch.cat([made, rest], -1)
    return made.transpose(1, 2).reshape(x.shape) if x.ndim == 3 else made


@operator("Attention")
def attention(call: Call) -> tuple[Tensor, ...]:
    counts = [call.attributes.get(name, 0) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    q, k, v = (
        x.reshape(*x.shape[:2], count, -1).transpose(1, 2) if x.ndim == 3 else x
        for x, count in zip((call[0], call[1], call[2]), counts, strict=True)
    )
    past = 0
    if call.has(4):
        past = call[4].shape[2]
        k, v = torch.cat([call[4], k], 2), torch.cat([call[5], v], 2)
    repeats = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = (q @ keys.transpose(-1, -2)).float() * call.attributes.get("scale", q.shape[-1] ** -0.5)
    cap = call.attributes.get("softcap", 0.0)
    scores = cap * torch.tanh(scores / cap) if cap else scores
    if call.has(3):
        mask = call[3]
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if call.attributes.get("is_causal"):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(past)
        scores = scores.masked_fill(~seen, -torch.inf)
    made = torch.softmax(scores, -1).nan_to_num(0.0).to(q.dtype) @ values
    made = made.transpose(1, 2).reshape(call[0].shape[0], call[0].shape[1], -1) if call[0].ndim == 3 else made
    return made, k, v
