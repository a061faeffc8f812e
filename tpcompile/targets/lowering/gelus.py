"""Activations of ONNX Runtime: Gelu with a bias, by tanh, by a scaled sigmoid; gates."""

from __future__ import annotations

import math

from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site


@lowering("com.microsoft", "QuickGelu")
def quick_gelu(site: Site) -> str:
    """x · sigmoid(alpha · x)"""
    return _swish(site, site.input(0), site.attribute("alpha", 1.702), site.input(0))


@lowering("com.microsoft", "BiasGelu")
def bias_gelu(site: Site) -> str:
    """Gelu by erf of x + bias."""
    return _gelu(site, site.emit("Add", [site.input(0), site.input(1)]), site.input(0))


@lowering("com.microsoft", "FastGelu")
def fast_gelu(site: Site) -> str:
    """Gelu by tanh of x, or of x + bias."""
    like = site.input(0)
    x = site.emit("Add", [like, site.input(1)]) if site.has(1) else like
    return tanh_gelu(site, x, site.dtype(like))


@lowering("com.microsoft", "BiasAdd")
def bias_add(site: Site) -> str:
    """x + bias + skip"""
    return site.emit("Add", [site.emit("Add", [site.input(0), site.input(1)]), site.input(2)])


@lowering("com.microsoft", "BiasSplitGelu")
def split_gelu(site: Site) -> str:
    """The left half of x + bias times Gelu of the right half."""
    left, right = _halves(site, site.emit("Add", [site.input(0), site.input(1)]))
    return site.emit("Mul", [left, _gelu(site, right, site.input(0))])


@lowering("com.microsoft", "SwiGLU")
def clamped_swiglu(site: Site) -> str:
    """gate · sigmoid(alpha · gate) · (up + beta), both clamped where there is a limit."""
    x = site.input(0)
    if site.attribute("round_activation"):
        raise NotLowered("it rounds in between")
    wide = site.wide(x)
    gate, up = (wide, site.wide(site.input(1))) if site.has(1) else _halves(site, wide)
    return site.narrowed(
        swiglu(
            site,
            gate,
            up,
            site.attribute("activation_alpha", 1.0),
            site.attribute("activation_beta", 0.0),
            site.attribute("limit", 0.0) or math.inf,
        ),
        x,
    )


@lowering("com.microsoft", "LinearAttentionGate")
def attention_gate(site: Site) -> list[str | None]:
    """Decay: scale · softplus(x + bias); update: sigmoid of another value. In single precision."""
    x, bias, scale = (site.wide(site.input(index)) for index in range(3))
    decay = site.emit("Mul", [scale, site.emit("Softplus", [site.emit("Add", [x, bias])])])
    update = site.emit("Sigmoid", [site.wide(site.input(3))]) if site.has(3) else None
    kinds = [site.types.dtype(site.output(index)) for index in range(2)]
    return [
        site.cast(value, kind) if value and kind and kind != "float32" else value
        for value, kind in zip((decay, update), kinds, strict=True)
    ]


@lowering("", "SwiGLU")
def standard_swiglu(site: Site) -> str:
    """A · sigmoid(alpha · A) · B"""
    a, b = site.input(0), site.input(1)
    return site.emit("Mul", [_swish(site, a, site.attribute("alpha", 1.0), a), b])


def swiglu(site: Site, gate: str, up: str, alpha: float, beta: float, limit: float) -> str:
    """gate · sigmoid(alpha · gate) · (up + beta) in single precision, clamped at a limit that is finite and above 0."""
    if 0 < limit < math.inf:
        high, low = site.constant(limit, "float32"), site.constant(-limit, "float32")
        gate = site.emit("Min", [gate, high])
        up = site.emit("Max", [site.emit("Min", [up, high]), low])
    if beta:
        up = site.emit("Add", [up, site.constant(beta, "float32")])
    scaled = site.emit("Mul", [gate, site.constant(alpha, "float32")]) if alpha != 1 else gate
    return site.emit("Mul", [site.emit("Mul", [gate, site.emit("Sigmoid", [scaled])]), up])


def tanh_gelu(site: Site, x: str, dtype: str) -> str:
    """x/2 · (1 + tanh(x · (a + b · x²))) of a value of type `dtype`"""
    a = math.sqrt(2 / math.pi)
    cubic = site.emit("Mul", [site.emit("Mul", [x, x]), site.constant(a * 0.044715, dtype)])
    inner = site.emit("Mul", [x, site.emit("Add", [cubic, site.constant(a, dtype)])])
    outer = site.emit("Add", [site.emit("Tanh", [inner]), site.constant(1, dtype)])
    return site.emit("Mul", [site.emit("Mul", [x, site.constant(0.5, dtype)]), outer])


def _gelu(site: Site, x: str, like: str) -> str:
    """x/2 · (1 + erf(x / √2))"""
    erf = site.emit("Erf", [site.emit("Mul", [x, site.scalar(math.sqrt(0.5), like)])])
    outer = site.emit("Add", [erf, site.scalar(1, like)])
    return site.emit("Mul", [site.emit("Mul", [x, site.scalar(0.5, like)]), outer])


def _swish(site: Site, x: str, alpha: float, like: str) -> str:
    scaled = site.emit("Mul", [x, site.scalar(alpha, like)])
    return site.emit("Mul", [x, site.emit("Sigmoid", [scaled])])


def _halves(site: Site, x: str) -> list[str]:
    """The two halves of the last axis of a value made from the node's first operand."""
    last = site.rank(site.input(0)) - 1
    half = site.size(site.input(0), last) // 2
    return site.split(x, last, [half, half])
