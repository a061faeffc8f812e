"""What mixtures of experts compute, also where ONNX Runtime has no kernel for CPUs: fc3, gates in halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

Array = npt.NDArray[Any]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * (1 + np.tanh(x / 2)) / 2,
    "gelu": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "identity": lambda x: x,
}


def mixture(x: Array, router: Array, fc1: list[Array], fc2: list[Array], fc3: list[Array], given: Any) -> Array:
    """Each token through its `k` best experts; fc1, fc2 and fc3 are weight and bias, [] where there is none."""
    y = np.zeros_like(x.reshape(-1, x.shape[-1]))
    for token, row in enumerate(x.reshape(-1, x.shape[-1])):
        chosen = np.argsort(-router[token], kind="stable")[: given["k"]]
        share = np.exp(router[token] - router[token].max())
        share /= share[chosen].sum() if given["normalize_routing_weights"] else share.sum()
        for expert in chosen:
            inner = fc1[0][expert] @ row + fc1[1][expert]
            if given["activation_type"] == "swiglu":
                halves = inner.reshape(-1, 2).T if given["swiglu_fusion"] == 1 else np.split(inner, 2)
                inner = ACTIVATIONS["silu"](halves[0]) * halves[1]
            else:
                inner = ACTIVATIONS[given["activation_type"]](inner)
            if fc3:
                inner = inner * (fc3[0][expert] @ row + fc3[1][expert])
            y[token] += share[expert] * (fc2[0][expert] @ inner + fc2[1][expert])
    return y.reshape(x.shape)


def with_bias(weight: Array | None, bias: Array | None) -> list[Array]:
    if weight is None:
        return []
    return [weight, np.zeros(weight.shape[:2], weight.dtype) if bias is None else bias]


DEFAULTS = {"k": 1, "activation_type": "relu", "swiglu_fusion": 0, "normalize_routing_weights": 0}


class MoE(OpRun):
    """Weights [experts, out, in]."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, router: Array, *operands: Array | None, **attributes: Any) -> tuple[Array]:
        fc = [*operands, *[None] * (6 - len(operands))]
        layers = [with_bias(weight, bias) for weight, bias in zip(fc[::2], fc[1::2], strict=True)]
        return (mixture(x, router, *layers, DEFAULTS | attributes),)


class QMoE(OpRun):
    """Weights packed along their last axis, with a scale per row or per block of it."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, router: Array, *operands: Array | None, **attributes: Any) -> tuple[Array]:
        given = [*operands, *[None] * (12 - len(operands))]
        bits, layers = attributes["expert_weight_bits"], []
        for k in range(3):
            packed, scale, bias = given[3 * k : 3 * k + 3]
            if packed is None or scale is None:
                layers.append([])
                continue
            codes, scale = unpacked(packed, bits), scale if scale.ndim == 3 else scale[:, :, None]
            zero: Array | float = 2.0 ** (bits - 1)
            points = given[9 + k]
            if points is not None:
                zero = unpacked(points, bits)
                zero = zero[..., : scale.shape[-1]] if zero.ndim == 3 else zero[:, : scale.shape[1], None]
                zero = np.repeat(zero, codes.shape[-1] // zero.shape[-1], axis=-1)
            scale = np.repeat(scale, codes.shape[-1] // scale.shape[-1], axis=-1)
            layers.append(with_bias(((codes - zero) * scale).astype(np.float32), bias))
        return (mixture(x, router, *layers, DEFAULTS | attributes),)


def unpacked(packed: Array, bits: int) -> Array:
    """Numbers of `bits` bits, the lowest first, as floats."""
    codes = packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1).astype(np.float32)
