"""Norms: with what is added before, with statistics as outputs, over groups of channels."""

from __future__ import annotations

from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site


@lowering("", "LayerNormalization")
def layer_norm(site: Site) -> list[str | None] | None:
    """Stays itself; mean and deviation are computed beside it."""
    if len(site.node.output) == 1:
        return None
    attributes = {entry.name: site.attribute(entry.name) for entry in site.node.attribute}
    y = site.emit("LayerNormalization", list(site.node.input), **attributes)
    return [y, *_statistics(site, site.input(0), [site.wants(1), site.wants(2)])]


@lowering("", "SimplifiedLayerNormalization")
def simplified_norm(site: Site) -> list[str | None] | None:
    """Stays itself; the deviation is computed beside it."""
    if len(site.node.output) == 1:
        return None
    attributes = {entry.name: site.attribute(entry.name) for entry in site.node.attribute}
    y = site.emit("SimplifiedLayerNormalization", list(site.node.input), **attributes)
    return [y, _deviation(site, site.wide(site.input(0)), site.input(0)) if site.wants(1) else None]


@lowering("com.microsoft", "SkipLayerNormalization")
def skip_norm(site: Site) -> list[str | None]:
    """LayerNormalization of input + skip + bias, which is the fourth output."""
    total = _sum(site, site.input(0), site.input(1), 4)
    epsilon = site.attribute("epsilon", 1e-12)
    beta = [site.input(3)] if site.has(3) else []
    y = site.emit("LayerNormalization", [total, site.input(2), *beta], axis=-1, epsilon=epsilon)
    if site.wants(1) or site.wants(2):
        raise NotLowered("its statistics are read")
    return [y, None, None, total]


@lowering("com.microsoft", "SkipSimplifiedLayerNormalization")
def skip_simplified_norm(site: Site) -> list[str | None]:
    """SimplifiedLayerNormalization of input + skip + bias, which is the fourth output."""
    total = _sum(site, site.input(0), site.input(1), 3)
    epsilon = site.attribute("epsilon", 1e-12)
    y = site.emit("SimplifiedLayerNormalization", [total, site.input(2)], axis=-1, epsilon=epsilon)
    if site.wants(1) or site.wants(2):
        raise NotLowered("its statistics are read")
    return [y, None, None, total]


@lowering("com.microsoft", "GroupNorm")
def group_norm(site: Site) -> str:
    """Each group of channels by itself, then scale and shift by channel, and perhaps x · sigmoid(x)."""
    return _group_norm(site, site.input(0))


@lowering("com.microsoft", "SkipGroupNorm")
def skip_group_norm(site: Site) -> list[str | None]:
    """GroupNorm of x + skip + bias, which is the second output."""
    x, skip = site.input(0), site.input(3)
    last = bool(site.attribute("channels_last", 1))
    if site.rank(skip) == 2:
        skip = site.unsqueeze(skip, *((1, 2) if last else (2, 3)))
    total = site.emit("Add", [x, skip])
    if site.has(4):
        total = site.emit("Add", [total, _by_channel(site, site.input(4), last)])
    return [_group_norm(site, total), total]


@lowering("com.microsoft", "GatedRMSNorm")
def gated_norm(site: Site) -> str:
    """The norm of each run of as many features as there are scales, times an activated gate."""
    x, scale, gate = site.input(0), site.input(1), site.input(2)
    width, length = site.size(x, -1), site.size(scale, 0)
    outer = [0] * (site.rank(x) - 1)
    split = site.reshape(site.wide(x), *outer, width // length, length)
    scale, gate = site.wide(scale), site.wide(gate)
    normed = site.emit("SimplifiedLayerNormalization", [split, scale], axis=-1, epsilon=site.attribute("epsilon", 1e-5))
    normed = site.reshape(normed, *outer, width)
    factor = site.emit("Sigmoid", [gate])
    if site.attribute("activation", "silu") != "sigmoid":
        factor = site.emit("Mul", [gate, factor])
    return site.narrowed(site.emit("Mul", [normed, factor]), x)


def _sum(site: Site, x: str, skip: str, bias: int) -> str:
    """x + skip + bias; a skip of one batch stands for all."""
    total = site.emit("Add", [x, skip])
    return site.emit("Add", [total, site.input(bias)]) if site.has(bias) else total


def _statistics(site: Site, x: str, wanted: list[bool]) -> list[str | None]:
    """Mean and 1 / deviation over the axes of the norm, in single precision."""
    if not any(wanted):
        return [None, None]
    wide = site.wide(x)
    mean = site.reduce("ReduceMean", wide, *_axes(site, x))
    rest = site.emit("Sub", [wide, mean])
    return [mean if wanted[0] else None, _deviation(site, rest, x) if wanted[1] else None]


def _deviation(site: Site, rest: str, x: str) -> str:
    """1 / sqrt(mean of squares + epsilon) over the axes that the norm of x is over."""
    square = site.reduce("ReduceMean", site.emit("Mul", [rest, rest]), *_axes(site, x))
    total = site.emit("Add", [square, site.constant(site.attribute("epsilon", 1e-5), "float32")])
    return site.emit("Reciprocal", [site.emit("Sqrt", [total])])


def _axes(site: Site, x: str) -> range:
    rank = site.rank(x)
    return range(site.attribute("axis", -1) % rank, rank)


def _by_channel(site: Site, parameter: str, last: bool) -> str:
    """[C] as it broadcasts against images."""
    return parameter if last else site.unsqueeze(parameter, 1, 2)


def _group_norm(site: Site, x: str) -> str:
    source = site.input(0)
    last, groups = bool(site.attribute("channels_last", 1)), site.attribute("groups")
    wide = site.cast(x, "float32") if site.dtype(source) in ("float16", "bfloat16") else x
    if last:
        wide = site.transpose(wide, 0, 3, 1, 2)
    shape = site.emit("Shape", [wide])
    rows = site.reshape(wide, 0, groups, -1)
    rest = site.emit("Sub", [rows, site.reduce("ReduceMean", rows, 2)])
    square = site.reduce("ReduceMean", site.emit("Mul", [rest, rest]), 2)
    total = site.emit("Add", [square, site.constant(site.attribute("epsilon", 1e-5), "float32")])
    y = site.emit("Reshape", [site.emit("Div", [rest, site.emit("Sqrt", [total])]), shape])
    gamma, beta = (site.unsqueeze(site.wide(site.input(index)), 1, 2) for index in (1, 2))
    y = site.emit("Add", [site.emit("Mul", [y, gamma]), beta])
    if site.attribute("activation"):
        y = site.emit("Mul", [y, site.emit("Sigmoid", [y])])
    if last:
        y = site.transpose(y, 0, 2, 3, 1)
    return site.narrowed(y, source)
