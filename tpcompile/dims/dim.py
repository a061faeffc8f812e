"""Dimensions as trees: what stands at an axis of a value, shared by union-find.

A dim is a *leaf* (a size), a *product* (row-major: 4096 = heads 32 × head size 128), a *sum* (a concatenation: the
columns of a fused QKV weight) or *blocks* (352 / 64 → 6: how many blocks of a length a dim fills, the last not always
full: the scales of a quantised axis). Axes that an operator relates share one dim; refining it anywhere (a Reshape far
below) refines it everywhere. Sizes are kept once per analysis sample, so that a dim is static iff its sizes agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Sizes = tuple[int, ...]


class Dim:
    """A node of the forest. Use `root`, `factors`, `segments` and `leaves` to look at it, `unify` to relate two.

    `grain`, of a leaf: it is cut at multiples of so many elements only, where all blocks counted over it begin.
    `length`, of blocks: the elements of their one part that each counts.
    """

    __slots__ = ("grain", "kind", "length", "parent", "parts", "sizes")

    def __init__(self, sizes: Sizes, kind: str = "leaf", parts: tuple[Dim, ...] = (), length: int = 1) -> None:
        self.sizes = sizes
        self.kind = kind
        self.parts = parts
        self.length = length
        self.grain = 1
        self.parent: Dim | None = None

    @property
    def static(self) -> bool:
        """Whether the size is one number, whatever the inputs."""
        return all(size == self.sizes[0] for size in self.sizes)

    @property
    def size(self) -> int:
        """The size of a static dim."""
        return self.sizes[0]

    @property
    def most_parts(self) -> int:
        """Into how many parts a static leaf can be cut."""
        return -(-self.size // self.grain)

    @property
    def unit(self) -> bool:
        return all(size == 1 for size in self.sizes)

    def __repr__(self) -> str:
        found = root(self)
        if found.kind == "leaf":
            return str(found.size) if found.static else "~" + "/".join(map(str, found.sizes))
        length = f" / {found.length}" if found.kind == "blocks" else ""
        return f"{found.kind}({', '.join(map(repr, found.parts))}{length})"


def root(dim: Dim) -> Dim:
    """The representative of everything unified with `dim`."""
    top = dim
    while top.parent is not None:
        top = top.parent
    while dim.parent is not None:  # path compression
        dim.parent, dim = top, dim.parent
    return top


def product(parts: Sequence[Dim]) -> Dim:
    """The row-major product of dims; parts of size 1 are dropped."""
    kept = [part for part in parts if not part.unit]
    if len(kept) == 1:
        return kept[0]
    samples = len(parts[0].sizes) if parts else 1
    if not kept:
        return parts[0] if parts else Dim((1,) * samples)
    sizes = [1] * samples
    for part in kept:
        sizes = [a * b for a, b in zip(sizes, part.sizes, strict=True)]
    return Dim(tuple(sizes), "product", tuple(kept))


def concatenation(parts: Sequence[Dim]) -> Dim:
    """The concatenation of dims in order."""
    if len(parts) == 1:
        return parts[0]
    sizes = tuple(sum(column) for column in zip(*(part.sizes for part in parts), strict=True))
    return Dim(sizes, "sum", tuple(parts))


def blocks(counted: Dim, length: int) -> Dim:
    """How many blocks of `length` elements a dim fills, two at least; a leaf is cut only where blocks begin then."""
    top = root(counted)
    if top.kind == "leaf":
        top.grain = math.lcm(top.grain, length)
    return Dim(tuple(-(-size // length) for size in top.sizes), "blocks", (top,), length)


def factors(dim: Dim) -> list[Dim]:
    """The dim as a row-major list of leaves, sums and blocks, units left out."""
    top = root(dim)
    if top.unit:
        return []
    if top.kind != "product":
        return [top]
    return [factor for part in top.parts for factor in factors(part)]


def segments(dim: Dim) -> list[Dim]:
    """The dim as a list of concatenated leaves, products and blocks."""
    top = root(dim)
    if top.kind != "sum":
        return [top]
    return [segment for part in top.parts for segment in segments(part)]


def leaves(dim: Dim) -> Iterator[Dim]:
    """The leaves of the tree from left to right, units included, repeated where they occur twice."""
    top = root(dim)
    if top.kind == "leaf":
        yield top
    else:
        for part in top.parts:
            yield from leaves(part)


def canonical(dim: Dim) -> object:
    """A value that is equal for dims that are the same tree over the same leaves."""
    top = root(dim)
    if top.unit:
        return 1
    if top.kind == "leaf":
        return id(top)
    if top.kind == "product":
        found = tuple(canonical(factor) for factor in factors(top))
        return found[0] if len(found) == 1 else ("product", *found)
    if top.kind == "blocks":
        return ("blocks", top.length, canonical(top.parts[0]))
    return ("sum", *(canonical(segment) for segment in segments(top)))


def identical(a: Dim, b: Dim) -> bool:
    """Whether two dims are the same tree over the same leaves, so that any cut cuts them alike."""
    return root(a) is root(b) or canonical(a) == canonical(b)


def unify(a: Dim, b: Dim) -> bool:
    """Make two dims one where their structures agree, refining leaves as needed.

    Returns False where they cannot be one; then no link was made between the two (leaves may have been refined, which
    changes no meaning). The caller must treat both as needing to be whole.
    """
    a, b = root(a), root(b)
    if a is b:
        return True
    if a.sizes != b.sizes:
        return False
    if a.kind != "leaf" and b.kind == "leaf":
        a, b = b, a
    if a.kind == "leaf":
        if any(leaf is a for leaf in leaves(b)):
            return False
        a.parent = b
        b.grain = math.lcm(a.grain, b.grain)
        return True
    if a.kind != b.kind or a.length != b.length:
        return False
    if a.kind == "blocks":
        agreed = unify(a.parts[0], b.parts[0])
    elif a.kind == "product":
        agreed = _align_factors(factors(a), factors(b))
    else:
        agreed = _align_segments(segments(a), segments(b))
    a, b = root(a), root(b)
    if agreed and a is not b and not any(leaf is a for leaf in leaves(b)):
        a.parent = b
    return agreed


def unify_products(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Make two row-major lists of dims one, as a Reshape relates them."""
    return _align_factors([f for dim in a for f in factors(dim)], [f for dim in b for f in factors(dim)])


