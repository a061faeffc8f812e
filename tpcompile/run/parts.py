"""Whole arrays and a rank's parts of them: checking inputs, cutting them, joining outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tpcompile.bundle.manifest import Manifest, Placement
from tpcompile.errors import Fault, raise_all
from tpcompile.run.mpi import World
from tpcompile.run.tensors import TYPES, Array


def check_feeds(manifest: Manifest, feeds: Mapping[str, Array]) -> None:
    """Refuse (TP621), all at once, inputs that are missing, unknown, or not of the model's type and fixed sizes.

    As in onnxruntime, two axes of one symbol may differ: exporters use symbols loosely.
    """
    raise_all(Fault("TP621", f"input {name}", fact, remedy) for name, fact, remedy in _misfits(manifest, feeds))


def _misfits(manifest: Manifest, feeds: Mapping[str, Array]) -> Iterator[tuple[str, str, str]]:
    for name in feeds.keys() - manifest.inputs.keys():
        yield name, "is no input of this model", f"It has {', '.join(manifest.inputs)}"
    for name, entry in manifest.inputs.items():
        if name not in feeds:
            yield name, "is missing", f"Give {entry.dtype} {list(entry.shape)}"
            continue
        array, wanted = feeds[name], f"Give {entry.dtype} {list(entry.shape)}"
        if array.dtype != np.dtype(TYPES[entry.dtype][1]):
            yield name, f"is of type {array.dtype}", wanted
        if array.ndim != len(entry.shape):
            yield name, f"has shape {list(array.shape)}", wanted
            continue
        for axis, (size, declared) in enumerate(zip(array.shape, entry.shape, strict=True)):
            if isinstance(declared, int) and declared not in (0, size):  # 0: the source does not say
                yield name, f"has {size} along axis {axis}", wanted


def cut(array: Array, place: Placement, rank: int) -> Array:
    """The part of `array` that `rank` holds."""
    pieces = [np.take(array, range(low, high), axis=place.axis) for low, high in place.ranges[rank]]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=place.axis)


def join(world: World, mine: Array, place: Placement) -> Array:
    """The whole array, on every rank, from the parts of all ranks (which may differ in size)."""
    shape = list(mine.shape)
    shape[place.axis] = place.global_size
    whole = np.empty(shape, mine.dtype)
    for rank in range(world.size):
        shape[place.axis] = place.local_size(rank)
        part = np.ascontiguousarray(mine) if rank == world.rank else np.empty(shape, mine.dtype)
        world.broadcast(part, root=rank)
        indices = np.concatenate([np.arange(low, high) for low, high in place.ranges[rank]])
        whole[(slice(None),) * place.axis + (indices,)] = part
    return whole
