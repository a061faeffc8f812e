"""Rules of lookups: indexing along an axis, and in a table of which each rank holds some rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tpcompile.verify import lattice
from tpcompile.verify.files import Array
from tpcompile.verify.lattice import Free, Lies, Lookup, State
from tpcompile.verify.rules.site import Site, Undecided, moved, summed_over


def gather(site: Site) -> list[State]:
    data, at = site.lies(0), site.attribute("axis", 0) % len(site.lies(0).axes)
    axis, places = data.axes[at], site.values(1)
    index = site.states[1]
    rest = (*data.axes[:at], *data.axes[at + 1 :])
    chosen = [
        np.where(array < 0, array + length, array).astype(np.int64)
        for array, length in zip(places, axis.lengths, strict=True)
    ]
    if places[0].ndim == 0 and (axis.whole or axis.alike) and index is not Free.VARIES:
        return [moved(data, rest)]
    if places[0].ndim == 0 and axis.flat and site.stored(site.nodes[0].input[1]):
        picked = {int(flat[mine]) for flat, mine in zip(axis.flat[1], chosen, strict=True)}
        if len(picked) == 1:  # a part of the axis that all ranks hold
            return [moved(data, rest)]
    if (
        places[0].ndim == 1
        and (site.stored(site.nodes[0].input[1]) or axis.whole)
        and not (isinstance(index, Lies) and not index.whole)
    ):
        return [moved(data, [*data.axes[:at], lattice.select(axis, chosen), *data.axes[at + 1 :]])]
    if axis.whole:
        return [moved(data, [*data.axes[:at], *site.finished(1).axes, *data.axes[at + 1 :]])]
    if index is not Free.VARIES:
        site.fault(
            "TP528",
            f"looks whole {site.nodes[0].input[1]!r} up in {site.nodes[0].input[0]!r}, whose axis {at} is {axis}",
        )
        return [Lies(tuple(lattice.whole(size, site.tp) for size in site.shapes()[0]))]
    if at or axis.flat is None or data.shares:
        raise Undecided("a lookup that is not along axis 0 of a table")
    owners = summed_over(site, axis)
    if len(owners) != 1:
        raise Undecided("a lookup in a table whose rows are not shared out")
    rows = tuple(flat[np.clip(mine, 0, max(len(flat) - 1, 0))] for flat, mine in zip(axis.flat[1], chosen, strict=True))
    asked = _asked(site, axis.flat[0], rows)
    lead = tuple(lattice.whole(size, site.tp) for size in places[0].shape)
    (owner,) = owners
    return [Lies((*lead, *rest), lookup=Lookup(rows, tuple(number or 0 for number in owner), asked))]


def _asked(site: Site, size: int, rows: Sequence[Array]) -> Array | None:
    """The whole indices that the local ones come from, among the integer values before them with as many entries.

    It is the one that ranks answer in most places; of those that are answered alike, the one that is made first.
    """
    best, answered = None, 0
    for candidate in site.asked(site.nodes[0].input[1], rows[0].size):
        ids = np.where(candidate < 0, candidate + size, candidate)
        if not ((ids >= 0) & (ids < size)).all():
            continue
        ids = ids.reshape(rows[0].shape)
        places = int(np.any([ids == mine for mine in rows], axis=0).sum())
        if places and places >= answered:
            best, answered = np.asarray(ids), places
    return best


def gather_nd(site: Site) -> list[State]:
    """Stored indices of one axis select along it; others need the axes they index whole."""
    data, index = site.lies(0), site.states[1]
    places, skip = site.values(1), site.attribute("batch_dims", 0)
    depth = places[0].shape[-1]
    if depth == 1 and not skip and places[0].ndim == 2 and site.stored(site.nodes[0].input[1]):
        axis = data.axes[0]
        chosen = [np.where(p < 0, p + n, p).reshape(-1) for p, n in zip(places, axis.lengths, strict=True)]
        return [moved(data, [lattice.select(axis, chosen), *data.axes[1:]])]
    for axis in data.axes[: skip + depth]:
        site.need_whole(axis, "an indexed axis")
    if index is Free.VARIES:
        raise Undecided("its own indices on each rank")
    return [moved(data, [*site.finished(1).axes[:-1], *data.axes[skip + depth :]])]


def scatter_nd(site: Site) -> list[State]:
    data, index, updates = site.lies(0), site.finished(1), site.lies(2)
    depth, lead = site.values(1)[0].shape[-1], len(index.axes) - 1
    for axis in data.axes[:depth]:
        site.need_whole(axis, "an indexed axis")
    axes = [site.matched(a, b, "updates and data") for a, b in zip(data.axes[depth:], updates.axes[lead:], strict=True)]
    if data.shares != updates.shares:
        raise Undecided("scatters partial values")
    return [moved(data, [*data.axes[:depth], *axes])]
