"""Rules of collectives, of either dialect: what an all_reduce may end and an all_gather may join."""

from __future__ import annotations

import numpy as np

from tpcompile.targets.collectives import read_collective
from tpcompile.verify import lattice
from tpcompile.verify.lattice import Axis, Lies, Stacked, State
from tpcompile.verify.rules.site import Site, Undecided
from tpcompile.verify.simulate import group_of


def collective(site: Site) -> list[State]:
    """An all_reduce ends a partial value, an all_gather joins parts along axis 0, in groups that make it complete."""
    call, state = read_collective(site.nodes[0]), site.states[0]
    kind = call.op
    groups = [group_of(node, site.tp) for node in site.nodes]
    if not isinstance(state, Lies):
        raise Undecided(f"its input is {state.value if state else 'absent'}")
    if any(not set(group) <= set(range(site.tp)) for group in groups):
        raise Undecided("its groups name ranks that are not there")
    if kind == "all_reduce":
        return [all_reduced(site, state, call.reduce_op, groups)]
    if kind == "all_gather":
        if state.shares and not state.lookup and state.axes and set(state.axes[0].lengths) == {1}:
            if any(len(group) != site.tp for group in groups):
                raise Undecided("the parts of a partial value in groups")
            return [Stacked(state.axes[1:], state.shares, state.reduce)]
        if not state.finished:
            site.fault("TP523", f"gathers {site.nodes[0].input[0]!r}, which is {state}: it must be reduced first")
        first = state.axes[0]
        if first.whole:
            site.fault("TP523", f"gathers {site.nodes[0].input[0]!r}, which every rank holds whole along axis 0")
        held = tuple(np.concatenate([first.held[other] for other in group]) for group in groups)
        for at, axis in enumerate(state.axes[1:], 1):
            _same_within(site, axis, groups, f"axis {at}")
        return [Lies((lattice.simplified(Axis(first.sizes, held)), *state.axes[1:]))]
    if kind == "broadcast":
        return [Lies(state.axes)]
    raise Undecided(f"a {kind}")


def reduced_stack(site: Site, state: Stacked, axes: list[int]) -> list[State]:
    """What all ranks have of a partial value, reduced on each: the same as an all_reduce over all of them."""
    if axes != [0] or site.attribute("keepdims", 1):
        raise Undecided(f"reduces {state.value} over other axes than the first")
    everyone = [list(range(site.tp))] * site.tp
    reduce_op = {"ReduceMean": "avg"}.get(site.op, site.op.removeprefix("Reduce").lower())
    return [all_reduced(site, Lies(state.axes, state.shares, state.reduce), reduce_op, everyone)]


def all_reduced(site: Site, state: Lies, reduce_op: str, groups: list[list[int]]) -> Lies:
    """A partial value after the ranks of each group reduced it."""
    name = site.nodes[0].input[0]
    if state.lookup:
        site.fault("TP528", f"sums {name!r}, a lookup in a cut table whose foreign rows are not zeroed")
    elif not state.shares:
        site.fault(
            "TP523", f"reduces {name!r}, which is {state} and no partial value: it would be counted once per rank"
        )
    elif reduce_op != state.reduce:
        site.fault("TP523", f"reduces {name!r} by {reduce_op}, which is {state}")
    for shares in sorted(state.shares, key=str):
        terms = {term for term in shares if term is not None}
        for rank, group in enumerate(groups):
            mine = [shares[other] for other in group if shares[other] is not None]
            if len(mine) != len(set(mine)) or set(mine) != terms:
                fact = f"sums {name!r} in group {group} of rank {rank}, whose ranks add terms {mine} of {sorted(terms)}"
                site.fault("TP523", f"{fact}: each must be there once")
                return Lies(state.axes)
    for at, axis in enumerate(state.axes):
        _same_within(site, axis, groups, f"axis {at}")
    return Lies(state.axes)


def _same_within(site: Site, axis: Axis, groups: list[list[int]], what: str) -> None:
    for group in groups:
        if any(not np.array_equal(axis.held[group[0]], axis.held[other]) for other in group):
            site.fault("TP523", f"joins ranks {group}, which hold different parts of {what} ({axis})")
            return
