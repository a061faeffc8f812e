"""Rules of collectives: what an all_reduce may end and an all_gather may join."""

from __future__ import annotations

import numpy as np

from tpcompile.verify import lattice
from tpcompile.verify.lattice import Axis, Lies, State
from tpcompile.verify.rules.site import Site, Undecided
from tpcompile.verify.simulate import group_of


def dist_collective(site: Site) -> list[State]:
    """An all_reduce ends a partial value, an all_gather joins parts along axis 0, in groups that make it complete."""
    kind, state = site.attribute("collective_operation"), site.states[0]
    groups = [group_of(node, site.tp) for node in site.nodes]
    if not isinstance(state, Lies):
        raise Undecided(f"its input is {state.value if state else 'absent'}")
    if any(not set(group) <= set(range(site.tp)) for group in groups):
        raise Undecided("its groups name ranks that are not there")
    if kind == "all_reduce":
        return [_all_reduced(site, state, groups)]
    if kind == "all_gather":
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


def _all_reduced(site: Site, state: Lies, groups: list[list[int]]) -> Lies:
    name, reduce_op = site.nodes[0].input[0], site.attribute("reduce_op")
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
