"""From floats to numbers of few bits and back."""

from __future__ import annotations

import math

import numpy as np

from tpcompile.targets.lowering.packed import FIRST_OPSET, codes_of_words, signed_codes, words
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Array, Site
from tpcompile.targets.lowering.whole_numbers import NARROW, move, numbers, symmetric


@lowering("", "QuantizeLinear")
@lowering("com.microsoft", "QuantizeLinear")
def quantize(site: Site) -> str | None:
    """round(x / scale) + zero point, within the range of the type."""
    kind = site.dtype(site.node.output[0])
    if kind not in NARROW or (kind == "int8" and site.node.output[0] not in site.floats):
        return None
    x = site.input(0)
    scale, zero = _along(site, site.wide(site.input(1)), x, 1), None
    if site.has(2):
        zero = numbers(site, site.input(2))
        zero = None if site.is_stored(zero) and not site.stored(zero).any() else _along(site, zero, x, 2)
    y = site.emit("Round", [site.emit("Div", [site.wide(x), scale])])
    if site.node.output[0] not in site.floats:
        raise NotLowered("something else computes with such numbers")
    low, high = (site.constant(end, "float32") for end in NARROW[kind])
    return site.emit("Clip", [y if zero is None else site.emit("Add", [y, zero]), low, high])


@lowering("", "DequantizeLinear")
@lowering("com.microsoft", "DequantizeLinear")
def dequantize(site: Site) -> str | None:
    """(x - zero point) · scale; stored weights keep their bits."""
    x, kind = site.input(0), site.dtype(site.input(0))
    if symmetric(site.node, site.types, site.store) and (x not in site.floats or site.is_stored(x)):
        return None
    if site.is_stored(x) and kind in ("int8", "uint8", "int4", "uint4") and _is_weight(site, x):
        return _weight(site, x, kind)
    if kind == "int32":
        y = site.cast(x, "float32")
    elif kind in NARROW:
        y = numbers(site, x)
    else:
        return None
    if site.has(2) and not (site.is_stored(site.input(2)) and not site.stored(site.input(2)).any()):
        y = site.emit("Sub", [y, _along(site, numbers(site, site.input(2)), x, 2)])
    return site.narrowed(site.emit("Mul", [y, _along(site, site.wide(site.input(1)), x, 1)]), site.input(1))


@lowering("", "DynamicQuantizeLinear")
def quantize_dynamically(site: Site) -> list[str | None]:
    """The range of x with 0 in it becomes 0 … 255."""
    y, scale, zero = dynamic(site, site.input(0))
    if any(output in site.read and output not in site.floats for output in (site.output(0), site.output(2))):
        raise NotLowered("something else computes with such numbers")
    return [y, scale, zero]


def dynamic(site: Site, x: str) -> tuple[str, str, str]:
    """x as numbers from 0 to 255, their scale, and their zero point."""
    zero, top = site.constant(0, "float32"), site.constant(255, "float32")
    axes = range(site.rank(x))
    high = site.emit("Max", [site.reduce("ReduceMax", x, *axes, keepdims=False), zero])
    low = site.emit("Min", [site.reduce("ReduceMin", x, *axes, keepdims=False), zero])
    width = site.emit("Sub", [high, low])
    none = site.emit("Equal", [width, zero])
    scale = site.emit("Where", [none, site.constant(1, "float32"), site.emit("Div", [width, top])])
    point = site.emit("Sub", [zero, site.emit("Div", [low, scale])])
    point = site.emit("Round", [site.emit("Clip", [point, zero, top])])
    y = site.emit("Add", [site.emit("Round", [site.emit("Div", [x, scale])]), point])
    return site.emit("Clip", [y, zero, top]), scale, point


