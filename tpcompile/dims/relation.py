"""What a rule says of one node: which dims are one, which are summed over, which must be whole, what becomes local."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcompile.dims.cut import Cut
from tpcompile.dims.dim import (
    Dim,
    blocks,
    concatenation,
    differing_factors,
    identical,
    leaves,
    product,
    root,
    unify,
    unify_products,
)
from tpcompile.graph.program import Node, Value

Axes = list[Dim]


class NotCovered(Exception):
    """The rule does not cover this form of the operator; the node runs on whole inputs, for the reason given."""


@dataclass(frozen=True)
class ScaledShape:
    """Operand `operand` lists sizes of axes: entry i becomes local where `dims[i]` is cut; None (−1, 0) stays."""

    operand: int
    dims: tuple[Dim | None, ...]


@dataclass(frozen=True)
class LocalEntries:
    """Entries of integer operand `operand` (of `length` entries) that each rank computes for itself."""

    operand: int
    length: int
    entries: Mapping[int, Callable[[Cut, int], int]]
    when: tuple[Dim, ...]
    """The patch is needed only where one of these dims is cut."""
    drops: tuple[str, ...] = ()
    """Attributes that the operand replaces."""


@dataclass(frozen=True)
class LocalAttribute:
    """An attribute that each rank computes for itself from the source's value."""

    name: str
    compute: Callable[[Cut, int], Any]
    when: tuple[Dim, ...]


Patch = ScaledShape | LocalEntries | LocalAttribute


@dataclass(frozen=True)
class Reduced:
    """A dim the node sums over: where it is cut the outputs are partial sums. `mean` divides by the global size."""

    dim: Dim
    mean: bool = False


@dataclass(frozen=True)
class Lookup:
    """Operand 0 is a table looked up along axis `axis` by operand 1: where the table is cut, ids are masked."""

    axis: int


