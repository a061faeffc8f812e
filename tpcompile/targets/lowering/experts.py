"""Mixtures of experts: every token through all experts, what it did not choose counts zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tpcompile.targets.lowering.block_weights import product_in_blocks, weights_in_blocks
from tpcompile.targets.lowering.gelus import swiglu, tanh_gelu
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site


@dataclass(frozen=True)
class Layer:
    """One of an expert's products: weights [experts, columns, rows], biases [experts, columns]."""

    weight: str
    bias: str | None
    scales: str | None = None
    zeros: str | None = None
    bits: int = 0


@lowering("com.microsoft", "MoE")
def experts(site: Site) -> str:
    """Weights of floats."""
    layers = [_layer(site, 2 + 2 * k, 3 + 2 * k) for k in range(3)]
    return _mixture(site, layers, None)


@lowering("com.microsoft", "QMoE")
def quantized_experts(site: Site) -> str:
    """Weights of few bits, which keep them in the engine."""
    common = site.attribute("expert_weight_bits", 4)
    if site.attribute("quant_type", "int") != "int" or any(map(site.has, range(15, 21))):
        raise NotLowered("its weights are no integers")
    if site.attribute("weights_prepacked", -1) == 1:
        raise NotLowered("its weights are packed for one kind of device")
    layers = []
    for k in range(3):
        bits = site.attribute(f"fc{k + 1}_expert_weight_bits", common)
        layers.append(_layer(site, 2 + 3 * k, 4 + 3 * k, 3 + 3 * k, 11 + k, bits))
    return _mixture(site, layers, site.input(14) if site.has(14) else None)


def _layer(site: Site, weight: int, bias: int, scales: int = -1, zeros: int = -1, bits: int = 0) -> Layer | None:
    if not site.has(weight):
        return None

    def given(index: int) -> str | None:
        return site.input(index) if index >= 0 and site.has(index) else None

    return Layer(site.input(weight), given(bias), given(scales), given(zeros), bits)


def _mixture(site: Site, layers: list[Layer | None], mixing: str | None) -> str:
    """Tokens [1, T, H] through fc1 [E, T, I], activation, fc2 [E, T, H], times shares [E, T, 1], summed over E."""
    if site.attribute("use_sparse_mixer") or site.attribute("swiglu_limit_after_activation"):
        raise NotLowered("a sparse mixer, or a limit after the activation")
    first, second, gated = layers
    if first is None or second is None:
        raise NotLowered("it lacks weights")
    x = site.input(0)
    rank = site.rank(x)
    tokens = site.reshape(x, 1, -1, site.size(x, rank - 1))
    inner = _activated(site, _product(site, tokens, first), None if gated is None else _product(site, tokens, gated))
    shared = site.emit("Mul", [_product(site, inner, second), _shares(site, mixing)])
    y = site.reduce("ReduceSum", shared, 0, keepdims=False)
    return y if rank == 2 else site.emit("Reshape", [y, site.emit("Shape", [x])])


def _product(site: Site, x: str, layer: Layer) -> str:
    """x [1 or E, T, rows] through every expert's weights: [E, T, columns]."""
    if layer.scales is None:
        y = site.emit("MatMul", [x, site.transpose(layer.weight, 0, 2, 1)])
    else:
        experts, columns, packed = (site.size(layer.weight, axis) for axis in range(3))
        rows = packed * 8 // layer.bits
        length = site.attribute("block_size", 0) or rows
        by_column = not site.attribute("block_size", 0)
        shape = (experts, columns, rows // length, length)
        given = (layer.weight, layer.scales, layer.zeros, layer.bits, shape)
        y = product_in_blocks(site, x, 3, weights_in_blocks(site, *given, by_column=by_column))
    return y if layer.bias is None else site.emit("Add", [y, site.unsqueeze(layer.bias, 1)])


def _activated(site: Site, x: str, gate: str | None) -> str:
    """The features inside the experts; computed in single precision."""
    like = site.input(0)
    kind, fusion = site.attribute("activation_type", "relu"), site.attribute("swiglu_fusion", 0)
    narrow = site.dtype(like) in ("float16", "bfloat16")
    x = site.cast(x, "float32") if narrow else x
    if gate is not None and narrow:
        gate = site.cast(gate, "float32")
    if kind in ("swiglu", "geglu"):
        if gate is None:
            x, gate = _halves(site, x, fusion)
        if kind == "geglu":
            return site.narrowed(site.emit("Mul", [tanh_gelu(site, x, "float32"), gate]), like)
        alpha, beta = site.attribute("activation_alpha", 1.0), site.attribute("activation_beta", 0.0)
        limit = site.attribute("swiglu_limit", math.inf)
        return site.narrowed(swiglu(site, x, gate, alpha, beta, limit), like)
    if kind == "gelu":
        y = tanh_gelu(site, x, "float32")
    elif kind == "silu":
        y = site.emit("Mul", [x, site.emit("Sigmoid", [x])])
    elif kind == "relu":
        y = site.emit("Relu", [x])
    elif kind == "identity":
        y = x
    else:
        raise NotLowered(f"its activation is {kind}")
    return site.narrowed(y if gate is None else site.emit("Mul", [y, gate]), like)


def _halves(site: Site, x: str, fusion: int) -> tuple[str, str]:
    """What is activated and what it is multiplied with, out of one [E, T, 2 I]."""
    if fusion == 2:
        half = site.size(site.input(2), 1) // 2
        left, right = site.split(x, 2, [half, half])
        return left, right
    if fusion != 1:
        raise NotLowered("its gates are laid out in another way")
    pairs = site.reshape(x, 0, 0, -1, 2)
    left, right = (site.squeeze(part, 3) for part in site.split(pairs, 3, [1, 1]))
    return left, right


def _shares(site: Site, mixing: str | None) -> str:
    """What each expert counts for each token: [E, T, 1], zero where it is not one of its best."""
    router, like = site.input(1), site.input(0)
    wide = site.wide(router)
    count = site.size(router, 1)
    best, chosen = site.emit_several("TopK", [wide, site.integers(site.attribute("k", 1))], 2, axis=-1)
    normalised = bool(site.attribute("normalize_routing_weights", 0))
    if mixing is None and site.node.op_type == "QMoE":
        normalised = True  # ONNX Runtime's kernel for CPUs takes the softmax over the chosen ones either way
    if mixing is not None:
        values = site.emit("GatherElements", [site.wide(mixing), chosen], axis=1)
        if normalised:
            values = site.emit("Div", [values, site.reduce("ReduceSum", values, 1)])
    elif normalised:
        values = site.emit("Softmax", [best], axis=-1)
    else:
        values = site.emit("GatherElements", [site.emit("Softmax", [wide], axis=-1), chosen], axis=1)
    hit = site.emit("Equal", [site.unsqueeze(chosen, 2), site.integers(*range(count))])
    spread = site.emit("Where", [hit, site.unsqueeze(values, 2), site.constant(0, "float32")])
    shares = site.reduce("ReduceSum", spread, 1, keepdims=False)
    return site.narrowed(site.unsqueeze(site.transpose(shares, 1, 0), 2), like)
