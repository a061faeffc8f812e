"""Operators that sum over a dim of two operands: where it is cut, each rank has a partial sum."""

from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import Dim
from tpcompile.dims.notation import parse
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import NotCovered, Relation

_MATMUL = {
    (False, False): parse("... m k, ... k n -> ... m n"),
    (True, False): parse("k, ... k n -> ... n"),
    (False, True): parse("... m k, k -> ... m"),
    (True, True): parse("k, k ->"),
}


@rule("MatMul")
def matmul(op: Relation) -> None:
    """Column parallel (n) needs nothing; row parallel (k) leaves a partial sum.  "... m k, ... k n -> ... m n" """
    vector = len(op.input(0)) == 1, len(op.input(1)) == 1
    if all(vector):
        raise NotCovered("the product of two vectors")
    op.sums(_MATMUL[vector].apply(op)["k"])


@rule("Gemm")
def gemm(op: Relation) -> None:
    """As MatMul; beta · C is added once, on the rank that starts the sum."""
    a = "k m" if op.node.attribute("transA", 0) else "m k"
    b = "n k" if op.node.attribute("transB", 0) else "k n"
    letters = parse(f"{a}, {b} -> m n").apply(op)
    op.sums(letters["k"])
    if op.has(2):
        op.broadcast(2)
        op.once = frozenset((2,))


@rule("Einsum")
def einsum(op: Relation) -> None:
    """Letters of the equation are dims; a letter that the output lacks is summed over."""
    equation = str(op.node.attribute("equation", "")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    dots = "..." if "..." in left else ""
    if not arrow:  # what stands once stays, in the order of the alphabet
        right = dots + "".join(sorted(letter for letter in set(left) - set(".,") if left.count(letter) == 1))
    terms = [term.removeprefix("...") for term in (*left.split(","), right)]
    if any("." in term or len(set(term)) != len(term) for term in terms) or not right.startswith(dots):
        raise NotCovered(f"equation {equation}")
    spelled = [
        " ".join(["..."] * term.startswith("...") + [*bare])
        for term, bare in zip((*left.split(","), right), terms, strict=True)
    ]
    letters = parse(",".join(spelled[:-1]) + "->" + spelled[-1]).apply(op)
    for letter, dim in letters.items():
        if letter not in right:
            op.sums(dim)


@rule("Conv")
def conv(op: Relation) -> None:
    """Channels out are columns, channels in are rows; grouped: the groups are cut. Space needs whole."""
    x, w, y = op.input(0), op.input(1), op.output()
    for dim in (*x[2:], *y[2:], *w[2:]):
        op.whole(dim, "a convolution needs its neighbours")
    op.pair(x[0], y[0])
    op.pair(w[0], y[1])
    groups = op.node.attribute("group", 1)
    if groups == 1:
        op.pair(x[1], w[1])
        op.sums(w[1])
        op.once = frozenset((2,)) if op.has(2) else frozenset()
    else:
        group = Dim((groups,) * len(x[1].sizes))
        inner, outer = (Dim(tuple(size // groups for size in dim.sizes)) for dim in (x[1], y[1]))
        op.pair(x[1], op.product(group, inner))
        op.pair(y[1], op.product(group, outer))
        op.whole(inner, "channels within a group of a convolution")
        op.whole(w[1], "channels within a group of a convolution")
        op.whole(outer, "channels within a group of a convolution")
        op.local_attribute("group", lambda cut, rank: cut.local_size(group, rank), group)
    if op.has(2):
        op.pair(op.input(2)[0], y[1])


def heads_of(flat: Dim, count: int, op: Relation) -> tuple[Dim, Dim]:
    """Refine a flat [heads · size] axis; returns its (heads, size)."""
    if any(size % count for size in flat.sizes):
        raise NotCovered(f"{count} heads do not divide {flat.sizes[0]}")
    heads, size = Dim((count,) * len(flat.sizes)), Dim(tuple(total // count for total in flat.sizes))
    op.pair(flat, op.product(heads, size))
    return heads, size


def local_count(heads: Dim) -> "LocalCount":
    """How many heads a rank has, for an attribute."""
    return LocalCount(heads)


class LocalCount:
    """Computes a head count attribute."""

    def __init__(self, heads: Dim) -> None:
        self.heads = heads

    def __call__(self, cut: Cut, rank: int) -> int:
        return cut.local_size(self.heads, rank)
