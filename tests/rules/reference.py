"""What operators of ONNX Runtime compute that have no kernel for CPUs, for onnx's reference evaluator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

from tests.rules.reference_experts import MoE, QMoE

Array = npt.NDArray[Any]
_erf = np.vectorize(math.erf, otypes=[np.float32])


class BiasAdd(OpRun):
    """Bias and residual are added."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array, skip: Array) -> tuple[Array]:
        return (x + bias + skip,)


class BiasSplitGelu(OpRun):
    """After the bias, the left half times the right half's Gelu."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array]:
        left, right = np.split(x + bias, 2, axis=-1)
        return (left * right * (1 + _erf(right / math.sqrt(2))).astype(x.dtype) / 2,)


class NhwcConv(OpRun):
    """A convolution with channels last, those of the weight as well, of stride 1."""

    op_domain = "com.microsoft"

    def _run(
        self, x: Array, w: Array, bias: Array | None = None, *, pads: Sequence[int] = (0, 0, 0, 0), **_: Any
    ) -> tuple[Array]:
        top, left, bottom, right = pads
        x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[1:3], axis=(1, 2))
        y = np.einsum("nyxcpq,mpqc->nyxm", windows, w)
        return ((y if bias is None else y + bias).astype(x.dtype),)


class SwiGLU(OpRun):
    """The gate's SiLU times the other half."""

    op_domain = "com.microsoft"

    def _run(
        self, gate: Array, up: Array | None = None, *, activation_alpha: float = 1.0, alpha: float = 1.0
    ) -> tuple[Array]:  # alpha is an attribute of the operator of that name in ai.onnx
        if up is None:
            gate, up = np.split(gate, 2, axis=-1)
        return ((gate / (1 + np.exp(-activation_alpha * gate)) * up).astype(gate.dtype),)


class SkipGroupNorm(OpRun):
    """Input + skip + bias, each group of channels normalised, scaled and shifted by channel, perhaps through SiLU."""

    op_domain = "com.microsoft"

    def _run(
        self, x: Array, gamma: Array, beta: Array, skip: Array | None = None, bias: Array | None = None, *,
        activation: int = 0, channels_last: int = 1, epsilon: float = 1e-5, groups: int = 1,
    ) -> tuple[Array, ...]:  # fmt: skip
        x = x if channels_last else np.moveaxis(x, 1, -1)
        if skip is not None:
            skip = skip[:, None, None] if skip.ndim == 2 else skip if channels_last else np.moveaxis(skip, 1, -1)
            x = x + skip
        if bias is not None:
            x = x + bias
        grouped = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
        mean, variance = (f(grouped, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
        y = ((grouped - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta
        if activation:
            y = y / (1 + np.exp(-y))
        found = [each.astype(x.dtype) for each in (y, x)]
        return tuple(each if channels_last else np.moveaxis(each, -1, 1) for each in found)


class GroupNorm(SkipGroupNorm, SwiGLU):
    """The same without anything added before."""

    def _run(self, *operands: Array | None, **attributes: Any) -> tuple[Array, ...]:
        return super()._run(*operands, **attributes)[:1]


class MultiHeadAttention(OpRun):
    """Of operands with heads apart, [batch, length, heads, 3 or 2, size]: packed forms have no kernel for CPUs."""

    op_domain = "com.microsoft"

    def _run(
        self, q: Array, kv: Array | None = None, *, num_heads: int = 1, scale: float | None = None
    ) -> tuple[Array]:
        if kv is None:
            q, k, v = np.moveaxis(q, 3, 0)
        else:
            q, (k, v) = q.reshape(*q.shape[:2], num_heads, -1), np.moveaxis(kv, 3, 0)
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        y = np.einsum("bhqk,bkhd->bqhd", weights, v)
        return (y.reshape(*q.shape[:2], -1).astype(v.dtype),)


WITHOUT_KERNELS: tuple[type[OpRun], ...] = (
    BiasAdd,
    BiasSplitGelu,
    GroupNorm,
    MoE,
    MultiHeadAttention,
    NhwcConv,
    QMoE,
    SkipGroupNorm,
    SwiGLU,
)
