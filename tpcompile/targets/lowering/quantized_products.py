"""Products and convolutions of numbers of 8 bits: in float32 as far as that is exact, and in int32 from there."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tpcompile.targets.lowering.attention_multi_head import Roles, attention_from
from tpcompile.targets.lowering.packed import signed_codes
from tpcompile.targets.lowering.quantize import dynamic
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site
from tpcompile.targets.lowering.whole_numbers import NARROW, centred, numbers, quantised

EXACT = 1 << 24
"""Up to here float32 has every whole number."""
LARGEST = 255
"""Of what is computed: a number of 8 bits less its zero point."""


@lowering("", "MatMulInteger")
def matmul_integer(site: Site) -> str:
    """(A - its zero) · (B - its zero) in int32."""
    return integer_product(site, centred(site, 0, 2), 0, 1, 3)


@lowering("com.microsoft", "MatMulIntegerToFloat")
def matmul_integer_to_float(site: Site) -> str:
    """The product times both scales, and a bias."""
    product = site.cast(integer_product(site, centred(site, 0, 4), 0, 1, 5), "float32")
    scale = site.emit("Mul", [site.input(2), site.input(3)])
    y = site.emit("Mul", [product, scale])
    return site.emit("Add", [y, site.input(6)]) if site.has(6) else y


@lowering("com.microsoft", "DynamicQuantizeMatMul")
def dynamic_quantize_matmul(site: Site) -> str:
    """DynamicQuantizeLinear of A, then the product times both scales, and a bias."""
    a, scale, zero = dynamic(site, site.input(0))
    product = site.cast(integer_product(site, site.emit("Sub", [a, zero]), 0, 1, 3), "float32")
    y = site.emit("Mul", [product, site.emit("Mul", [scale, site.input(2)])])
    return site.emit("Add", [y, site.input(4)]) if site.has(4) else y


@lowering("", "QLinearMatMul")
@lowering("com.microsoft", "QLinearMatMul")
def quantized_matmul(site: Site) -> str:
    """The product in the scale and zero point of the output."""
    product = site.cast(integer_product(site, centred(site, 0, 2), 0, 3, 5), "float32")
    factor = site.emit("Div", [site.emit("Mul", [site.input(1), site.input(4)]), site.input(6)])
    return quantised(site, site.emit("Mul", [product, factor]), site.input(7), site.dtype(site.node.output[0]))


@lowering("com.microsoft", "QGemm")
def quantized_gemm(site: Site) -> str:
    """alpha · A · B + C, of operands that may be transposed; floats where no scale of the output is given."""
    if site.attribute("alpha", 1.0) != 1:
        raise NotLowered("it is scaled besides")
    a = centred(site, 0, 2)
    if site.attribute("transA", 0):
        a = site.transpose(a, 1, 0)
    total = integer_product(site, a, 0, 3, 5, turned=bool(site.attribute("transB", 0)))
    if site.has(6):
        total = site.emit("Add", [total, site.input(6)])
    scale = site.emit("Mul", [site.input(1), site.input(4)])
    if site.has(7):
        factor = site.emit("Div", [scale, site.input(7)])
        y = site.emit("Mul", [site.cast(total, "float32"), factor])
        return quantised(site, y, site.input(8) if site.has(8) else None, site.dtype(site.node.output[0]))
    return site.emit("Mul", [site.cast(total, "float32"), scale])


@lowering("com.microsoft", "QAttention")
def quantized_attention(site: Site) -> list[str | None]:
    """Projections q | k | v of numbers of 8 bits, then attention with floats."""
    if site.attribute("do_rotary", 0) or site.attribute("past_present_share_buffer", 0):
        raise NotLowered("queries and keys turn within it, or its cache is written in place")
    product = site.cast(integer_product(site, centred(site, 0, 6), 0, 1, 7), "float32")
    x = site.emit("Mul", [product, site.emit("Mul", [site.input(3), site.input(4)])])
    x = site.emit("Add", [x, site.input(2)])
    width = site.size(site.input(1), 1) // 3
    return attention_from(site, x, [width] * 3, "float32", Roles(bias=2, mask=5, added=99, past=8, length=99))


@lowering("", "ConvInteger")
def conv_integer(site: Site) -> str:
    """(x - its zero) convolved with (w - its zero), in int32."""
    return _convolved(site, 0, 2, 1, 3)


@lowering("", "QLinearConv")
def quantized_conv(site: Site) -> str:
    """The convolution and its bias in the scale and zero point of the output."""
    total = _convolved(site, 0, 2, 3, 5)
    space = [1] * (site.rank(site.input(3)) - 2)
    if site.has(8):
        total = site.emit("Add", [total, site.reshape(site.input(8), -1, *space)])
    factor = site.emit("Div", [site.emit("Mul", [site.input(1), site.input(4)]), site.input(6)])
    if math.prod(site.size(site.input(4), k) for k in range(site.rank(site.input(4)))) > 1:
        factor = site.reshape(factor, -1, *space)
    y = site.emit("Mul", [site.cast(total, "float32"), factor])
    return quantised(site, y, site.input(7), site.dtype(site.node.output[0]))


def integer_product(site: Site, a: str, index: int, weight: int, zero: int, *, turned: bool = False) -> str:
    """float32 whole numbers a [..., M, K], from operand `index`, times (operand `weight` - its zero point): int32.

    A stored weight is of signed codes that keep their 8 bits; what its zero point changes is one number per column,
    times the sum of a row of a.
    """
    name = site.input(weight)
    if site.is_stored(name) and site.dtype(name) in ("int8", "uint8") and site.rank(name) > 1:
        rows = site.rank(name) - (1 if turned else 2)
        b, offset, largest = _stored_factor(site, name, zero)
    else:
        rows = site.rank(name) - (1 if turned else 2)
        b, offset, largest = centred(site, weight, zero), None, LARGEST
    if turned:
        b = site.transpose(b, *range(site.rank(name) - 2), site.rank(name) - 1, site.rank(name) - 2)
    length, inner = site.shape(name)[rows], site.rank(name) - 2
    last = site.rank(site.input(index)) - 1
    total = _in_parts(site, a, b, length, (last, inner), EXACT // (LARGEST * largest))
    if offset is None:
        return total
    sums = site.cast(site.reduce("ReduceSum", a, last), "int32")
    return site.emit("Add", [total, site.emit("Mul", [sums, offset])])


def _in_parts(site: Site, a: str, b: str, length: int | None, axes: tuple[int, int], step: int) -> str:
    """int32 product of whole numbers, `length` of them along `axes` of a and b, of which float32 sums up `step`.

    Where the length varies, b is taken apart into 16 · high + low, for sums of up to 4112.
    """
    if length is None:
        sixteen = site.constant(16, "float32")
        high = site.emit("Floor", [site.emit("Div", [b, sixteen])])
        low = site.emit("Sub", [b, site.emit("Mul", [high, sixteen])])
        highs, lows = (site.cast(site.emit("MatMul", [a, part]), "int32") for part in (high, low))
        return site.emit("Add", [site.emit("Mul", [highs, site.constant(16, "int32")]), lows])
    known = length

    def part(start: int) -> str:
        if known <= step:
            return site.emit("MatMul", [a, b])
        ends = start, min(start + step, known)
        return site.emit("MatMul", [site.slice(a, axes[0], *ends), site.slice(b, axes[1], *ends)])

    return _summed(site, part, range(0, known, step))


def _convolved(site: Site, x: int, x_zero: int, weight: int, zero: int) -> str:
    """int32 sums of a convolution; channels are summed in as many parts as float32 wants."""
    image, name = centred(site, x, x_zero), site.input(weight)
    if site.has(zero) and site.rank(site.input(zero)) == 1 and site.size(site.input(zero), 0) > 1:
        points = site.reshape(numbers(site, site.input(zero)), -1, *[1] * (site.rank(name) - 1))
        kernel = site.emit("Sub", [numbers(site, name), points])
    else:
        kernel = centred(site, weight, zero)
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {each: site.attribute(each) for each in names}
    channels = site.size(name, 1)
    step = max(1, EXACT // (LARGEST * LARGEST) // math.prod(site.size(name, k) for k in range(2, site.rank(name))))
    if channels > step and site.attribute("group", 1) != 1:
        raise NotLowered("its groups are too wide for exact sums")

    def part(start: int) -> str:
        if channels <= step:
            return site.emit("Conv", [image, kernel], **attributes)
        stop = min(start + step, channels)
        parts = [site.slice(each, 1, start, stop) for each in (image, kernel)]
        return site.emit("Conv", parts, **attributes)

    return _summed(site, part, range(0, channels, step))


def _summed(site: Site, part: Callable[[int], str], starts: range) -> str:
    total = None
    for start in starts:
        found = site.cast(part(start), "int32")
        total = found if total is None else site.emit("Add", [total, found])
    return total or ""


def _stored_factor(site: Site, name: str, zero: int) -> tuple[str, str | None, int]:
    """Signed codes of a stored weight as float32, what to add to them (int32) if not nothing, their range."""
    one, kind = site.constant(1, "float32"), site.dtype(name)
    codes = name if kind == "int8" else signed_codes(site, name, 8, site.store.array(name).shape, 1)
    offset = np.zeros((), np.int32) if kind == "int8" else np.full((), 128, np.int32)
    if site.has(zero):
        points = site.stored(site.input(zero)).astype(np.int32)
        offset = offset - (points.reshape(()) if points.size == 1 else points)
    given = site.constant(offset, "int32") if offset.any() else None
    return site.emit("DequantizeLinear", [codes, one]), given, -NARROW["int8"][0]
