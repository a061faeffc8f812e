"""What each rank holds of which tensor of the source: written into the rank files, so that states can be merged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpcompile.bundle.checked import Checked
from tpcompile.errors import refuse
from tpcompile.weights import safetensors
from tpcompile.weights.ranges import Part, is_whole, local_shape, whole
from tpcompile.weights.safetensors import Stored

KEY = "tpcompile"
"""Under this key a rank's safetensors file says what it holds, in JSON."""


@dataclass(frozen=True)
class Held:
    """A tensor of a rank's program.

    Attributes:
        source: the name of the source's tensor that it is a part of; None for one that the compiler made.
        shape: the shape of that whole tensor.
        part: what this rank holds of it.
        zeroed: whether it holds zeros instead, because another rank adds its part.
        kept: whether checkpoints hold it: parameters, and buffers that persist.
        also: other names that checkpoints of the source have for the same tensor: of tied weights.
    """

    source: str | None
    shape: tuple[int, ...]
    part: Part
    zeroed: bool = False
    kept: bool = True
    also: tuple[str, ...] = ()


Holdings = Mapping[str, Held]
"""Of one rank, by the names of its program's tensors."""


def to_text(holdings: Holdings) -> str:
    """JSON for the header of a rank's file; an axis is null where all of it is held."""
    said = {}
    for name, held in holdings.items():
        ranges = None if is_whole(held.shape, held.part) else held.part.axes
        said[name] = {"source": held.source, "shape": held.shape, "ranges": ranges, "zeroed": held.zeroed,
                      "kept": held.kept, "also": held.also}  # fmt: skip
    return json.dumps(said, separators=(",", ":"))


def read(path: Path) -> tuple[dict[str, Stored], dict[str, Held]]:
    """Where the tensors of a rank's file lie, and what they are parts of.

    Raises:
        Refused: TP738 the file is damaged; TP453 what it says of its tensors has another form; TP457 it contradicts
            what lies in the file.
    """
    stored, metadata = safetensors.read(path)
    where = str(path)
    if KEY not in metadata:
        raise refuse("TP453", where, f"lacks the key {KEY} in its metadata", "Compile the model again")
    try:
        content = json.loads(metadata[KEY])
    except (ValueError, RecursionError):
        content = None
    holdings = {name: _held(item) for name, item in Checked(content, where, KEY).every()}
    for name, held in holdings.items():
        try:
            fits = name in stored and stored[name].shape == local_shape(held.shape, held.part)
        except ValueError:
            fits = False
        if not fits:
            raise refuse("TP457", where, f"does not hold the part of {name} that it speaks of",
                         "Compile the model again")  # fmt: skip
    return stored, holdings


def _held(item: Checked) -> Held:
    shape = item.sizes("shape")
    ranges = item.get("ranges")
    if ranges is None:
        part = whole(len(shape))
    elif isinstance(ranges, list) and len(ranges) == len(shape) and all(map(_is_axis, ranges)):
        part = Part(tuple(None if axis is None else tuple((low, high) for low, high in axis) for axis in ranges))
    else:
        found = repr(ranges)[:60]
        raise refuse("TP453", item.where, f"{item.path}.ranges should be a list of ranges per axis, found {found}",
                     "Compile the model again")  # fmt: skip
    source = item.text("source") if item.get("source") is not None else None
    return Held(source, shape, part, bool(item.get("zeroed")), bool(item.get("kept")), item.names("also"))


def _is_axis(axis: Any) -> bool:
    return axis is None or (isinstance(axis, list) and all(map(_is_range, axis)))


def _is_range(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(at) is int for at in pair) and 0 <= pair[0] < pair[1]


def names_of_sources(ranks: Sequence[Holdings]) -> dict[str, tuple[str, ...]]:
    """The source's tensors that checkpoints hold, in the order in which ranks list them, with their other names."""
    return {held.source: held.also for holdings in ranks for held in holdings.values()
            if held.kept and held.source is not None}  # fmt: skip
