"""Default inputs of a model, made from names, types and shapes, and from the tables that are looked up in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.verify.files import Array, ModelFile
from tpcompile.verify.model_sizes import head_sizes, sliding_window, table_rows

SUM = re.compile(r"\s*\w+(\s*\+\s*\w+)+\s*")


@dataclass(frozen=True)
class Sizes:
    """Sizes of symbolic axes, by what the axis is; `total_spans_past`: masks cover past and new positions."""

    batch: int = 2
    seq: int = 6
    past: int = 4
    encoder: int = 7
    image: int = 32
    channels: int = 3
    total_spans_past: bool = True

    @property
    def total(self) -> int:
        return self.past + self.seq if self.total_spans_past else self.seq

    def without_past_in_masks(self) -> Sizes:
        return replace(self, total_spans_past=False)


TRIALS = {
    "sample": Sizes(),
    "batch 1": Sizes(batch=1),
    "sequence 1": Sizes(seq=1),
    "other lengths": Sizes(batch=1, past=9, seq=2),
    "no past": Sizes(past=0),
}
"""Sizes by the name of the trial; what the source itself cannot run is left out, the first excepted."""


def input_values(model: ModelFile) -> list[onnx.ValueInfoProto]:
    """The inputs a caller must feed, in the model's order."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in stored]


def spelled(value: onnx.ValueInfoProto) -> list[str | int]:
    """A value's shape as its file spells it: ints and symbols, "" where it does not say."""
    return [
        dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "")
        for dim in value.type.tensor_type.shape.dim
    ]


def default_inputs(model: ModelFile, sizes: Sizes, tp: int, seed: int = 0) -> dict[str, Array]:
    """One array per input.

    Token ids fall on both sides of the ends of every rank's share of the vocabulary; masks hold one 0, in the last row.
    """
    rng = np.random.default_rng(seed)
    sizes = replace(sizes, past=sliding_window(model) or sizes.past)
    shapes = input_shapes(model, sizes)
    tables = table_rows(model, {value.name for value in input_values(model)})
    past = sizes.past if any(_is_cache(value) for value in input_values(model)) else 0
    found = {}
    for value in input_values(model):
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        shape, name = shapes[value.name], value.name.lower()
        array: Array
        if "position" in name:
            array = np.broadcast_to(np.arange(past, past + shape[-1] if shape else past), shape)
        elif "mask" in name and len(shape) == 2:
            array = np.ones(shape)
            if shape[1] > 2:
                array[-1, 0 if past else -1] = 0
        elif dtype.kind == "b" or "mask" in name:
            array = np.ones(shape)
        elif dtype.kind in "iu":
            array = _ids(rng, tables.get(value.name, 2), shape, tp)
        else:
            array = rng.standard_normal(shape)
        found[value.name] = np.array(array).astype(dtype)
    return found


def with_negative_ids(model: ModelFile, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The same inputs, every second id counted from the end of its table, as ONNX lets one count."""
    found = dict(feeds)
    for name, rows in table_rows(model, set(feeds)).items():
        ids = feeds[name].reshape(-1).copy()
        ids[::2] -= rows
        found[name] = ids.reshape(feeds[name].shape)
    return found


def with_flags_off(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The same inputs, bools of one element (which choose a branch) turned false."""
    return {
        name: np.zeros_like(array) if array.dtype.kind == "b" and array.size == 1 else array
        for name, array in feeds.items()
    }


def _ids(rng: np.random.Generator, rows: int, shape: tuple[int, ...], tp: int) -> Array:
    edges = [
        0,
        rows - 1,
        *(edge for rank in range(1, tp) for edge in (-(-rows * rank // tp) - 1, -(-rows * rank // tp))),
    ]
    drawn = rng.integers(0, rows, size=shape).reshape(-1)
    ids = rng.permutation(edges)[: drawn.size]
    drawn[: ids.size] = ids
    return np.asarray(rng.permutation(drawn).reshape(shape)).clip(0, rows - 1)


def _is_cache(value: onnx.ValueInfoProto) -> bool:
    return (
        len(value.type.tensor_type.shape.dim) == 4
        and value.type.tensor_type.elem_type in (1, 10, 16)
        and bool(re.search("past|cache", value.name))
    )


def input_shapes(model: ModelFile, sizes: Sizes, given: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
    """The shape of every input under `sizes`; `given` are sizes of symbols that say more."""
    known: dict[str, int] = {}
    for symbol, kind in symbol_kinds(model).items():
        known[symbol] = kind if isinstance(kind, int) else getattr(sizes, kind)
    known |= given or {}
    return {value.name: tuple(_evaluated(symbol, known) for symbol in spelled(value)) for value in input_values(model)}


def symbol_kinds(model: ModelFile) -> dict[str, str | int]:
    """What each symbol of the inputs stands for: a field of `Sizes`, "total", or the number that it can only be."""
    values = input_values(model)
    kinds: dict[str, str | int] = {}
    kinds |= head_sizes(model, {value.name: str(spelled(value)[3]) for value in values if _is_cache(value)})
    sequence_symbols = {spelled(value)[1] for value in values if "ids" in value.name and len(spelled(value)) == 2}
    for value in values:
        for axis, symbol in enumerate(spelled(value)):
            if isinstance(symbol, str) and not SUM.fullmatch(symbol) and symbol not in kinds:
                kinds[symbol] = _kind(value, axis, symbol, symbol in sequence_symbols)
    return kinds


def _kind(value: onnx.ValueInfoProto, axis: int, symbol: str, of_ids: bool) -> str | int:
    name = symbol.lower()
    if symbol.isdigit():
        return int(symbol)
    if axis == 0 or "batch" in name:
        return "batch"
    if "encoder" in name:
        return "encoder"
    if "past" in name or (_is_cache(value) and axis == 2):
        return "past"
    if not of_ids and ("total" in name or "mask" in value.name):
        return "total"
    return {"num_channels": "channels", "height": "image", "width": "image"}.get(name, "seq")


def _evaluated(symbol: str | int, known: Mapping[str, int]) -> int:
    if isinstance(symbol, int):
        return symbol
    if SUM.fullmatch(symbol) and symbol not in known:
        return sum(
            int(part) if part.isdigit() else known.get(part, 1)
            for part in (piece.strip() for piece in symbol.split("+"))
        )
    return known[symbol]


def read_inputs(path: Path, model: ModelFile) -> dict[str, Array]:
    """Inputs from an .npz file. Refuses, all at once, what lacks or has a type or shape that cannot fit (TP503)."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise refuse(
            "TP503",
            str(path),
            f"cannot be read as an .npz file ({type(error).__name__})",
            "Write it with numpy.savez(path, **inputs)",
        ) from error
    raise_all(_input_faults(found, model))
    return {value.name: found[value.name] for value in input_values(model)}


def _input_faults(found: Mapping[str, Array], model: ModelFile) -> Iterator[Fault]:
    for value in input_values(model):
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        shape = spelled(value)
        wanted = f"an array of {dtype.name} with shape {shape}"
        if value.name not in found:
            yield Fault(
                "TP503", f"input {value.name}", f"is not among the given inputs {sorted(found)}", f"Give {wanted}"
            )
            continue
        array = found[value.name]
        fits = array.ndim == len(shape) and all(
            isinstance(want, str) or want == have for want, have in zip(shape, array.shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            yield Fault(
                "TP503",
                f"input {value.name}",
                f"is {array.dtype.name} with shape {list(array.shape)}",
                f"Give {wanted}",
            )
