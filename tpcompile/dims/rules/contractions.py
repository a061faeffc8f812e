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


NEIGHBOURS = "a convolution needs its neighbours"
WITHIN_GROUP = "channels within a group of a convolution"


@rule("Conv")
def conv(op: Relation, data: int = 0, weight: int = 1, bias: int = 2) -> None:
    """Channels out are columns, channels in are rows; grouped: the groups are cut. Space needs whole."""
    x, w, y = op.input(data), op.input(weight), op.output()
    for dim in (*x[2:], *y[2:], *w[2:]):
        op.whole(dim, NEIGHBOURS)
    op.pair(x[0], y[0])
    op.pair(w[0], y[1])
    if op.node.attribute("group", 1) == 1:
        op.pair(x[1], w[1])
        op.sums(w[1])
        op.once = frozenset((bias,)) if op.has(bias) else frozenset()
    else:
        in_groups(op, "group", x[1], y[1], why=WITHIN_GROUP)
        op.whole(w[1], WITHIN_GROUP)
    if op.has(bias):
        op.pair(op.input(bias)[0], y[1])


@rule("ConvTranspose")
def conv_transpose(op: Relation) -> None:
    """As Conv, with the weight the other way round: channels in come first, channels out second."""
    x, w, y = op.input(0), op.input(1), op.output()
    for dim in (*x[2:], *y[2:], *w[2:]):
        op.whole(dim, NEIGHBOURS)
    op.pair(x[0], y[0])
    op.pair(x[1], w[0])
    if op.node.attribute("group", 1) == 1:
        op.pair(w[1], y[1])
        op.sums(w[0])
        op.once = frozenset((2,)) if op.has(2) else frozenset()
    else:
        in_groups(op, "group", x[1], y[1], why=WITHIN_GROUP)
        op.whole(w[1], WITHIN_GROUP)
    if op.has(2):
        op.pair(op.input(2)[0], y[1])


def in_groups(op: Relation, attribute: str, *channels: Dim, why: str) -> Dim:
    """Channels are groups × the rest, of which only the groups are free; returns the dim of the groups."""
    count = op.node.attribute(attribute, 1)
    groups = Dim((count,) * len(channels[0].sizes))
    for dim in channels:
        if any(size % count for size in dim.sizes):
            raise NotCovered(f"{count} groups do not divide {dim.sizes[0]}")
        rest = Dim(tuple(size // count for size in dim.sizes))
        op.pair(dim, op.product(groups, rest))
        op.whole(rest, why)
    op.local_attribute(attribute, local_count(groups), groups)
    return groups


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
