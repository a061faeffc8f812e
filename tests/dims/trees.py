"""Random trees of dims, and the plain meaning of a cut, spelled out element by element."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from tpcompile.dims.cut import Cut, Mesh, SubAxes
from tpcompile.dims.dim import Dim, blocks, concatenation, leaves, product, root

LARGEST = 200


def leaf(size: int) -> Dim:
    return Dim((size, size))


@st.composite
def trees(draw: st.DrawFn, largest: int = LARGEST) -> Dim:
    """A dim of up to `largest` elements: leaves, products and sums in any nesting."""
    if largest < 4 or draw(st.integers(0, 3)) == 0:
        return leaf(draw(st.integers(1, largest)))
    if draw(st.booleans()):
        left = draw(trees(largest // 2))
        right = draw(trees(largest // max(2, left.size)))
        return product([left, right])
    left = draw(trees(largest // 2))
    right = draw(trees(largest - left.size))
    return concatenation(
        [left, right, *([leaf(1)] if draw(st.booleans()) and left.size + right.size < largest else [])]
    )


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Dim, Cut]:
    """A tree and a cut of it that a planner may make: leaves of one product share no sub-axis, no rank is empty."""
    tree = draw(trees())
    mesh = Mesh(draw(st.integers(1, 8)))
    chance = random.Random(draw(st.integers(0, 10_000)))
    plan: dict[Dim, SubAxes] = {}
    _choose(tree, mesh, set(mesh.all_axes), chance, plan)

    def at_random() -> int:
        return chance.randrange(8)

    return tree, Cut(mesh, plan, {found: (at_random(), at_random()) for found in plan})


def _choose(dim: Dim, mesh: Mesh, free: set[int], chance: random.Random, plan: dict[Dim, SubAxes]) -> set[int]:
    """Cut leaves below `dim` over some of the sub-axes `free`; returns those that were used."""
    top = root(dim)
    if top.kind == "leaf":
        axes = tuple(sorted(axis for axis in free if chance.random() < 0.6))
        if axes and top.most_parts >= mesh.degree(axes):
            plan[top] = axes
            return set(axes)
        return set()
    used: set[int] = set()
    for part in top.parts:
        used |= _choose(part, mesh, free - used if top.kind == "product" else free, chance, plan)
    return used


def held(dim: Dim, cut: Cut, rank: int) -> list[int]:
    """The elements a rank holds, walking over all: held is what lies in the rank's block of every leaf on its way."""
    return [element for element in range(dim.size) if _holds(root(dim), element, cut, rank)]


def _holds(top: Dim, element: int, cut: Cut, rank: int) -> bool:
    if top.kind == "sum":
        for part in top.parts:
            if element < part.size:
                return _holds(root(part), element, cut, rank)
            element -= part.size
    if top.kind == "product":
        for part in reversed(top.parts):
            element, digit = divmod(element, part.size)
            if not _holds(root(part), digit, cut, rank):
                return False
        return True
    axes = cut.of(top)
    degree, coordinate = cut.mesh.degree(axes), cut.mesh.coordinate(rank, axes)
    element //= top.grain
    larger, small = top.most_parts % degree, top.most_parts // degree
    turn, moved = cut.turns.get(top, (0, 0))
    lengths = [small + 1 if (k - turn) % degree < larger else small for k in range(degree)]
    place = (coordinate + moved) % degree
    return sum(lengths[:place]) <= element < sum(lengths[: place + 1])


@st.composite
def counted(draw: st.DrawFn) -> tuple[Dim, Dim, int, Cut]:
    """A tree, a dim that counts the blocks of one of its leaves, their length, and a cut of the tree."""
    tree = draw(trees())
    found = [leaf for leaf in leaves(tree) if leaf.size > 1]
    if not found:
        return draw(counted())
    leaf = draw(st.sampled_from(found))
    lengths = draw(st.lists(st.integers(1, leaf.size - 1), min_size=1, max_size=2))
    counts = [blocks(leaf, length) for length in lengths]
    mesh = Mesh(draw(st.integers(1, 8)))
    plan: dict[Dim, SubAxes] = {}
    _choose(tree, mesh, set(mesh.all_axes), random.Random(draw(st.integers(0, 10_000))), plan)
    return leaf, counts[0], lengths[0], Cut(mesh, plan)
