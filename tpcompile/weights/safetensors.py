"""safetensors files: eight bytes that say how long the header is, a header in JSON, then the tensors without gaps."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpcompile.errors import Refused, refuse
from tpcompile.weights.layout import round_up
from tpcompile.weights.source import FileBytes, Source
from tpcompile.weights.widths import bits_of, bytes_of

NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
}  # fmt: skip
"""The format's names of types and the standard ones."""
SPELLED = {name: spelled for spelled, name in NAMES.items()}
METADATA = "__metadata__"
LONGEST_HEADER = 100_000_000
"""Bytes; the library reads no longer ones either."""
AGAIN = "Copy the file again, or save it again"


@dataclass(frozen=True)
class Stored:
    """A tensor: `dtype` its standard name ("bfloat16"), `source` its bytes, row-major and little-endian."""

    dtype: str
    shape: tuple[int, ...]
    source: Source


def read(path: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """Where the tensors of a file lie, and its metadata; no tensor is read.

    Raises:
        Refused: TP738 the file cannot be read, is damaged, or holds types that are not known.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\xff"))
            if length > min(size - 8, LONGEST_HEADER):
                raise damaged(path, "its header is longer than the file")
            header = json.loads(file.read(length))
    except OSError as error:
        absent = isinstance(error, FileNotFoundError)
        fact = "there is no such file" if absent else f"cannot be read: {error.strerror}"
        raise refuse("TP738", str(path), fact, "Put the safetensors file there, or save it again") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, "its header is no JSON") from error
    if not isinstance(header, dict):
        raise damaged(path, "its header is no JSON object")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(path, "its metadata are no texts")
    return {name: _stored(path, name, entry, 8 + length, size) for name, entry in header.items()}, metadata


def _stored(path: Path, name: str, entry: Any, start: int, size: int) -> Stored:
    """A checked entry of the header; the tensors' bytes go from `start` to `size` of the file."""
    if not isinstance(entry, dict) or not _sizes(entry.get("shape")) or not _sizes(entry.get("data_offsets")):
        raise damaged(path, f"its header does not say where tensor {name!r} lies")
    spelled, shape, offsets = entry.get("dtype"), tuple(entry["shape"]), entry["data_offsets"]
    if spelled not in NAMES:
        raise refuse("TP738", str(path), f"tensor {name!r} has the type {spelled!r}, which is not known here",
                     "Save it in a type that torch has")  # fmt: skip
    needed = bytes_of(bits_of(NAMES[spelled], name), shape)
    if len(offsets) != 2 or offsets[1] - offsets[0] != needed or start + offsets[1] > size:
        raise damaged(path, f"the bytes of tensor {name!r} are not all there")
    return Stored(NAMES[spelled], shape, FileBytes(path, start + offsets[0], needed))


def _sizes(found: Any) -> bool:
    return isinstance(found, list) and all(type(size) is int and size >= 0 for size in found)


def damaged(path: Path, fact: str) -> Refused:
    """TP738 for a file that is not what its header says."""
    return refuse("TP738", str(path), f"is no whole safetensors file: {fact}", AGAIN)


@dataclass(frozen=True)
class Arrangement:
    """How a file is to be written: its `header`, where in it each tensor begins and ends, and its `size`, in bytes."""

    header: bytes
    places: Mapping[str, tuple[int, int]]
    size: int


def arrange(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str]) -> Arrangement:
    """Places for `tensors` (type and shape by name).

    Those of whole pages come first, from a page's beginning: they can be written past the page cache and mapped. The
    others follow by the size of their elements, so that each begins at a multiple of it.

    Raises:
        Refused: TP403 a type that safetensors has not.
    """
    needs = {}
    for name, (dtype, shape) in tensors.items():
        if dtype not in SPELLED:
            remedy = "Keep this tensor in another type: safetensors cannot store it"
            raise refuse("TP403", name, f"there is no type {dtype!r} in safetensors files", remedy)
        bits = bits_of(dtype, name)
        needs[name] = (bits, bytes_of(bits, tuple(shape)))
    paged = [name for name, (_, nbytes) in needs.items() if nbytes == round_up(nbytes)]
    rest = sorted(needs.keys() - set(paged), key=lambda name: (-needs[name][0], name))
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for name in [*paged, *rest]:
        dtype, shape = tensors[name]
        places[name], end = (end, end + needs[name][1]), end + needs[name][1]
        header[name] = {"dtype": SPELLED[dtype], "shape": list(shape), "data_offsets": places[name]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(round_up(8 + len(text)) - 8)  # the format pads with spaces
    start = 8 + len(text)
    placed = {name: (start + first, start + last) for name, (first, last) in places.items()}
    return Arrangement(struct.pack("<Q", len(text)) + text, placed, start + end)
