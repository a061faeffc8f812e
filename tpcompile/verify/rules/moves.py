"""Rules of operators that move entries about: reshapes, selections, joins, reductions, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpcompile.verify import lattice
from tpcompile.verify.files import Array, attribute
from tpcompile.verify.lattice import Axis, Lies, Stacked, State
from tpcompile.verify.rules.collectives import reduced_stack
from tpcompile.verify.rules.site import Rule, Site, Undecided, broadcast, moved, summed_over


def transpose(site: Site) -> list[State]:
    state = site.lies(0)
    order = site.attribute("perm") or list(range(len(state.axes)))[::-1]
    return [moved(state, [state.axes[at] for at in order])]


def _numbers(site: Site, at: int, name: str) -> list[int] | None:
    """A list of ints given as attribute or as input."""
    if site.given(at):
        return [int(value) for value in np.reshape(site.values(at)[0], -1)]
    found = site.attribute(name)
    return None if found is None else [int(value) for value in found]


def squeeze(site: Site) -> list[State]:
    state = site.lies(0)
    axes = _numbers(site, 1, "axes")
    gone = (
        {at % len(state.axes) for at in axes}
        if axes is not None
        else {at for at, axis in enumerate(state.axes) if axis.unit}
    )
    for at in gone:
        site.need_whole(state.axes[at], f"axis {at}")
    return [moved(state, [axis for at, axis in enumerate(state.axes) if at not in gone])]


def unsqueeze(site: Site) -> list[State]:
    state = site.lies(0)
    rank = len(site.shapes()[0])
    new = {at % rank for at in _numbers(site, 1, "axes") or []}
    old = iter(state.axes)
    axes = [lattice.whole(1, site.tp) if at in new else next(old) for at in range(rank)]
    return [
        Lies(
            tuple(axes),
            state.shares,
            state.reduce,
            state.lookup if min(new, default=rank) >= rank - 1 and not state.lookup else None,
        )
    ]


def reshape(site: Site) -> list[State]:
    """Axes are merged and divided in the smallest groups whose sizes agree: local ones, and whole ones if known."""
    state = site.lies(0)
    sizes_before, sizes_after = _sizes_around(site, state)
    axes: list[Axis] = []
    i = j = 0
    while i < len(sizes_before) or j < len(sizes_after):
        taken, made, a, b = i, j, np.array(1), np.array(1)
        while True:
            if i == taken or (j > made and (a < b).any()):
                if i == len(sizes_before):
                    break
                a, i = a * sizes_before[i], i + 1
            elif j == made or (b < a).any():
                if j == len(sizes_after):
                    break
                b, j = b * sizes_after[j], j + 1
            else:
                break
        if i == taken or j == made:  # only ones are left on one side
            if not all(axis.unit for axis in state.axes[taken:i]):
                raise Undecided("drops a cut axis in a Reshape")
            if any((sizes != 1).any() for sizes in sizes_after[made:]):
                raise Undecided("a Reshape of an empty value")
            axes += [lattice.whole(1, site.tp) for _ in sizes_after[made:]]
            break
        axes += _regrouped(site, state.axes[taken:i], sizes_after[made:j], made)
    return [moved(state, axes)]


def _sizes_around(site: Site, state: Lies) -> tuple[list[Array], list[Array]]:
    """Per axis before and after: its local sizes by rank and, where the source tells it of all axes, the whole size."""
    before = [np.array(axis.lengths) for axis in state.axes]
    after = [np.array(lengths) for lengths in zip(*site.shapes(), strict=True)]
    told = site.whole_shape(site.nodes[0].input[0])
    wholes = [axis.flat[0] if axis.flat else told[at] if told else 0 for at, axis in enumerate(state.axes)]
    goal = site.whole_shape(site.nodes[0].output[0])
    if len(goal) != len(after) or math.prod(wholes) != math.prod(goal) or 0 in wholes:
        return before, after
    with_whole = [[np.append(s, n) for s, n in zip(*pair, strict=True)] for pair in ((before, wholes), (after, goal))]
    return with_whole[0], with_whole[1]


def _regrouped(site: Site, group: Sequence[Axis], sizes: Sequence[Array], position: int) -> list[Axis]:
    """The axes of local (and whole) `sizes`, from output axis `position` on, that a group of input axes becomes."""
    told = len(sizes[0]) > site.tp
    if len(group) == len(sizes) == 1:
        return list(group)
    lengths = [[int(size[rank]) for size in sizes] for rank in range(site.tp)]
    if all(axis.whole for axis in group):
        if any(mine != lengths[0] for mine in lengths):
            raise Undecided("divides a whole axis by rank")
        return [lattice.whole(size, site.tp) for size in lengths[0]]
    if not told and position and set(group[0].lengths) == {1} and not group[0].unit and group[1].whole:
        raise Undecided("a cut axis of one entry per rank that may merge to either side")
    one = group[0] if len(group) == 1 else lattice.merged(group)
    if len(sizes) == 1:
        return [one]
    found = lattice.divided(one, lengths, [int(size[-1]) for size in sizes] if told else ())
    if found is None:
        raise Undecided(f"divides an axis that is {one} into {lengths}")
    return found


def flatten(site: Site) -> list[State]:
    state, at = site.lies(0), site.attribute("axis", 1) % (len(site.lies(0).axes) + 1)
    halves = [
        lattice.merged(part) if part else lattice.whole(1, site.tp) for part in (state.axes[:at], state.axes[at:])
    ]
    return [moved(state, halves)]


def expand(site: Site) -> list[State]:
    """Axes of one entry become axes whose entries are alike; the shape may be a local one, of one entry per rank."""
    state = site.lies(0)
    shapes = site.shapes()
    goal = site.whole_shape(site.nodes[0].output[0])
    axes = []
    for back in range(len(shapes[0]), 0, -1):
        axis = state.axes[-back] if back <= len(state.axes) else lattice.whole(1, site.tp)
        lengths = [shape[-back] for shape in shapes]
        grows = set(lengths) != {1} or (len(goal) == len(shapes[0]) and goal[-back] != 1)
        axes.append(lattice.alike(lengths) if axis.unit and grows else axis)
    return [moved(state, axes)]


def constant(site: Site) -> list[State]:
    """ConstantOfShape: all entries are alike, and an axis is whole where it is as long as the source's."""
    told = site.whole_shape(site.nodes[0].output[0])
    axes = []
    for at, lengths in enumerate(zip(*site.shapes(), strict=True)):
        is_whole = len(told) == len(site.shapes()[0]) and set(lengths) == {told[at]}
        axes.append(lattice.whole(lengths[0], site.tp) if is_whole else lattice.alike(lengths))
    return [Lies(tuple(axes))]


