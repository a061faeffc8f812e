"""Weights of few bits: as the signed numbers that TensorRT keeps packed in an engine, and unpacked where looked up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Array, Site

PART_BYTES = 1 << 24
"""How much of a weight is transformed at a time."""
FIRST_OPSET = 21
"""Of ai.onnx: the first with DequantizeLinear of 4 bits and in blocks."""


def signed_codes(
    site: Site, weight: str, bits: int, shape: tuple[int, ...], block_bytes: int, signs: Array | None = None
) -> str:
    """A stored weight of unsigned codes in bytes, as signed ones: each less half its range, of at least 4 bits.

    TensorRT knows signed numbers of 4 and 8 bits without zero points; codes of 2 bits are kept in 4.

    Args:
        shape: of the codes.
        block_bytes: how many bytes make a block.
        signs: of each block, in order: -1 for one that holds -1 - code instead, 0 for one of zeros.
    """
    if bits not in (2, 4, 8):
        raise NotLowered(f"its weights have {bits} bits")
    if bits < 8 and site.opset < FIRST_OPSET:
        raise NotLowered(f"there are no weights of 4 bits before opset {FIRST_OPSET}")
    data = site.store.bytes_of(_stored(site, weight)).reshape(-1, block_bytes)
    step = max(1, PART_BYTES // block_bytes)

    def parts() -> Iterator[Array]:
        for start in range(0, len(data), step):
            part = data[start : start + step]
            if bits == 2:
                yield _widened(part.reshape(-1))
                continue
            part = part ^ np.uint8(0x88 if bits == 4 else 0x80)
            if signs is not None:
                sign = signs[start : start + step, None]
                part = np.where(sign < 0, ~part, np.where(sign == 0, np.uint8(0), part))
            yield part

    def make() -> str:
        return site.store.add_in_parts(f"{weight}.signed", "int8" if bits == 8 else "int4", shape, parts())

    return site.store.made_once(("signed", weight, bits, shape, signs is not None and signs.tobytes()), make)


def _widened(packed: Array) -> Array:
    """Codes of 2 bits less 2, as signed numbers of 4 bits."""
    codes = (packed[:, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    nibbles = (codes - np.uint8(2)) & np.uint8(15)
    return (nibbles[:, 0::2] | (nibbles[:, 1::2] << np.uint8(4))).reshape(-1)


def unpacked(data: Array, bits: int) -> Array:
    """The codes in bytes, the lowest bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (data[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)


def words(site: Site, table: str, rows: tuple[int, ...], row_bytes: int) -> str:
    """A stored table of bytes as int32 [*rows, row_bytes / 4], for TensorRT looks nothing up among bytes.

    The same bytes stand for both unless a row has to be filled up.
    """
    count = -(-row_bytes // 4)
    if row_bytes % 4 == 0:
        return site.store.view(_stored(site, table), "int32", (*rows, count))
    data = site.store.bytes_of(_stored(site, table)).reshape(-1, row_bytes)

    def parts() -> Iterator[Array]:
        step = max(1, PART_BYTES // row_bytes)
        for start in range(0, len(data), step):
            yield np.pad(data[start : start + step], ((0, 0), (0, 4 * count - row_bytes)))

    return site.store.made_once(
        ("words", table, rows),
        lambda: site.store.add_in_parts(f"{table}.words", "int32", (*rows, count), parts()),
    )


def codes_of_words(site: Site, x: str, rank: int, bits: int, length: int, count: int) -> str:
    """int32 [..., count] of `rank` axes as the int64 codes [..., length] whose bits they hold, the lowest first."""
    wide = site.cast(x, "int64")
    above = site.emit("Add", [wide, site.constant(1 << 32, "int64")])
    wide = site.emit("Where", [site.emit("Less", [wide, site.constant(0, "int64")]), above, wide])
    powers = site.constant([1 << shift for shift in range(0, 32, bits)], "int64")
    shifted = site.emit("Div", [site.unsqueeze(wide, rank), powers])
    codes = site.emit("Mod", [shifted, site.constant(1 << bits, "int64")])
    codes = site.reshape(codes, *[0] * (rank - 1), count * 32 // bits)
    return codes if length == count * 32 // bits else site.slice(codes, rank - 1, 0, length)


@lowering("", "Reshape")
def reshape(site: Site) -> str | None:
    """A stored weight of bytes in another shape is another stored weight: TensorRT computes nothing on bytes."""
    x, y, shape = site.input(0), site.node.output[0], site.types.shape(site.node.output[0])
    if not site.is_stored(x) or site.dtype(x) not in ("uint8", "int8", "uint4", "int4") or shape is None:
        return None
    sizes = [size for size in shape if size is not None]
    return site.store.view_as(y, x, site.dtype(x), sizes) if len(sizes) == len(shape) else None


def _stored(site: Site, name: str) -> str:
    if not site.is_stored(name):
        raise NotLowered(f"'{name}' is computed, not stored")
    return name