@lowering("", "Gather")
def gather(site: Site) -> list[str | None] | str | None:
    """Rows of a stored table of bytes are looked up as int32, four numbers each."""
    table, kind = site.input(0), site.types.dtype(site.input(0))
    if not site.is_stored(table) or kind not in ("uint8", "int8") or site.node.output[0] not in site.floats:
        return move(site)
    rank, axis = site.rank(table), site.attribute("axis", 0)
    *rows, last = (site.size(table, k) for k in range(rank))
    if axis % rank == rank - 1:
        return move(site)
    found = site.emit("Gather", [words(site, table, tuple(rows), last), site.input(1)], axis=axis)
    codes = codes_of_words(site, found, rank - 1 + site.rank(site.input(1)), 8, last, -(-last // 4))
    return signed(site, codes, 8) if kind == "int8" else site.cast(codes, "float32")


@lowering("", "Cast")
def cast(site: Site) -> str | None:
    """To a narrow type: what its bits can hold, as float32."""
    x, y = site.input(0), site.node.output[0]
    if y not in site.floats or (x in site.floats and site.dtype(x) == site.dtype(y)):
        return None
    kind = site.dtype(y)
    if site.dtype(x) == "bool":
        return site.cast(x, "float32")
    low, high = NARROW[kind]
    codes, count = site.cast(numbers(site, x) if site.dtype(x) in NARROW else x, "int64"), high - low + 1
    wrapped = site.emit("Mod", [codes, site.constant(count, "int64")])
    return signed(site, wrapped, count.bit_length() - 1) if low < 0 else site.cast(wrapped, "float32")


def signed(site: Site, codes: str, bits: int) -> str:
    """int64 codes of the bits of signed numbers, as float32: the upper half stands for numbers below 0."""
    half = site.constant(1 << (bits - 1), "int64")
    moved = site.emit("Mod", [site.emit("Add", [codes, half]), site.constant(1 << bits, "int64")])
    return site.cast(site.emit("Sub", [moved, half]), "float32")


def _along(site: Site, parameter: str, x: str, index: int) -> str:
    """A scale or zero point as it broadcasts against x: one, one for each index of an axis, or one for each block."""
    sizes = site.shape(site.input(index))
    if math.prod(size or 0 for size in sizes) == 1:
        return site.reshape(parameter, 1) if len(sizes) > 1 else parameter
    rank = site.rank(x)
    axis, length = site.attribute("axis", 1) % rank, site.attribute("block_size", 0)
    if length:
        block_of_each = np.arange(site.size(x, axis)) // length
        return site.emit("Gather", [parameter, site.constant(block_of_each, "int64")], axis=axis)
    return site.reshape(parameter, -1, *[1] * (rank - 1 - axis))


def _is_weight(site: Site, x: str) -> bool:
    """Whether stored numbers are worth keeping their bits, and TensorRT takes their scales."""
    scale = site.input(1)
    sizes, length, few = site.shape(x), site.attribute("block_size", 0), "4" in site.dtype(x)
    if not site.is_stored(scale) or ((length or few) and site.opset < FIRST_OPSET):
        return False
    whole = not length or (sizes[site.attribute("axis", 1)] or 0) % length == 0
    if math.prod(size or 0 for size in sizes) <= 256 or not whole:
        return False
    return few or bool((site.stored(scale) > 0).all())


def _weight(site: Site, x: str, kind: str) -> str:
    """A stored weight, dequantised from signed codes; what zero points change is added, for a whole block at a time."""
    shape, bits = site.store.array(x).shape, int(kind.strip("uint"))
    axis, length = site.attribute("axis", 1) % len(shape), site.attribute("block_size", 0)
    scale, source = site.stored(site.input(1)), site.input(1)
    offset: Array = np.zeros(())
    if site.has(2):
        offset = offset - site.stored(site.input(2)).astype(np.float64)
    codes = x
    if kind.startswith("uint"):
        codes = signed_codes(site, x, bits, shape, 1)
        offset = offset + 2.0 ** (bits - 1)
    y = site.emit("DequantizeLinear", [codes, source], axis=axis if scale.ndim else None, block_size=length or None)
    if not np.any(offset):
        return y
    correction = site.store.made_once(
        ("correction", x, source, site.input(2) if site.has(2) else None),
        lambda: site.store.add(f"{x}.correction", (offset * scale.astype(np.float64)).astype(scale.dtype)),
    )
    if not length:
        return site.emit("Add", [y, _along(site, correction, x, 1)])
    blocks = site.reshape(y, *shape[:axis], shape[axis] // length, length, *shape[axis + 1 :])
    return site.reshape(site.emit("Add", [blocks, site.unsqueeze(correction, axis + 1)]), *shape)
