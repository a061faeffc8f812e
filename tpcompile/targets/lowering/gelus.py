"""Gelu variants of ONNX Runtime: with a bias, by tanh, by a scaled sigmoid."""

from __future__ import annotations

from tpcompile.targets.lowering.registry import lowering
from tpcompile.targets.lowering.site import Site


@lowering("com.microsoft", "QuickGelu")
def quick_gelu(site: Site) -> str:
    """x · sigmoid(alpha · x)"""
    x = site.input(0)
    scaled = site.emit("Mul", [x, site.scalar(site.attribute("alpha", 1.702), x)])
    return site.emit("Mul", [x, site.emit("Sigmoid", [scaled])])
