"""Transforms and convolutions of signals."""

from __future__ import annotations

import math

import numpy as np

from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site

LAST = (1 << 63) - 1


@lowering("", "DFT")
def discrete_fourier(site: Site) -> str:
    """Products with cosines and sines of [length, frequencies], of real numbers or pairs of them on the last axis."""
    x = site.input(0)
    rank, parts = site.rank(x), site.size(x, -1)
    given = (
        int(site.stored(site.input(2)).item()) if site.has(2) else site.attribute("axis", -2 if site.opset > 19 else 1)
    )
    axis, inverse = given % rank, bool(site.attribute("inverse", 0))
    if site.has(1) and site.shape(x)[axis] != site.stored(site.input(1)).item():
        raise NotLowered("its signal is cut or filled up")
    if inverse and (site.attribute("onesided", 0) or parts == 1):
        raise NotLowered("its signal is half of what is transformed back")
    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    moved = site.transpose(x, *order)
    cosines, sines = _waves(site, x, axis, bool(site.attribute("onesided", 0)))
    real, *imaginary = (site.squeeze(part, rank - 1) for part in site.split(moved, rank - 1, [1] * parts))
    along = site.emit("MatMul", [real, cosines])
    across = site.emit("MatMul", [real, sines])
    if imaginary:
        other = site.emit("MatMul", [imaginary[0], sines])
        along = site.emit("Sub" if inverse else "Add", [along, other])
        first = site.emit("MatMul", [imaginary[0], cosines])
        across = site.emit("Add" if inverse else "Sub", [first, across])
    else:
        across = site.emit("Neg", [across])
    pairs = site.emit("Concat", [site.unsqueeze(along, rank - 1), site.unsqueeze(across, rank - 1)], axis=rank - 1)
    if inverse:
        pairs = site.emit("Div", [pairs, site.emit("Cast", [site.length(x, axis)], to=1)])
    return site.transpose(pairs, *(order.index(k) for k in range(rank)))


def _waves(site: Site, x: str, axis: int, onesided: bool) -> tuple[str, str]:
    """Cosine and sine of 2 π j k / n, [n, frequencies]: stored where the length is known."""
    known = site.shape(x)[axis]
    if known is not None:
        each = np.arange(known)
        turned = np.outer(each, each[: known // 2 + 1] if onesided else each) % known * (2 * math.pi / known)
        return site.constant(np.cos(turned), "float32"), site.constant(np.sin(turned), "float32")
    length = site.squeeze(site.length(x, axis), 0)
    zero, one, two = (site.constant(k, "int64") for k in range(3))
    places = site.emit("Range", [zero, length, one])
    count = site.emit("Add", [site.emit("Div", [length, two]), one]) if onesided else length
    steps = site.emit("Mul", [site.unsqueeze(places, 1), site.emit("Range", [zero, count, one])])
    turns = site.emit("Div", [site.cast(site.emit("Mod", [steps, length]), "float32"), site.cast(length, "float32")])
    angles = site.emit("Mul", [turns, site.constant(2 * math.pi, "float32")])
    return site.emit("Cos", [angles]), site.emit("Sin", [angles])


@lowering("", "CausalConvWithState")
@lowering("com.microsoft", "CausalConvWithState")
def causal_conv(site: Site) -> list[str | None]:
    """A convolution of each channel by itself, of what was before and now is; the end of that is the next state."""
    x, weight = site.input(0), site.input(1)
    channels, kernel = site.size(weight, 0), site.size(weight, 2)
    dilation, last = site.attribute("dilation", 1), bool(site.attribute("channels_last", 0))
    reach = (kernel - 1) * dilation
    kind = site.attribute("activation", "none")
    if kind not in ("none", "silu", "swish") or reach == 0:
        raise NotLowered(f"its activation is {kind}, or it looks at one position")

    def channels_second(signal: str, name: str) -> str:
        if not last:
            return signal
        return site.transpose(site.reshape(signal, 0, 0, channels) if site.rank(name) > 3 else signal, 0, 2, 1)

    now = channels_second(x, x)
    if site.has(3):
        whole = site.emit("Concat", [channels_second(site.input(3), site.input(3)), now], axis=2)
    else:
        whole = site.emit("Pad", [now, site.integers(0, 0, reach, 0, 0, 0)])
    bias = [site.input(2)] if site.has(2) else []
    y = site.emit("Conv", [whole, weight, *bias], group=channels, dilations=[dilation])
    if kind != "none":
        y = site.emit("Mul", [y, site.emit("Sigmoid", [y])])
    state = site.slice(whole, 2, -reach, LAST)
    if last:
        y, state = site.transpose(y, 0, 2, 1), site.transpose(state, 0, 2, 1)
    inner = [site.size(x, k) for k in range(2, site.rank(x))] if last and site.rank(x) > 3 else []
    return [site.reshape(value, 0, 0, *inner) if inner else value for value in (y, state)]
