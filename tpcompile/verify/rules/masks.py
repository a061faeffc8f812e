"""Rules of Mul and Where: scaling and choosing, and the masks by which a rank drops what is not its own."""

from __future__ import annotations

import numpy as np

from tpcompile.verify.files import Array
from tpcompile.verify.lattice import Free, Lies, Lookup, State
from tpcompile.verify.rules.site import Site, Undecided, broadcast


def multiply(site: Site) -> list[State]:
    """Mul, Div: linear in one input; a 0/1 factor of a rank's own masks a lookup, or keeps a value on some ranks."""
    for value, mask in ((0, 1), (1, 0)):
        if site.states[mask] is Free.VARIES and site.op == "Mul":
            if isinstance(state := site.states[value], Lies) and state.shares and _is_uniform(site.values(mask)):
                return [_scaled(state, site.values(mask))]
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


def _scaled(state: Lies, factors: list[Array]) -> Lies:
    """A partial value times one number per rank: shares count by their size (a mean), or not at all where it is 0."""
    kept = [bool(factor.any()) for factor in factors]
    shares = (tuple(term if keep else None for term, keep in zip(terms, kept, strict=True)) for terms in state.shares)
    return Lies(state.axes, frozenset(shares), state.reduce)


def _is_uniform(arrays: list[Array]) -> bool:
    return all(array.size == 1 for array in arrays)


def _zero_one(arrays: list[Array]) -> list[Array]:
    if not all(np.isin(array, (0, 1)).all() for array in arrays):
        raise Undecided("a factor that varies by rank")
    return arrays


def where(site: Site) -> list[State]:
    """A rank's own condition masks, with zeros; else it is finished, and a partial may stand beside zeros."""
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
    """Input `at` where `keeps[rank]` is true, else zero: a share of a lookup, or of a value that some ranks keep."""
    state = site.lies(at)
    if state.lookup is not None:
        return _masked_lookup(site, state, state.lookup, keeps)
    if state.shares and _is_uniform(keeps):
        return _scaled(state, keeps)
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
                given = int(lookup.rows[rank][tuple(at)])
                site.fault("TP528", f"rank {rank} gives row {given} of the table where row {asked} is asked")
                return Lies(state.axes)
    if (answers != 1).any():
        at = np.argwhere(answers != 1)[0]
        row = f"row {int(lookup.ids[tuple(at)])}" if lookup.ids is not None else "the row"
        site.fault(
            "TP528",
            f"{int(answers[tuple(at)])} parts of the table answer for {row} asked at {at.tolist()}, it must be one",
        )
    return Lies(state.axes, frozenset({lookup.owners}))
