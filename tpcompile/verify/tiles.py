"""Do the weights of all ranks tile each source tensor bit for bit? And which part of it does each rank hold?

A stored tensor of a rank bears its source's name. It is the whole source tensor, a selection of indices along one or
more axes, or zeros (a bias that another rank adds). Rank files may say which (`tpcompile.ranges`, `tpcompile.zeroed`
in a tensor's metadata); what they say is a hint for where to look, the bytes decide.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tpcompile.errors import Fault, Refused
from tpcompile.verify.branches import walk
from tpcompile.verify.files import REWRITE, Array, Bundle, ModelFile

BLOCK_BYTES = 16 << 20
SMALL = 4096
"""Elements up to which a constant may be renamed, folded or made local: the other checks see the effect."""


@dataclass(frozen=True)
class Part:
    """What one rank holds of a tensor: per axis the global indices in order (-1: padding), or zeros in its stead."""

    indices: tuple[Array, ...]
    zeroed: bool = False


@dataclass
class Tiling:
    """Per source tensor the part of each rank, and what was found wrong."""

    parts: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    checked_bytes: int = 0


class _Mismatch(Exception):
    """A rank's tensor is no part of the source's; the text says where."""


def check_tiles(bundle: Bundle, source: ModelFile) -> Tiling:
    """Compare every stored tensor of every rank with the source's that it is a part of."""
    found = Tiling()
    held: set[str] = set()
    for name in dict.fromkeys(name for model in bundle.ranks for name in model.tensors):
        holders = [rank for rank, model in enumerate(bundle.ranks) if name in model.tensors]
        origin = _origin(bundle.ranks[holders[0]].tensors[name], name, source)
        if origin in source.inner and math.prod(source.tensors[origin].dims) <= SMALL:
            origin = None  # a constant of a branch: other branches, moved out, may have had one of that name
        if origin is None:
            _check_present(bundle, name, holders, found)
        elif len(holders) < bundle.tp:
            found.faults.append(Fault("TP512", name, f"is stored by ranks {holders} only", REWRITE))
        else:
            held.add(origin)
            _check_tensor(bundle, source, name, origin, found)
    for name, tensor in source.tensors.items():
        if name not in held and math.prod(tensor.dims) > SMALL:
            _check_missing(source, name, held, found)
    return found


def _origin(tensor: onnx.TensorProto, name: str, source: ModelFile) -> str | None:
    """The source tensor that a stored one is a part of; further parts of one tensor are named NAME.1, NAME.2, …"""
    for said in [entry.value for entry in tensor.metadata_props if entry.key == "tpcompile.source"]:
        return said if said in source.tensors else None
    if name in source.tensors:
        return name
    base, _, number = name.rpartition(".")
    return base if number.isdigit() and base in source.tensors else None


def _check_present(bundle: Bundle, name: str, holders: list[int], found: Tiling) -> None:
    """A tensor that the source does not have (an offset, an order): its bytes must be there."""
    for rank in holders:
        try:
            bundle.ranks[rank].array(name)
        except Refused as refused:
            found.faults.extend(refused.faults)


def _check_tensor(bundle: Bundle, source: ModelFile, name: str, origin: str, found: Tiling) -> None:
    stored = source.array(origin)
    whole = _bits(stored)
    parts: list[Part] = []
    for rank, model in enumerate(bundle.ranks):
        try:
            if model.tensors[name].data_type != source.tensors[origin].data_type:
                raise _Mismatch("has another type than in the source")
            local = _bits(model.array(name))
            found.checked_bytes += local.nbytes
            parts.append(_part(whole, local, {entry.key: entry.value for entry in model.tensors[name].metadata_props}))
        except _Mismatch as mismatch:
            if name != origin and whole.size <= SMALL:
                return  # another constant of a like name
            if stored.dtype.kind in "iub" and whole.ndim <= 1 and whole.size <= SMALL:
                found.warnings.append(f"{name} on rank {rank} {mismatch}: taken for a shape made local")
            else:
                found.faults.append(Fault("TP510", f"{name} on rank {rank}", str(mismatch), REWRITE))
            return
        except Refused as refused:
            found.faults.extend(refused.faults)
            return
    fault = _uncovered(name, whole.shape, parts)
    if fault:
        found.faults.append(fault)
    else:
        found.parts[name] = tuple(parts)