def concat(site: Site) -> list[State]:
    parts = [site.lies(at) for at in range(len(site.nodes[0].input))]
    rank = len(parts[0].axes)
    at = site.attribute("axis") % rank
    if len({part.shares for part in parts}) != 1:
        site.fault("TP524", "joins partial values and finished ones, or partial values of different sums")
    axes = []
    for back in range(rank):
        if back == at:
            mine = [part.axes[at] for part in parts if set(part.axes[at].lengths) != {0}]
            if any(axis.flat is None for axis in mine):
                raise Undecided("joins axes of unknown size")
            axes.append(lattice.joined(mine) if mine else parts[0].axes[at])
        else:
            axis = parts[0].axes[back]
            for part in parts[1:]:
                axis = site.matched(axis, part.axes[back], f"axis {back} of its inputs")
            axes.append(axis)
    return [moved(parts[0], axes)]


def split(site: Site) -> list[State]:
    state = site.lies(0)
    at = site.attribute("axis", 0) % len(state.axes)
    sizes = [[shape[at] for shape in site.shapes(output)] for output in range(len(site.nodes[0].output))]
    parts = site.parted(state.axes[at], sizes)
    return [moved(state, [*state.axes[:at], part, *state.axes[at + 1 :]]) for part in parts]


def slice_(site: Site) -> list[State]:
    state = site.lies(0)
    axes = list(state.axes)
    if site.given(1):
        given = [[np.reshape(array, -1) for array in site.values(at)] if site.given(at) else None for at in range(1, 5)]
    else:  # before opset 10
        given = [
            [np.array(attribute(node, name)) for node in site.nodes] if site.attribute(name) else None
            for name in ("starts", "ends", "axes")
        ] + [None]
    starts, ends, on, steps = given
    assert starts is not None and ends is not None
    for place in range(len(starts[0])):
        at = int(on[0][place]) % len(axes) if on else place
        chosen = []
        for rank in range(site.tp):
            step = int(steps[rank][place]) if steps else 1
            start, end = int(starts[rank][place]), int(ends[rank][place])
            stop = None if step < 0 and end < -axes[at].lengths[rank] else end
            chosen.append(np.arange(axes[at].lengths[rank])[start:stop:step])
        axes[at] = lattice.select(axes[at], chosen)
    return [moved(state, axes)]


