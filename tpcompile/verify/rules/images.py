"""Rules of operators on images, [batch, channels, space…]: space is whole, channels may be cut."""

from __future__ import annotations

from collections.abc import Sequence

from tpcompile.verify import lattice
from tpcompile.verify.files import attribute
from tpcompile.verify.lattice import Axis, Lies, State
from tpcompile.verify.rules.arithmetic import product
from tpcompile.verify.rules.site import Site, Undecided


def _space(site: Site, state: Lies) -> tuple[Axis, ...]:
    """The axes of space of output 0, those of the input being whole."""
    for axis in state.axes[2:]:
        site.need_whole(axis, "a spatial axis")
    return tuple(lattice.whole(size, site.tp) for size in site.shapes()[0][2:])


def pool(site: Site) -> list[State]:
    """Pools and global pools: each channel by itself; a maximum or mean needs a finished value."""
    state = site.finished(0)
    axes = (*state.axes[:2], *_space(site, state))
    return [Lies(axes)] * len(site.nodes[0].output)


def resize(site: Site) -> list[State]:
    """Axes that keep their length pass, those that change it must be whole."""
    state = site.finished(0)
    axes = []
    for axis, lengths in zip(state.axes, zip(*site.shapes(), strict=True), strict=True):
        if axis.lengths != lengths:
            site.need_whole(axis, "an axis that changes its length")
            axis = lattice.whole(lengths[0], site.tp)
        axes.append(axis)
    return [Lies(tuple(axes))]


def per_channel(site: Site) -> list[State]:
    """BatchNormalization (at inference), InstanceNormalization: numbers per channel lie as the channels."""
    state = site.finished(0)
    _space(site, state)
    for at in range(1, len(site.nodes[0].input)):
        if site.given(at):
            site.matched(site.finished(at).axes[0], state.axes[1], f"{site.nodes[0].input[at]!r} and the channels")
    return [state] * len(site.nodes[0].output)


def group_norm(site: Site) -> list[State]:
    """GroupNormalization: no group may be shared by ranks; scale and bias per channel, or per group (opset 18)."""
    state = site.finished(0)
    _space(site, state)
    groups, width = _grouped(site, state.axes[1], [int(attribute(node, "num_groups")) for node in site.nodes])
    site.need_whole(width, "the channels of a group")
    for at in (1, 2):
        mine = site.finished(at).axes[0]
        theirs = state.axes[1] if mine.lengths == state.axes[1].lengths else groups
        site.matched(mine, theirs, f"{site.nodes[0].input[at]!r} and what it scales")
    return [state]


def _grouped(site: Site, channels: Axis, counts: Sequence[int]) -> tuple[Axis, Axis]:
    if any(length % count for length, count in zip(channels.lengths, counts, strict=True)):
        raise Undecided(f"{list(counts)} groups by rank in channels that are {channels}")
    found = lattice.divided(channels, [[n, length // n] for n, length in zip(counts, channels.lengths, strict=True)])
    if found is None:
        raise Undecided(f"groups that cannot be told from channels that are {channels}")
    return found[0], found[1]


def local_response(site: Site) -> list[State]:
    """LRN looks at neighbouring channels."""
    state = site.finished(0)
    site.need_whole(state.axes[1], "the channels")
    return [state]


def blocks_of_space(site: Site) -> list[State]:
    """DepthToSpace, SpaceToDepth: channels and space mix."""
    state = site.finished(0)
    if not state.axes[1].whole:
        raise Undecided("blocks of space among channels that are cut")
    space = _space(site, state)
    return [Lies((state.axes[0], lattice.whole(site.shapes()[0][1], site.tp), *space))]


def conv(site: Site) -> list[State]:
    """Conv: a product that sums over the channels of each group; whole groups may lie on different ranks."""
    x, w = site.lies(0), site.lies(1)
    groups = [int(attribute(node, "group", 1)) for node in site.nodes]
    one_group_each = w.axes[1].whole and not x.axes[1].whole and w.axes[1].lengths == x.axes[1].lengths
    if set(groups) == {1} and not one_group_each:
        found = product(site, x, w, (x.axes[1], w.axes[1]), (x.axes[0], w.axes[0], *_space(site, x)))
        return [_with_channel_bias(site, found)]
    mine, each = _grouped(site, x.axes[1], groups)
    theirs, _ = _grouped(site, w.axes[0], groups)
    site.matched(mine, theirs, "the groups of the input and of the weight")
    found = product(site, x, w, (each, w.axes[1]), (x.axes[0], w.axes[0], *_space(site, x)))
    return [_with_channel_bias(site, found)]


def conv_transpose(site: Site) -> list[State]:
    """ConvTranspose: weights are [channels in, channels out, space…]; a sum over the channels in."""
    x, w = site.lies(0), site.lies(1)
    if any(int(attribute(node, "group", 1)) != 1 for node in site.nodes):
        if not (x.axes[1].whole and w.whole):
            raise Undecided("a grouped ConvTranspose that is cut")
        channels = lattice.whole(site.shapes()[0][1], site.tp)
        found = Lies((x.axes[0], channels, *_space(site, x)), x.shares)
    else:
        found = product(site, x, w, (x.axes[1], w.axes[0]), (x.axes[0], w.axes[1], *_space(site, x)))
    return [_with_channel_bias(site, found)]


def _with_channel_bias(site: Site, result: Lies) -> Lies:
    """A product plus a number per channel, which must count once."""
    if not site.given(2):
        return result
    bias = site.lies(2)
    site.matched(result.axes[1], bias.axes[0], "the channels of weight and bias")
    if result.shares and not bias.shares and any(array.any() for array in site.values(2)):
        site.fault("TP525", f"adds bias {site.nodes[0].input[2]!r}, which every rank holds, to a partial result")
    return Lies(result.axes, result.shares | bias.shares)