def _check_missing(source: ModelFile, name: str, held: set[str], found: Tiling) -> None:
    """A large tensor that no rank stores: fine where nothing reads it or an equal one (also transposed) is stored."""
    if not any(name in node.input for node in walk(source.graph)):
        return
    mine = source.array(name)
    for other in held:
        if source.tensors[other].data_type == source.tensors[name].data_type and other != name:
            theirs = source.array(other)
            if any(way.shape == mine.shape and np.array_equal(_bits(mine), _bits(way)) for way in (theirs, theirs.T)):
                return
    found.faults.append(Fault("TP512", name, "is stored by no rank, nor is an equal tensor", REWRITE))


def _bits(array: Array) -> Array:
    """The same memory as unsigned integers, so that NaN equals NaN and -0 differs from 0."""
    if array.dtype.itemsize in (1, 2, 4, 8) and array.dtype.kind not in "OSU":
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _part(whole: Array, local: Array, metadata: dict[str, str]) -> Part:
    """Which part of `whole` a rank's tensor is. Raises _Mismatch where it is none."""
    if local.ndim != whole.ndim:
        raise _Mismatch(f"has shape {list(local.shape)}, the source's is {list(whole.shape)}")
    full = tuple(np.arange(size) for size in whole.shape)
    if "tpcompile.ranges" in metadata:
        try:
            indices = _declared(json.loads(metadata["tpcompile.ranges"]), full, local.shape)
        except (ValueError, TypeError) as error:
            raise _Mismatch(f"declares ranges that cannot be read ({error})") from error
        if metadata.get("tpcompile.zeroed") == "1":
            if local.any():
                raise _Mismatch("should be zeros, as the file says, but is not")
            return Part(indices, zeroed=True)
        _compare(whole, local, indices)
        return Part(indices)
    same = whole.shape == local.shape
    if same and _equal(whole, local):
        return Part(full)
    if not local.any():
        return Part(tuple(index[: local.shape[axis]] for axis, index in enumerate(full)), zeroed=True)
    cut = [axis for axis, size in enumerate(local.shape) if size != whole.shape[axis]]
    if same:
        _compare(whole, local, full)  # it differs somewhere: say where
    indices_found = list(full)
    if len(cut) == 1:
        indices_found[cut[0]] = _matched_slices(whole, local, cut[0])
    else:
        for axis, index in zip(cut, _matched_lines(whole, local, cut), strict=True):
            indices_found[axis] = index
    _compare(whole, local, tuple(indices_found))
    return Part(tuple(indices_found))


def _declared(
    ranges: list[list[list[int]] | None], full: tuple[Array, ...], local_shape: tuple[int, ...]
) -> tuple[Array, ...]:
    indices = []
    if len(ranges) != len(full):
        raise _Mismatch(f"declares ranges for {len(ranges)} axes, it has {len(full)}")
    for axis, (mine, whole) in enumerate(zip(ranges, full, strict=True)):
        index = whole if mine is None else np.concatenate([np.arange(start, stop) for start, stop in mine])
        if index.size > local_shape[axis] or (index.size and (index.min() < 0 or index.max() >= whole.size)):
            raise _Mismatch(
                f"declares ranges {mine} on axis {axis}, but has shape {list(local_shape)} of {whole.size} indices"
            )
        indices.append(np.concatenate([index, np.full(local_shape[axis] - index.size, -1)]))
    return tuple(indices)