class Relation:
    """The relation of one node's operands, built by its rule.

    `inputs[i]` and `outputs[i]` are the dims of an operand's axes, None where the operand is absent. A `ranged` node
    quantises operand 0 with the range of all of it: where that is cut, ranks agree on the range. A node that has a form
    of its own for ranks with a part of a dim each names it in `spread`; its outputs are whole.
    """

    def __init__(self, node: Node, inputs: Sequence[Axes | None], outputs: Sequence[Axes | None]) -> None:
        self.node = node
        self.inputs, self.outputs = inputs, outputs
        self.pairs: list[tuple[Dim, Dim]] = []
        self.wholes: list[tuple[Dim, str]] = []
        self.reduced: list[Reduced] = []
        self.patches: list[Patch] = []
        self.linear: frozenset[int] = frozenset()
        self.joint = False
        self.once: frozenset[int] = frozenset()
        self.lookup: Lookup | None = None
        self.ranged = False
        self.spread: Dim | None = None
        self.counts: list[Dim] = []
        self.answered: set[int] = set()
        """The outputs that the rule asked for: of others it says nothing."""
        self._spoken: set[int] = set()
        self._made: list[Dim] = []

    # -- reading the node --------------------------------------------

    def input(self, index: int) -> Axes:
        """The dims of a required operand."""
        axes = self.inputs[index] if index < len(self.inputs) else None
        if axes is None:
            raise NotCovered(f"operand {index} is absent or of unknown rank")
        return axes

    def output(self, index: int = 0) -> Axes:
        axes = self.outputs[index] if index < len(self.outputs) else None
        if axes is None:
            raise NotCovered(f"output {index} is absent or of unknown rank")
        self.answered.add(index)
        return axes

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def value(self, index: int) -> Value | None:
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def known(self, index: int) -> tuple[np.ndarray[Any, Any], ...] | None:
        """The content of an operand per sample, where it is metadata."""
        value = self.value(index)
        return None if value is None else value.known

    def axis(self, name: str, rank: int, default: int | None = None) -> int:
        """An axis attribute as a non-negative number."""
        found = self.node.attribute(name, default)
        if found is None:
            raise NotCovered(f"no attribute {name}")
        return int(found) % rank if rank else 0

    # -- what a rule says --------------------------------------------

    def pair(self, a: Dim, b: Dim) -> None:
        """The two dims are one: a cut of one is the same cut of the other."""
        unify(a, b)
        self.pairs.append((a, b))
        self._speak(a, b)

    def pair_products(self, a: Sequence[Dim], b: Sequence[Dim]) -> None:
        """Two row-major lists of dims are one."""
        if a and b:
            unify_products(a, b)
            self.pairs.append((self.product(*a), self.product(*b)))
            self._speak(*a, *b)

    def whole(self, dim: Dim, why: str) -> None:
        """The node needs (or makes) all of this dim."""
        self.wholes.append((dim, why))
        self._speak(dim)

    def sums(self, dim: Dim, mean: bool = False) -> None:
        """The node sums over this dim."""
        self.reduced.append(Reduced(dim, mean))
        self._speak(dim)

    def spreads(self, dim: Dim) -> None:
        """The node has a form for ranks that each have a run of this dim: they send little to have the whole result."""
        self.spread = dim
        self._speak(dim)

    def fresh(self, dim: Dim) -> None:
        """The dim appears here (an Expand); each rank makes only its part."""
        self._speak(dim)

    def passes_partials(self, *operands: int, joint: bool = False) -> None:
        """Partial sums pass from these operands to the outputs: any one of them, or (`joint`) all together."""
        self.linear, self.joint = frozenset(operands), joint

    def product(self, *parts: Dim) -> Dim:
        found = product(parts)
        self._made.append(found)
        return found

    def concatenation(self, *parts: Dim) -> Dim:
        found = concatenation(parts)
        self._made.append(found)
        return found

    def blocks(self, dim: Dim, length: int, why: str) -> Dim:
        """How many blocks of `length` elements fill `dim`, as a dim: both are cut where a block begins, if at all."""
        if not dim.static:
            raise NotCovered("blocks along an axis of unknown size")
        if length == 1:
            return dim
        top, ones = root(dim), (1,) * len(dim.sizes)
        count = Dim((-(-dim.size // length),) * len(ones))
        if top.kind == "blocks":
            return self.blocks(top.parts[0], top.length * length, why)
        if dim.size % length == 0:
            within = Dim((length,) * len(ones))
            self.pair_products([dim], [count, within])
            self.whole(within, why)
        elif count.size > 1 and top.kind == "leaf":
            count = blocks(dim, length)
            self.counts.append(count)
        else:
            self.whole(dim, why)
            self.whole(count, why)
        return count

    def _speak(self, *dims: Dim) -> None:
        for dim in dims:
            self._spoken.add(id(dim))
            if any(dim is made for made in self._made):
                self._speak(*dim.parts)

    def broadcast(self, *operands: int, output: int = 0) -> None:
        """Operands broadcast to the output from the right: equal sizes are one dim, a size of 1 relates to nothing."""
        target = self.output(output)
        for index in operands:
            if not self.has(index):
                continue
            axes = self.input(index)
            for dim, out in zip(reversed(axes), reversed(target), strict=False):
                self.pair_or_broadcast(dim, out)

    def pair_or_broadcast(self, dim: Dim, out: Dim) -> None:
        if dim.sizes == out.sizes:
            self.pair(dim, out)
        elif dim.unit:
            self._speak(dim)
        else:
            raise NotCovered(f"sizes {dim.sizes} do not broadcast to {out.sizes}")

    def same(self, index: int, output: int = 0) -> None:
        """The operand and the output have the same axes."""
        a, b = self.input(index), self.output(output)
        if len(a) != len(b):
            raise NotCovered("input and output differ in rank")
        for x, y in zip(a, b, strict=True):
            self.pair(x, y)

    def scaled_shape(self, operand: int, axes: Sequence[Dim]) -> None:
        """The operand lists the sizes of `axes`; what is −1 or 0 in it stays."""
        known = self.known(operand)
        if known is None:
            raise NotCovered("the target shape is not known")
        if any(k.shape != (len(axes),) for k in known):
            raise NotCovered("the target shape has another length")
        dims: list[Dim | None] = []
        for position, dim in enumerate(axes):
            entries = tuple(int(k[position]) for k in known)
            if all(entry in (-1, 0) for entry in entries):
                dims.append(None)
            elif entries == dim.sizes or (all(e == 1 for e in entries)):
                dims.append(dim if entries == dim.sizes else None)
            else:
                raise NotCovered(f"entry {position} of the target shape is neither the size of its axis nor −1")
        self.patches.append(ScaledShape(operand, tuple(dims)))

    def local_attribute(self, name: str, compute: Callable[[Cut, int], Any], *when: Dim) -> None:
        """The attribute becomes `compute(cut, rank)` where one of `when` is cut."""
        self.patches.append(LocalAttribute(name, compute, when))

    def local_entries(
        self,
        operand: int,
        length: int,
        entries: Mapping[int, Callable[[Cut, int], int]],
        *when: Dim,
        drops: tuple[str, ...] = (),
    ) -> None:
        if entries:
            self.patches.append(LocalEntries(operand, length, entries, when, drops))

    # -- after all rules ran -----------------------------------------

    def settle(self, metadata: Callable[[Value], bool]) -> dict[Dim, str]:
        """The leaves that the node needs whole, each with the reason.

        These are the leaves of dims said to be whole, of pairs that turned out to differ, and of dims no rule spoke of.
        """
        blocked: dict[Dim, str] = {}

        def block(dim: Dim, why: str) -> None:
            for leaf in leaves(dim):
                if not leaf.unit:
                    blocked.setdefault(leaf, why)

        for dim, why in self.wholes:
            block(dim, why)
        for a, b in self.pairs:
            if not identical(a, b):
                why = f"{root(a)!r} and {root(b)!r} do not line up"
                for dim in (factor for side in differing_factors(a, b) for factor in side):
                    block(dim, why)
        operands = list(zip(self.node.inputs, self.inputs, strict=True)) + list(
            zip(self.node.outputs, self.outputs, strict=True)
        )
        for value, axes in operands:
            if value is None or axes is None or (metadata(value) and value.producer is not self.node):
                continue
            for dim in axes:
                if id(dim) not in self._spoken and not dim.unit:
                    block(dim, "no rule speaks of this axis")
        return blocked
