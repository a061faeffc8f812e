"""Products and convolutions of ONNX Runtime with what is fused before and after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site


@lowering("", "MatMul")
def matmul(site: Site) -> str | None:
    """A vector is a matrix of one row or one column: TensorRT's own reading of them fails beside batches."""
    shapes = [site.types.shape(name) for name in site.node.input]
    if all(shape is None or len(shape) != 1 for shape in shapes):
        return None
    return _matmul(site, *site.node.input)


@lowering("com.microsoft", "FusedMatMul", "TransposeMatMul")
def fused_matmul(site: Site) -> str:
    """MatMul of operands that are transposed before; alpha scales the left one, so that no product overflows."""
    return _product(site)


@lowering("com.microsoft", "FusedMatMulActivation")
def activated_matmul(site: Site) -> str:
    """FusedMatMul, then an activation."""
    return _activated(site, _product(site), _parameters(site))


@lowering("com.microsoft", "FusedGemm")
def fused_gemm(site: Site) -> str:
    """Gemm, then an activation."""
    given = {name: site.attribute(name) for name in ("alpha", "beta", "transA", "transB")}
    return _activated(site, site.emit("Gemm", list(site.node.input), **given), _parameters(site))


@lowering("com.microsoft", "FusedConv")
def fused_conv(site: Site) -> str:
    """Conv, then what is added, then an activation."""
    y = site.emit("Conv", [name for name in site.node.input[:3]], **_of_convolution(site))
    if site.has(3):
        y = site.emit("Add", [y, site.input(3)])
    return _activated(site, y, site.attribute("activation_params", []))


@lowering("com.microsoft", "NhwcConv")
def nhwc_conv(site: Site) -> str:
    """Conv between transpositions: image and weight have their channels last."""
    x, w = (site.transpose(site.input(index), 0, 3, 1, 2) for index in (0, 1))
    y = site.emit("Conv", [x, w, *site.node.input[2:3]], **_of_convolution(site))
    return site.transpose(y, 0, 2, 3, 1)


def _product(site: Site) -> str:
    a, b = (_turned(site, index, side) for index, side in ((0, "A"), (1, "B")))
    alpha = site.attribute("alpha", 1.0)
    if alpha != 1:
        a = site.emit("Mul", [a, site.scalar(alpha, site.input(0))])
    return _matmul(site, a, b)


def _matmul(site: Site, a: str, b: str) -> str:
    """The product; operands of the node that are vectors get an axis for it, and the result loses that."""
    left, right = (site.rank(site.input(index)) == 1 for index in (0, 1))
    y = site.emit("MatMul", [site.unsqueeze(a, 0) if left else a, site.unsqueeze(b, 1) if right else b])
    rank = max(2, site.rank(site.input(0)), site.rank(site.input(1)))
    if right:
        y = site.squeeze(y, rank - 1)
    return site.squeeze(y, rank - 2) if left else y


def _turned(site: Site, index: int, side: str) -> str:
    """An operand as [..., rows, columns]."""
    x = site.input(index)
    batched, turned = site.attribute(f"transBatch{side}", 0), site.attribute(f"trans{side}", 0)
    if not (batched or turned):
        return x
    axes = list(range(site.rank(x)))
    if len(axes) == 1:
        return x
    if batched:
        axes.insert(len(axes) - 2, axes.pop(0))
    if turned:
        axes[-2:] = axes[:-3:-1]
    return x if axes == sorted(axes) else site.transpose(x, *axes)


def _of_convolution(site: Site) -> dict[str, Any]:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return {name: site.attribute(name) for name in names}


def _parameters(site: Site) -> list[float]:
    found = [site.attribute(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return [value for value in found if value is not None]


def _activated(site: Site, x: str, parameters: Sequence[float]) -> str:
    kind = site.attribute("activation", "")
    names: tuple[str, ...] = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(kind, ())
    if not kind:
        return x
    if kind == "Clip":
        low, high = (site.scalar(value, site.input(0)) for value in parameters)
        return site.emit("Min", [site.emit("Max", [x, low]), high])
    if kind in ("Relu", "Sigmoid", "Tanh") or names:
        given: dict[str, Any] = dict(zip(names, parameters, strict=False))
        return site.emit(kind, [x], **given)
    raise NotLowered(f"its activation is {kind}")