def pad(site: Site) -> list[State]:
    """Padding of a cut axis is junk until a selection drops it; padding of a whole one makes a longer whole one."""
    state = site.lies(0)
    pads = site.values(1) if site.given(1) else [np.array(attribute(node, "pads")) for node in site.nodes]
    on = _numbers(site, 3, "axes") or list(range(len(state.axes)))
    axes = list(state.axes)
    for place, at in enumerate(on):
        before, after = [int(p[place]) for p in pads], [int(p[place + len(on)]) for p in pads]
        axis = axes[at % len(axes)]
        if not any(before) and not any(after):
            continue
        if axis.whole and len(set(before)) == len(set(after)) == 1:
            axes[at % len(axes)] = lattice.whole(axis.lengths[0] + before[0] + after[0], site.tp)
        elif axis.flat:
            junk = [
                (np.full(b, lattice.PADDING), np.full(a, lattice.PADDING)) for b, a in zip(before, after, strict=True)
            ]
            axes[at % len(axes)] = lattice.cut(
                axis.flat[0], [np.concatenate([b, index, a]) for (b, a), index in zip(junk, axis.flat[1], strict=True)]
            )
        else:
            raise Undecided("pads an axis of unknown size")
    return [moved(state, axes)]


def tile(site: Site) -> list[State]:
    state, repeats = site.lies(0), site.values(1)[0].tolist()
    axes = []
    for at, (axis, count) in enumerate(zip(state.axes, repeats, strict=True)):
        if count != 1 and not axis.whole:
            raise Undecided(f"repeats axis {at}, which is cut")
        axes.append(
            axis
            if count == 1
            else lattice.alike([s[at] for s in site.shapes()])
            if axis.unit
            else lattice.whole(axis.lengths[0] * count, site.tp)
        )
    return [moved(state, axes)]


def reduce(site: Site) -> list[State]:
    """A sum or mean over a cut axis leaves a partial sum, a maximum a partial maximum; others need the axis whole."""
    given, on = site.states[0], _numbers(site, 1, "axes")
    if isinstance(given, Stacked):
        return reduced_stack(site, given, on or [])
    state = site.lies(0)
    on = (
        list(range(len(state.axes)))
        if not on and not site.attribute("noop_with_empty_axes", 0)
        else [at % len(state.axes) for at in on or []]
    )
    linear, keep = site.op in ("ReduceSum", "ReduceMean"), site.attribute("keepdims", 1)
    if not linear:
        state = site.finished(0)
    shares, kind = state.shares, state.reduce
    for at in on:
        if state.axes[at].whole or state.axes[at].alike:
            continue
        mine = summed_over(site, state.axes[at])
        if linear or site.op == "ReduceSumSquare":
            shares = shares | mine
        elif site.op in ("ReduceMax", "ReduceMin"):
            shares, kind = shares | mine, site.op[6:].lower()
        else:
            site.need_whole(state.axes[at], f"axis {at}")
    axes = [
        lattice.whole(1, site.tp) if at in on else axis for at, axis in enumerate(state.axes) if keep or at not in on
    ]
    return [Lies(tuple(axes), shares, kind)]


def over_axis(default: int, to_end: bool = False) -> Rule:
    """Softmax and its like: the axis (with `to_end`, all from it on) must be whole and the input finished."""

    def rule(site: Site) -> list[State]:
        state = site.finished(0)
        at = site.attribute("axis", default) % len(state.axes)
        for back in range(at, len(state.axes) if to_end else at + 1):
            site.need_whole(state.axes[back], f"axis {back}")
        axes = state.axes
        if to_end:
            others = [n for n in (1, 2) if site.given(n)]
            for n in others:
                site.states[n] = site.finished(n)
            axes = broadcast(site, [0, *others])
        found: list[State] = [Lies(axes)]
        return found + [
            Lies(tuple(lattice.whole(1, site.tp) if back >= at else axis for back, axis in enumerate(axes)))
        ] * (len(site.nodes[0].output) - 1)

    return rule
