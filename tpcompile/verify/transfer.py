"""What each operator makes of the states of its inputs: the layout checker's own rules, none shared with the compiler.

A rule reads states and, where they decide (indices, shapes, masks), the values of one simulated run. It returns the
states of the outputs, reports faults at its site, and raises Undecided where it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from tpcompile.errors import Fault
from tpcompile.verify import lattice
from tpcompile.verify.files import Array, attribute
from tpcompile.verify.lattice import Axis, Free, Lies, Lookup, State

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

    def matched(self, a: Axis, b: Axis, what: str) -> Axis:
        """The axis both describe, with a fault where the ranks hold different indices of them."""
        found = lattice.meet(a, b)
        if found is None:
            if a.flat and b.flat:
                self.fault("TP526", f"{what} do not lie alike: {a} and {b}")
            else:
                raise Undecided(f"{what}: {a} and {b}")
        return found or a

    def need_whole(self, axis: Axis, what: str) -> None:
        if not axis.whole and not axis.alike:
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


def elementwise(site: Site) -> list[State]:
    """Any function of single entries: inputs must be finished."""
    operands = [at for at in range(len(site.nodes[0].input)) if site.given(at)]
    for at in operands:
        site.states[at] = site.finished(at)
    return [Lies(broadcast(site, operands))] * len(site.nodes[0].output)


def same(site: Site) -> list[State]:
    """Identity, Neg, Cast: linear in one input."""
    return [site.states[0] or Free.UNKNOWN]


def add(site: Site) -> list[State]:
    """Add, Sub, Sum: shares of partial inputs come together; a finished value may join them only where it is zero."""
    operands = list(range(len(site.nodes[0].input)))
    partial = [at for at in operands if site.lies(at).shares]
    for at in operands:
        if site.lies(at).lookup:
            site.fault(
                "TP528", f"adds {site.nodes[0].input[at]!r}, a lookup in a cut table whose foreign rows are not zeroed"
            )
    if not partial:
        return [Lies(broadcast(site, operands))]
    if len({site.lies(at).reduce for at in partial}) > 1 or site.lies(partial[0]).reduce != "sum":
        site.fault("TP524", "adds partial values that are not all sums")
    for at in operands:
        if at not in partial and any(array.any() for array in site.values(at)):
            fact = f"adds {site.nodes[0].input[at]!r}, which every rank holds, to partial {site.nodes[0].input[partial[0]]!r}: the sum over ranks counts it once per rank"
            site.fault("TP525", fact)
    shares = frozenset().union(*(site.lies(at).shares for at in partial))
    return [Lies(broadcast(site, operands), shares)]


def multiply(site: Site) -> list[State]:
    """Mul, Div: linear in one input; a 0/1 factor that varies by rank masks a lookup, or keeps a whole value on some ranks."""
    for value, mask in ((0, 1), (1, 0)):
        if site.states[mask] is Free.VARIES and site.op == "Mul":
            return [masked(site, value, [array != 0 for array in _zero_one(site.values(mask))])]
    operands = [0, 1]
    pending = [at for at in operands if not site.lies(at).finished]
    if len(pending) > 1 or (pending and site.op == "Div" and pending[0] == 1):
        site.fault(
            "TP524", f"is not linear in {[site.nodes[0].input[at] for at in pending]}, which are not reduced yet"
        )
        return [Lies(broadcast(site, operands))]
    if pending and site.lies(pending[0]).reduce != "sum":
        raise Undecided("scales a partial maximum or minimum")
    if pending and (lookup := site.lies(pending[0]).lookup):
        return [Lies(broadcast(site, operands), lookup=lookup)]
    return [Lies(broadcast(site, operands), site.lies(pending[0]).shares if pending else frozenset())]


def _zero_one(arrays: list[Array]) -> list[Array]:
    if not all(np.isin(array, (0, 1)).all() for array in arrays):
        raise Undecided("a factor that varies by rank")
    return arrays


def where(site: Site) -> list[State]:
    """A condition that varies by rank masks, with zeros; otherwise the condition is finished, and a partial may stand beside zeros."""
    if site.states[0] is Free.VARIES:
        for value, other in ((1, 2), (2, 1)):
            if isinstance(site.states[other], Lies) and not any(array.any() for array in site.values(other)):
                return [masked(site, value, [array == (value == 1) for array in site.values(0)])]
        raise Undecided("a condition that varies by rank")
    site.states[0] = site.finished(0)
    partial = [at for at in (1, 2) if not site.lies(at).finished]
    for at in (1, 2):
        if partial and at not in partial and any(array.any() for array in site.values(at)):
            site.fault("TP524", f"chooses between partial {site.nodes[0].input[partial[0]]!r} and a finished value")
    shares = frozenset().union(*(site.lies(at).shares for at in partial)) if partial else frozenset()
    return [Lies(broadcast(site, [0, 1, 2]), shares)]


def masked(site: Site, at: int, keeps: list[Array]) -> State:
    """Input `at` where `keeps[rank]` is true, zero elsewhere: a share of a lookup, or of a whole value held by some ranks."""
    state = site.lies(at)
    if state.lookup is not None:
        return _masked_lookup(site, state, state.lookup, keeps)
    if not state.finished:
        raise Undecided("masks a partial value by rank")
    if not all((keep == keep.reshape(-1)[:1]).all() for keep in keeps if keep.size):
        raise Undecided("masks parts of a finished value by rank")
    return Lies(state.axes, frozenset({tuple(0 if keep.any() else None for keep in keeps)}))


def _masked_lookup(site: Site, state: Lies, lookup: Lookup, keeps: list[Array]) -> State:
    """Every place must be kept by exactly the ranks of one part of the table, and be the row that was asked for."""
    places = lookup.rows[0].ndim
    lead = len(state.axes) - places
    kept = []
    for keep, rows in zip(keeps, lookup.rows, strict=True):
        keep = keep.reshape((1,) * (len(state.axes) - keep.ndim) + keep.shape)
        if any(size != 1 for size in keep.shape[places:]) or lead < 0:
            raise Undecided("masks single entries of a looked-up row")
        kept.append(np.broadcast_to(keep.reshape(keep.shape[:places]), rows.shape))
    answers = np.zeros(lookup.rows[0].shape, int)
    for owner in dict.fromkeys(lookup.owners):
        mine = [rank for rank, other in enumerate(lookup.owners) if other == owner]
        answers += kept[mine[0]]
        for rank in mine:
            if not np.array_equal(kept[rank], kept[mine[0]]):
                site.fault(
                    "TP528", f"ranks {mine[0]} and {rank} hold the same rows of the table but mask them differently"
                )
            wrong = (
                kept[rank] & (lookup.rows[rank] != lookup.ids) if lookup.ids is not None else np.zeros_like(kept[rank])
            )
            if wrong.any():
                at = np.argwhere(wrong)[0]
                asked = int(lookup.ids[tuple(at)]) if lookup.ids is not None else 0
                site.fault(
                    "TP528",
                    f"rank {rank} gives row {int(lookup.rows[rank][tuple(at)])} of the table where row {asked} is asked (at {at.tolist()})",
                )
                return Lies(state.axes)
    if (answers != 1).any():
        at = np.argwhere(answers != 1)[0]
        row = f"row {int(lookup.ids[tuple(at)])}" if lookup.ids is not None else "the row"
        site.fault(
            "TP528",
            f"{int(answers[tuple(at)])} parts of the table answer for {row} asked at {at.tolist()}, it must be one",
        )
    return Lies(state.axes, frozenset({lookup.owners}))


def summed_over(site: Site, axis: Axis) -> lattice.Shares:
    """The shares that a sum over this axis leaves."""
    found = lattice.shares_of(axis)
    if isinstance(found, str):
        if axis.flat is None or any((index < 0).any() for index in axis.flat[1]):
            raise Undecided(f"sums over {found}")
        site.fault("TP526", f"sums over {found}")
        return frozenset()
    return found


def product(site: Site, a: Lies, b: Lies, contracted: tuple[Axis, Axis], axes: tuple[Axis, ...]) -> Lies:
    """A product that sums over one pair of axes."""
    shares = summed_over(site, site.matched(*contracted, "the contracted axes"))
    pending = a.shares | b.shares
    if (a.shares and b.shares) or (pending and shares) or a.lookup or b.lookup:
        site.fault("TP524", f"multiplies values that are not reduced yet: {a} and {b}")
    return Lies(axes, shares | pending)


def matmul(site: Site) -> list[State]:
    a, b = site.lies(0), site.lies(1)
    if len(a.axes) < 2 or len(b.axes) < 2:
        raise Undecided("a vector in a MatMul")
    batch = Site(site.nodes, [Lies(a.axes[:-2]), Lies(b.axes[:-2])], site.value, site.stored, site.asked, site.faults)
    lead = broadcast(batch, [0, 1]) if len(a.axes) > 2 or len(b.axes) > 2 else ()
    return [product(site, a, b, (a.axes[-1], b.axes[-2]), (*lead, a.axes[-2], b.axes[-1]))]


def gemm(site: Site) -> list[State]:
    a, b = site.lies(0), site.lies(1)
    flip_a, flip_b = site.attribute("transA", 0), site.attribute("transB", 0)
    rows, left = (a.axes[1], a.axes[0]) if flip_a else (a.axes[0], a.axes[1])
    right, columns = (b.axes[1], b.axes[0]) if flip_b else (b.axes[0], b.axes[1])
    result = product(site, a, b, (left, right), (rows, columns))
    return [with_bias(site, result, 2)]


def with_bias(site: Site, result: Lies, at: int) -> Lies:
    """A product plus input `at`, broadcast from the right."""
    if not site.given(at):
        return result
    inner = Site(
        site.nodes, [result, site.states[at]], lambda name: site.values(at), site.stored, site.asked, site.faults
    )
    inner.nodes = [
        onnx.helper.make_node(
            site.op, [site.nodes[0].output[0], site.nodes[0].input[at]], list(node.output), site.nodes[0].name
        )
        for node in site.nodes
    ]
    found = add(inner)[0]
    assert isinstance(found, Lies)
    return found


def conv(site: Site) -> list[State]:
    x, w = site.lies(0), site.lies(1)
    for axis in x.axes[2:]:
        site.need_whole(axis, "a spatial axis")
    if site.attribute("group", 1) != 1:
        raise Undecided("a grouped Conv")
    space = tuple(lattice.whole(size, site.tp) for size in site.shapes()[0][2:])
    result = product(site, x, w, (x.axes[1], w.axes[1]), (x.axes[0], w.axes[0], *space))
    if site.given(2):
        bias = site.lies(2)
        site.matched(w.axes[0], bias.axes[0], "the channels of weight and bias")
        if result.shares and not bias.shares and any(array.any() for array in site.values(2)):
            site.fault("TP525", f"adds bias {site.nodes[0].input[2]!r}, which every rank holds, to a partial result")
        result = Lies(result.axes, result.shares | bias.shares)
    return [result]