def _align_factors(left: list[Dim], right: list[Dim]) -> bool:
    left, right = left[::-1], right[::-1]
    while left and right:
        x, y = root(left.pop()), root(right.pop())
        if x.kind == "product" or y.kind == "product" or x.unit or y.unit:  # refined since the list was made
            left += factors(x)[::-1]
            right += factors(y)[::-1]
            continue
        if x.sizes == y.sizes:
            if not unify(x, y):
                return False
            continue
        if all(q % p == 0 for p, q in zip(x.sizes, y.sizes, strict=True)):
            x, y, left, right = y, x, right, left
        elif not all(p % q == 0 for p, q in zip(x.sizes, y.sizes, strict=True)):
            _share_outer(x, y)
            return False
        # x is the larger one: it must be a leaf, which becomes the product of y and what remains
        if x.kind != "leaf":
            return False
        rest = Dim(tuple(p // q for p, q in zip(x.sizes, y.sizes, strict=True)))
        if any(leaf is x for leaf in leaves(y)):
            return False
        x.kind, x.parts = "product", (y, rest)
        left.append(rest)
    return not left and not right


def _share_outer(x: Dim, y: Dim) -> None:
    """Give two static leaves what they have in common as one outer factor: of 32 heads of 80, 80 blocks of 32, 16."""
    common = math.gcd(*x.sizes, *y.sizes)
    if common > 1 and x.static and y.static and x.kind == y.kind == "leaf":
        outer = Dim((common,) * len(x.sizes))
        for leaf in (x, y):
            rest = Dim(tuple(size // common for size in leaf.sizes))
            leaf.kind, leaf.parts = "product", (outer, rest)


def differing_factors(a: Dim, b: Dim) -> tuple[list[Dim], list[Dim]]:
    """The factors of two dims, without those that both begin or end with if sizes are equal: what must be whole."""
    left, right = factors(a), factors(b)
    if a.sizes != b.sizes:
        return left, right
    for place in (0, -1):
        while left and right and identical(left[place], right[place]):
            left.pop(place)
            right.pop(place)
    return left, right


def _align_segments(left: list[Dim], right: list[Dim]) -> bool:
    left, right = left[::-1], right[::-1]
    while left and right:
        x, y = root(left.pop()), root(right.pop())
        if x.kind == "sum" or y.kind == "sum":
            left += segments(x)[::-1]
            right += segments(y)[::-1]
            continue
        if x.sizes == y.sizes:
            if not unify(x, y):
                return False
            continue
        if all(p < q for p, q in zip(x.sizes, y.sizes, strict=True)):
            x, y, left, right = y, x, right, left
        elif not all(p > q for p, q in zip(x.sizes, y.sizes, strict=True)):
            return False
        if x.kind != "leaf" or any(leaf is x for leaf in leaves(y)):
            return False
        rest = Dim(tuple(p - q for p, q in zip(x.sizes, y.sizes, strict=True)))
        x.kind, x.parts = "sum", (y, rest)
        left.append(rest)
    return not left and not right
