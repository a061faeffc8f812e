"""Scatters that add up, multiply or choose: as a reduction over all updates, each compared with every place."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcompile.graph.dtypes import numpy_dtype
from tpcompile.targets.lowering.registry import NotLowered, lowering
from tpcompile.targets.lowering.site import Site
from tpcompile.targets.lowering.whole_numbers import move

REDUCTIONS = {"add": ("ReduceSum", "Add"), "mul": ("ReduceProd", "Mul"), "max": ("ReduceMax", "Max"),
              "min": ("ReduceMin", "Min")}  # fmt: skip


@lowering("", "ScatterElements")
def scatter_elements(site: Site) -> list[str | None] | str | None:
    """Along the axis, element i is reduced with the updates [..., J] whose index is i: a mask of [..., J, I]."""
    kind = site.attribute("reduction", "none")
    if kind == "none":
        return move(site)
    x, ids, updates = site.input(0), site.input(1), site.input(2)
    rank = site.rank(x)
    axis = site.attribute("axis", 0) % rank
    sizes, own = site.types.values[x].sizes, site.types.values[ids].sizes
    if any(k != axis and a != b for k, (a, b) in enumerate(zip(sizes or (), own or (), strict=True))):
        raise NotLowered("its indices do not reach all of the other axes")
    order = [*(k for k in range(rank) if k != axis), axis]
    ids, updates = (site.unsqueeze(site.transpose(name, *order), rank) for name in (ids, updates))
    hit = _hits(site, ids, site.dtype(site.input(1)), site.length(x, axis))
    chosen = site.emit("Where", [hit, updates, site.constant(_neutral(kind, site.dtype(x)), site.dtype(x))])
    reduce, combine = REDUCTIONS[kind]
    found = site.reduce(reduce, chosen, rank - 1, keepdims=False)
    back = [order.index(k) for k in range(rank)]
    return site.emit(combine, [x, site.transpose(found, *back)])


@lowering("", "ScatterND")
def scatter_nd(site: Site) -> list[str | None] | str | None:
    """The axes that are indexed become one of I places; updates are J rows: a mask of [J, I] times them."""
    kind = site.attribute("reduction", "none")
    if kind == "none":
        return move(site)
    x, ids, updates = site.input(0), site.input(1), site.input(2)
    if kind != "add" or not site.dtype(x).startswith("float"):
        raise NotLowered(f"it does not add floats: {kind} of {site.dtype(x)}")
    depth, dtype = site.size(ids, -1), site.dtype(ids)
    shape = site.emit("Shape", [x])
    places = site.integers(1)
    place = None
    for k in range(depth):  # row-major
        length = site.slice(shape, 0, k, k + 1)
        one = site.squeeze(site.slice(ids, site.rank(ids) - 1, k, k + 1), site.rank(ids) - 1)
        one = _from_front(site, one, dtype, length)
        place = one if place is None else site.emit("Add", [site.emit("Mul", [place, length]), one])
        places = site.emit("Mul", [places, length])
    width = site.integers(1)  # counted: none may be updated
    for k in range(depth, site.rank(x)):
        width = site.emit("Mul", [width, site.slice(shape, 0, k, k + 1)])
    rows = site.emit("Concat", [places, width], axis=0)
    column = site.reshape(place or "", -1, 1)
    hit = site.cast(_hits(site, column, dtype, places), site.dtype(x))
    values = site.emit("Reshape", [updates, site.emit("Concat", [site.length(column, 0), width], axis=0)])
    added = site.emit("MatMul", [site.transpose(hit, 1, 0), values])
    return site.emit("Reshape", [site.emit("Add", [site.emit("Reshape", [x, rows]), added]), shape])


def _from_front(site: Site, ids: str, dtype: str, length: str) -> str:
    """Indices counted from the end counted from the front, int64."""
    ids = site.cast(ids, "int64") if dtype != "int64" else ids
    below = site.emit("Less", [ids, site.constant(0, "int64")])
    return site.emit("Where", [below, site.emit("Add", [ids, length]), ids])


def _hits(site: Site, ids: str, dtype: str, length: str) -> str:
    """Whether indices [..., 1] are each of the `length` places: [..., I]."""
    zero, one = site.constant(0, "int64"), site.constant(1, "int64")
    every = site.emit("Range", [zero, site.squeeze(length, 0), one])
    return site.emit("Equal", [_from_front(site, ids, dtype, length), every])


def _neutral(kind: str, dtype: str) -> float:
    """What changes nothing in a reduction."""
    if kind in ("add", "mul"):
        return float(kind == "mul")
    known = numpy_dtype(dtype)
    ends: Any = np.iinfo(known) if np.issubdtype(known, np.integer) else np.finfo(known)
    return ends.min if kind == "max" else ends.max  # type: ignore[no-any-return]
