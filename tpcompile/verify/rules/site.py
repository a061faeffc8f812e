"""One operation as a rule sees it: the states of its inputs on all ranks, and what rules have in common.

A rule reads states and, where they decide (indices, shapes, masks), the values of one simulated run. It returns the
states of the outputs, reports faults at its site, and raises Undecided where it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from tpcompile.errors import Fault
from tpcompile.verify import lattice
from tpcompile.verify.files import Array, attribute
from tpcompile.verify.lattice import Axis, Lies, State

REMEDY = (
    "This is a fault of tpcompile or of a changed file: compile again, and report it with the model if it comes back"
)


class Undecided(Exception):
    """The rule cannot tell how the outputs lie; the text says why."""


@dataclass
class Site:
    """One operation on all ranks: its node per rank, the states of its inputs, and access to the values of one run."""

    nodes: Sequence[onnx.NodeProto]
    states: list[State | None]
    value: Callable[[str], list[Array]]
    stored: Callable[[str], bool]
    asked: Callable[[str, int], list[Array]]
    whole_shape: Callable[[str], tuple[int, ...]]
    faults: list[Fault]

    @property
    def tp(self) -> int:
        return len(self.nodes)

    @property
    def op(self) -> str:
        return self.nodes[0].op_type

    def fault(self, code: str, fact: str) -> None:
        name = self.nodes[0].name or self.nodes[0].output[0]
        self.faults.append(Fault(code, f"{self.op} {name}", fact, REMEDY))

    def attribute(self, name: str, default: Any = None) -> Any:
        return attribute(self.nodes[0], name, default)

    def given(self, at: int) -> bool:
        return at < len(self.nodes[0].input) and bool(self.nodes[0].input[at])

    def values(self, at: int) -> list[Array]:
        """Input `at` on every rank."""
        return self.value(self.nodes[0].input[at])

    def shapes(self, at: int = 0) -> list[tuple[int, ...]]:
        """Local shapes of output `at`, by rank."""
        return [np.shape(array) for array in self.value(self.nodes[0].output[at])]

    def lies(self, at: int) -> Lies:
        """The state of input `at`, where it has a place; Undecided otherwise."""
        state = self.states[at]
        if not isinstance(state, Lies):
            raise Undecided(f"input {at} is {state.value if state else 'absent'}")
        return state

    def finished(self, at: int) -> Lies:
        """As `lies`, with a fault where the value is still partial."""
        state = self.lies(at)
        if not state.finished:
            self.fault(
                "TP524",
                f"reads {self.nodes[0].input[at]!r}, which is {state}: only a sum may read it before it is reduced",
            )
        return Lies(state.axes)

    def first(self, count: int) -> Site:
        """The same operation as if it had only its first `count` inputs."""
        nodes = []
        for node in self.nodes:
            nodes.append(onnx.NodeProto())
            nodes[-1].CopyFrom(node)
            del nodes[-1].input[count:]
        return replace(self, nodes=nodes, states=self.states[:count])

    def matched(self, a: Axis, b: Axis, what: str) -> Axis:
        """The axis both describe, with a fault where the ranks hold different indices of them."""
        found = lattice.meet(a, b)
        if found is None:
            if a.flat and b.flat:
                self.fault("TP526", f"{what} do not lie alike: {a} and {b}")
            else:
                raise Undecided(f"{what}: {a} and {b}")
        return found or a

    def parted(self, axis: Axis, sizes: Sequence[Sequence[int]]) -> list[Axis]:
        """An axis of several parts, one after the other: `sizes[part][rank]` local entries each.

        A fault where what the ranks hold of a part is no run of the whole axis: then parts are mixed.
        """
        starts = np.zeros(self.tp, int)
        found = []
        for mine in sizes:
            chosen = [np.arange(start, start + size) for start, size in zip(starts, mine, strict=True)]
            starts = starts + np.array(mine)
            found.append(lattice.select(axis, chosen))
            if axis.flat and not axis.whole:
                taken = [held[index] for held, index in zip(axis.flat[1], chosen, strict=True)]
                together = np.unique(np.concatenate(taken))
                together = together[together >= 0]
                if (np.diff(together) != 1).any():
                    texts = " and ".join(lattice.short(index) for index in taken)
                    self.fault("TP526", f"takes {texts} of {axis} for one part, which is no run of it")
        return found

    def need_whole(self, axis: Axis, what: str) -> None:
        if not axis.complete:
            self.fault("TP526", f"needs all of {what}, which is {axis}")


Rule = Callable[[Site], list[State]]


def broadcast(site: Site, operands: Sequence[int]) -> tuple[Axis, ...]:
    """The axes of an elementwise result of these inputs."""
    rank = max(len(site.lies(at).axes) for at in operands)
    axes = []
    for back in range(rank, 0, -1):
        found: Axis | None = None
        for at in operands:
            mine = site.lies(at).axes
            if len(mine) < back:
                continue
            axis = mine[-back]
            if found is None or found.unit:
                found = axis
            elif not axis.unit:
                if lattice.meet(found, axis) is None:
                    axis = _loosened(site, at, axis, back)
                    found = _loosened_first(site, operands, at, found, back)
                found = site.matched(found, axis, f"axis -{back} of its inputs")
        assert found is not None
        axes.append(found)
    return tuple(axes)


def _loosened(site: Site, at: int, axis: Axis, back: int) -> Axis:
    """The axis as `alike` where all its entries are equal on every rank: such a value fits any cut."""
    same = all((array == array.take([0], axis=-back)).all() for array in site.values(at) if array.size)
    return lattice.alike(axis.lengths) if same else axis


def _loosened_first(site: Site, operands: Sequence[int], now: int, found: Axis, back: int) -> Axis:
    before = [
        at
        for at in operands[: operands.index(now)]
        if len(site.lies(at).axes) >= back and not site.lies(at).axes[-back].unit
    ]
    return _loosened(site, before[0], found, back) if len(before) == 1 else found


def summed_over(site: Site, axis: Axis) -> lattice.Shares:
    """The shares that a sum over this axis leaves."""
    found = lattice.shares_of(axis)
    if isinstance(found, str):
        if axis.flat is None or any((index < 0).any() for index in axis.flat[1]):
            raise Undecided(f"sums over {found}")
        site.fault("TP526", f"sums over {found}")
        return frozenset()
    return found


def moved(state: Lies, axes: Sequence[Axis]) -> Lies:
    """The same shares over other axes; a lookup does not outlive a move of its places."""
    if state.lookup:
        raise Undecided("moves a lookup before it is masked")
    return Lies(tuple(axes), state.shares, state.reduce)