def _blocks(shape: tuple[int, ...], itemsize: int) -> Iterator[slice]:
    """Slices of axis 0 of about 16 MB."""
    rows = max(1, BLOCK_BYTES // max(1, math.prod(shape[1:]) * itemsize))
    yield from (slice(start, start + rows) for start in range(0, shape[0] if shape else 0, rows))


def _equal(a: Array, b: Array) -> bool:
    return (
        bool(a == b) if not a.ndim else all(np.array_equal(a[rows], b[rows]) for rows in _blocks(a.shape, a.itemsize))
    )


def _compare(whole: Array, local: Array, indices: tuple[Array, ...]) -> None:
    """Raise _Mismatch with the first index whose bits are not the source's; padding must be zero."""
    if not local.ndim:
        if local != whole:
            raise _Mismatch("is another number than in the source")
        return
    for rows in _blocks(local.shape, local.itemsize):
        mine, first = np.asarray(local[rows]), indices[0][rows]
        wanted = _taken(whole, (first, *indices[1:]))
        differs = mine != wanted
        if differs.any():
            at = [int(i) for i in np.unravel_index(int(np.argmax(differs)), mine.shape)]
            came = [int(index[i]) for index, i in zip((first, *indices[1:]), at, strict=True)]
            at[0] += rows.start
            raise _Mismatch(f"differs from the source first at index {at}, which should be the source's {came}")


def _taken(whole: Array, indices: tuple[Array, ...]) -> Array:
    """whole[np.ix_(*indices)], axes that are taken in one run sliced; index -1 gives zeros."""
    view = whole
    for axis in range(whole.ndim):
        index = indices[axis]
        lead: tuple[Any, ...] = (slice(None),) * axis
        if index.size and index[0] >= 0 and np.array_equal(index, np.arange(index[0], index[0] + index.size)):
            view = view[(*lead, slice(int(index[0]), int(index[0]) + index.size))]
        else:
            view = np.take(view, np.maximum(index, 0), axis=axis)
            if (index < 0).any():
                view[(*lead, index < 0)] = 0
    return view


def _hashes(array: Array, axis: int) -> Array:
    """A 64-bit hash per index of `axis`; 0 for slices of zeros. Collisions do no harm: bytes are compared later."""
    rest = array.shape[:axis] + array.shape[axis + 1 :]
    weights = np.random.default_rng(1).integers(1, 2**63, size=math.prod(rest), dtype=np.uint64).reshape(rest)
    found = np.zeros(array.shape[axis], np.uint64)
    letters = "abcdefgh"[: array.ndim]
    other = letters[:axis] + letters[axis + 1 :]
    for rows in _blocks(array.shape, array.itemsize):
        block = np.asarray(array[rows]).astype(np.uint64)
        if axis == 0:
            found[rows] = np.einsum(f"{letters},{other}->{letters[axis]}", block, weights)
        else:
            found += np.einsum(f"{letters},{other}->{letters[axis]}", block, weights[rows])
    return found


def _matched_slices(whole: Array, local: Array, axis: int) -> Array:
    """Global index of every local index of `axis`, by content; among equal slices the one that continues the run."""
    hashes = _hashes(whole, axis)
    return _in_order(hashes, _hashes(local, axis), axis)


def _in_order(whole: Array, local: Array, axis: int) -> Array:
    places: dict[int, list[int]] = {}
    for at, value in enumerate(whole.tolist()):
        places.setdefault(value, []).append(at)
    found, last = [], -1
    for at, value in enumerate(local.tolist()):
        candidates = places.get(value, [-1] if value == 0 else [])
        if not candidates:
            raise _Mismatch(f"holds at index {at} of axis {axis} what the source holds at no index of that axis")
        after = [c for c in candidates if c > last]
        last = last + 1 if last + 1 in candidates else min(after, default=candidates[0])
        found.append(last)
    return np.array(found, dtype=np.int64)


def _matched_lines(whole: Array, local: Array, cut: list[int]) -> list[Array]:
    """As _matched_slices where several axes are cut: from each place that holds the first element, along each axis."""
    corner = local[(0,) * local.ndim]
    starts = np.argwhere(np.asarray(whole) == corner)
    starts = starts[(starts[:, [axis for axis in range(whole.ndim) if axis not in cut]] == 0).all(axis=1)]
    reason = _Mismatch("has a first element that the source lacks")
    for start in starts[:1000]:
        try:
            lines = []
            for axis in cut:
                along: tuple[Any, ...] = tuple(slice(None) if at == axis else int(i) for at, i in enumerate(start))
                first: tuple[Any, ...] = tuple(slice(None) if at == axis else 0 for at in range(local.ndim))
                mine = np.asarray(local[first])
                line = np.asarray(whole[along])
                lines.append(int(start[axis]) + _in_order(line[int(start[axis]) :], mine, axis))
            indices = [np.arange(size) for size in whole.shape]
            for axis, line in zip(cut, lines, strict=True):
                indices[axis] = line
            _compare(whole, local, tuple(indices))
            return lines
        except _Mismatch as mismatch:
            reason = mismatch
    raise reason


def _uncovered(name: str, shape: tuple[int, ...], parts: list[Part]) -> Fault | None:
    """The first element that no rank holds. Indices that the same ranks hold are one class: one stands for all."""
    if math.prod(shape) == 0:
        return None
    classes = []
    for axis, size in enumerate(shape):
        holders = np.zeros((size, len(parts)), bool)
        for rank, part in enumerate(parts):
            if not part.zeroed:
                holders[part.indices[axis][part.indices[axis] >= 0], rank] = True
        classes.append(np.unique(holders, axis=0, return_index=True))
    lacking = []
    for box in np.ndindex(*(len(kinds) for kinds, _ in classes)):
        holders = np.array([not part.zeroed for part in parts])
        for (kinds, _), kind in zip(classes, box, strict=True):
            holders &= kinds[kind]
        if not holders.any():
            lacking.append([int(first[kind]) for (_, first), kind in zip(classes, box, strict=True)])
    if not lacking:
        return None
    fact = f"has an element that no rank holds: index {min(lacking)} of shape {list(shape)}"
    return Fault("TP511", name, fact, REWRITE)
