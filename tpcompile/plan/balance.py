"""Spread uneven blocks over the ranks, so that no rank gets all the larger ones."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim
from tpcompile.graph.program import Value
from tpcompile.plan.uses import stored_bytes, uncut_leaves, weight_uses

TURNS = 64
"""How many ways to lay out one leaf are tried, at most."""

Stored = tuple[float, list[Dim]]
"""Bytes of a stored tensor, and its dims."""


def spread(analysis: Analysis, cut: Cut, doors: Iterable[Value]) -> Cut:
    """The cut with the larger blocks of uneven leaves on those ranks that hold the least otherwise.

    The leaf with the most bytes goes first, each to where the squares of what ranks hold sum up to the least: the
    largest rank alone says nothing as long as it is not the only one. Where ranks hold the same, the first come first.
    Leaves along which a cache (one of `doors`) is cut stay as they are: all layers' caches lie alike.
    """
    fixed = {leaf for value in doors for dim in analysis.axes[value] or () for leaf in cut.leaves(dim)}
    uneven = [leaf for leaf in cut.axes if leaf not in fixed and not cut.even(leaf)]
    if not uneven:
        return cut
    cut = Cut(cut.mesh, cut.axes, dict.fromkeys(uneven, (0, 0)))
    of_leaf: dict[Dim, list[Stored]] = defaultdict(list)
    total = np.zeros(cut.mesh.tp)
    for value, axes, nodes in weight_uses(analysis):
        stuck = uncut_leaves(analysis, value, nodes)
        held = [dim for dim in axes if cut.leaves(dim) and stuck.isdisjoint(cut.leaves(dim))]
        stored = stored_bytes(value), held
        first = next((leaf for dim in held for leaf in cut.leaves(dim) if leaf in cut.turns), None)
        if first is None:
            total += _held(cut, [stored])
        else:
            of_leaf[first].append(stored)
    for leaf in sorted(uneven, key=lambda leaf: -sum(nbytes for nbytes, _ in of_leaf[leaf])):
        tried = []
        degree = cut.mesh.degree(cut.of(leaf))
        orders = range(degree if leaf.size % leaf.grain else 1)  # a shorter grain makes blocks of more than two sizes
        for moved, turn in itertools.islice(itertools.product(orders, range(degree)), TURNS):
            turned = Cut(cut.mesh, cut.axes, {**cut.turns, leaf: (turn, moved)})
            held_then = np.rint(total + _held(turned, of_leaf[leaf])).tolist()
            tried.append((sum(int(nbytes) ** 2 for nbytes in held_then), moved, turn))
        _, moved, turn = min(tried)
        cut = Cut(cut.mesh, cut.axes, {**cut.turns, leaf: (turn, moved)})
        total += _held(cut, of_leaf[leaf])
    return cut


def _held(cut: Cut, stored: Iterable[Stored]) -> npt.NDArray[np.float64]:
    """Bytes of stored tensors on each rank."""
    found = np.zeros(cut.mesh.tp)
    for nbytes, dims in stored:
        part = np.full(cut.mesh.tp, nbytes)
        for dim in dims:
            part *= [cut.local_size(dim, rank) / dim.size for rank in range(cut.mesh.tp)]
        found += part
    return found
