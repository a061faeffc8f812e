"""Triton's `config.pbtxt`: what it says of a model, in the text form of its protobuf, written without protobuf."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpcompile.bundle.manifest import IOEntry

TYPES = {
    "bool": "TYPE_BOOL", "float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    **{f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""Triton's names of the types that it has; sub-byte types and float8 it has not."""


@dataclass(frozen=True)
class Door:
    """An input or output as Triton declares it; `dims` −1 where the size may vary. A request may leave out optionals.

    `holds_sizes`: an input whose values are sizes of others (TensorRT calls it a shape tensor).
    """

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False
    holds_sizes: bool = False


def door(name: str, entry: IOEntry, *, optional: bool = False, holds_sizes: bool = False) -> Door:
    """What Triton is told of an input or output of the bundle; its type must be in `TYPES`."""
    dims = tuple(size if isinstance(size, int) and size else -1 for size in entry.shape)
    return Door(name, TYPES[entry.dtype], dims, optional, holds_sizes)


def config(
    name: str,
    backend: str,
    inputs: Iterable[Door],
    outputs: Iterable[Door],
    kind: str,
    parameters: Mapping[str, str],
) -> str:
    """The text of a config.pbtxt for one instance of `kind`; shapes are whole, so Triton batches nothing."""
    lines = [
        f"name: {_quoted(name)}",
        f"backend: {_quoted(backend)}",
        "max_batch_size: 0",
        *_list("input", [_door(found) for found in inputs]),
        *_list("output", [_door(found) for found in outputs]),
        f"instance_group [ {{ kind: {kind} count: 1 }} ]",
    ]
    for key, value in parameters.items():
        lines.append(f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}")
    return "\n".join(lines) + "\n"


def _list(field: str, items: Sequence[str]) -> list[str]:
    return [f"{field} [", ",\n".join(f"  {item}" for item in items), "]"]


def _door(found: Door) -> str:
    dims, shape = (found.dims, "") if found.dims else ((1,), " reshape { shape: [ ] }")  # Triton has no rank 0
    marks = (" optional: true" if found.optional else "") + (" is_shape_tensor: true" if found.holds_sizes else "")
    sizes = ", ".join(map(str, dims))
    return f"{{ name: {_quoted(found.name)} data_type: {found.data_type} dims: [ {sizes} ]{shape}{marks} }}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
