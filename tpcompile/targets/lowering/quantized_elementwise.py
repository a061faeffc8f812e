"""Operators of ONNX Runtime on numbers of 8 bits: dequantised, computed, quantised again."""

from __future__ import annotations

from tpcompile.targets.lowering.registry import lowering
from tpcompile.targets.lowering.site import Site
from tpcompile.targets.lowering.whole_numbers import dequantised, quantised


@lowering("com.microsoft", "QLinearAdd", "QLinearMul")
def quantized_pair(site: Site) -> str:
    """Sum or product of two."""
    op = site.node.op_type.removeprefix("QLinear")
    return _again(site, site.emit(op, [dequantised(site, 0, 1, 2), dequantised(site, 3, 4, 5)]), 6)


@lowering("com.microsoft", "QLinearSigmoid", "QLinearLeakyRelu")
def quantized_activation(site: Site) -> str:
    """Each number by itself."""
    op = site.node.op_type.removeprefix("QLinear")
    given = {} if op == "Sigmoid" else {"alpha": site.attribute("alpha", 0.01)}
    return _again(site, site.emit(op, [dequantised(site, 0, 1, 2)], **given), 3)


@lowering("com.microsoft", "QLinearSoftmax")
def quantized_softmax(site: Site) -> str:
    """Over one axis, or over all from it on as before opset 13."""
    x = dequantised(site, 0, 1, 2)
    rank = site.rank(site.input(0))
    axis = site.attribute("axis", -1) % rank
    if site.attribute("opset") >= 13 or axis == rank - 1:
        return _again(site, site.emit("Softmax", [x], axis=axis), 3)
    rows = site.emit("Reshape", [x, site.integers(*[0] * axis, -1)])
    y = site.emit("Reshape", [site.emit("Softmax", [rows], axis=axis), site.emit("Shape", [x])])
    return _again(site, y, 3)


@lowering("com.microsoft", "QLinearGlobalAveragePool")
def quantized_mean(site: Site) -> str:
    """Mean over all axes of an image."""
    rank = site.rank(site.input(0))
    axes = range(1, rank - 1) if site.attribute("channels_last", 0) else range(2, rank)
    return _again(site, site.reduce("ReduceMean", dequantised(site, 0, 1, 2), *axes), 3)


@lowering("com.microsoft", "QLinearConcat")
def quantized_concat(site: Site) -> str:
    """Each part with a scale and a zero point of its own."""
    parts = [dequantised(site, k, k + 1, k + 2) for k in range(2, len(site.node.input), 3)]
    y = site.emit("Div", [site.emit("Concat", parts, axis=site.attribute("axis")), site.input(0)])
    return quantised(site, y, site.input(1), site.dtype(site.node.output[0]))


def _again(site: Site, y: str, scale: int) -> str:
    """Floats by the scale and the zero point of the output."""
    zero = site.input(scale + 1) if site.has(scale + 1) else None
    return quantised(site, site.emit("Div", [y, site.input(scale)]), zero, site.dtype(site.node.output[0]))
