"""Rules of operators that work along one axis, which must be whole, or along given ones; and of Einsum."""

from __future__ import annotations

from dataclasses import replace

from tpcompile.verify import lattice
from tpcompile.verify.lattice import Axis, Lies, State
from tpcompile.verify.rules.site import Rule, Site, Undecided, summed_over


def along(default: int) -> Rule:
    """CumSum, TopK, ArgMax, LpNormalization and others: all of the axis is needed; lengths may change along it."""

    def rule(site: Site) -> list[State]:
        state = site.finished(0)
        if site.op in ("CumSum", "CumProd"):
            at = int(site.values(1)[0].reshape(-1)[0]) % len(state.axes)
        else:
            at = int(site.attribute("axis", default)) % len(state.axes)
        site.need_whole(state.axes[at], f"axis {at}")
        found: list[State] = []
        for output in range(len(site.nodes[0].output)):
            keeps = len(site.shapes(output)[0]) == len(state.axes)
            made = [lattice.whole(site.shapes(output)[0][at], site.tp)] if keeps else []
            found.append(Lies((*state.axes[:at], *made, *state.axes[at + 1 :])))
        return found

    return rule


def last_two(site: Site) -> list[State]:
    """Trilu and others that look at rows and columns of matrices."""
    state = site.lies(0)
    for axis in state.axes[-2:]:
        site.need_whole(axis, "one of the last two axes")
    return [state]


def gather_elements(site: Site) -> list[State]:
    """Entries are picked along one axis, which must be whole; the other axes of data and indices lie alike."""
    data, index = site.lies(0), site.finished(1)
    at = int(site.attribute("axis", 0)) % len(data.axes)
    site.need_whole(data.axes[at], f"axis {at}")
    axes: list[Axis] = []
    for place, (mine, theirs) in enumerate(zip(data.axes, index.axes, strict=True)):
        axes.append(theirs if place == at else site.matched(mine, theirs, f"axis {place} of data and indices"))
    return [replace(data, axes=tuple(axes), lookup=None)]


def scatter_elements(site: Site) -> list[State]:
    """Entries are written along one axis, which must be whole; the other axes of all inputs lie alike."""
    data, at = site.finished(0), int(site.attribute("axis", 0)) % len(site.lies(0).axes)
    site.need_whole(data.axes[at], f"axis {at}")
    for other in (1, 2):
        for place, (mine, theirs) in enumerate(zip(data.axes, site.finished(other).axes, strict=True)):
            if place != at:
                site.matched(mine, theirs, f"axis {place} of its inputs")
    return [data]


def einsum(site: Site) -> list[State]:
    """Letters that are not in the result are summed over; one that is cut leaves a partial sum."""
    equation = site.attribute("equation").replace(" ", "")
    if "..." in equation:
        raise Undecided("an Einsum with an ellipsis")
    left, _, right = equation.partition("->")
    terms = left.split(",")
    if "->" not in equation:
        right = "".join(sorted(letter for letter in set(left) - {","} if left.count(letter) == 1))
    axes: dict[str, Axis] = {}
    shares: lattice.Shares = frozenset()
    for at, term in enumerate(terms):
        state = site.lies(at)
        if shares and state.shares:
            site.fault("TP524", "multiplies values that are not reduced yet")
        shares = shares | state.shares
        for letter, axis in zip(term, state.axes, strict=True):
            known = axes.get(letter)
            if known is None or known.unit:
                axes[letter] = axis
            elif not axis.unit:
                axes[letter] = site.matched(known, axis, f"the axes of {letter!r}")
    for letter in sorted(set(axes) - set(right)):
        mine = summed_over(site, axes[letter])
        if mine and shares:
            site.fault("TP524", "sums over a cut axis of a value that is not reduced yet")
        shares = shares | mine
    return [Lies(tuple(axes[letter] for letter in right), shares)]
