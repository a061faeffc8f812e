"""Rules of mixtures of experts: the width within experts may be cut, which leaves a partial sum."""

from __future__ import annotations

from tpcompile.verify import lattice
from tpcompile.verify.lattice import Axis, Lies, State
from tpcompile.verify.rules.quantised import blocks_fit
from tpcompile.verify.rules.site import Site, Undecided, summed_over

FLOAT = {"fc1": (2, 3, None, None), "fc2": (4, 5, None, None), "fc3": (6, 7, None, None)}
PACKED = {"fc1": (2, 4, 3, 11), "fc2": (5, 7, 6, 12), "fc3": (8, 10, 9, 13)}
"""Where weights, bias, scales and zero points of each product stand among the inputs."""


def mixture(site: Site) -> list[State]:
    """MoE, QMoE: [experts, out, in] weights; fc1 (and fc3) to the inner width, fc2 back, summed over it."""
    places = PACKED if site.op == "QMoE" else FLOAT
    x, router = site.finished(0), site.finished(1)
    site.need_whole(x.axes[-1], "the summed axis of fc1")
    site.need_whole(router.axes[-1], "the experts of the router")
    for weight, bias, scale, zero in places.values():
        for at in (weight, bias, scale, zero):
            if at is not None and site.given(at):
                site.need_whole(site.lies(at).axes[0], "the experts")
    first, second = (site.finished(places[name][0]).axes for name in ("fc1", "fc2"))
    inner, width = first[1], second[2]
    site.need_whole(first[2], "the summed axis of fc1")
    site.need_whole(second[1], "the columns of fc2")
    if site.given(places["fc3"][0]):
        site.matched(site.finished(places["fc3"][0]).axes[1], inner, "the inner widths of fc1 and fc3")
    for name in ("fc1", "fc3"):
        _columns_fit(site, places[name])
    shares = _inner_shares(site, inner, width)
    scale = places["fc2"][2]
    if scale is not None and site.given(scale) and len(site.lies(scale).axes) == 3 and not inner.whole:
        size = int(site.attribute("block_size", 0))
        blocks_fit(site, site.lies(scale).axes[2], _opened(site, inner, width), size, "scales of fc2 and its blocks")
    bias = places["fc2"][1]
    pending = frozenset[tuple[int | None, ...]]()
    if bias is not None and site.given(bias):
        pending = site.lies(bias).shares
        if shares and not pending and any(array.any() for array in site.values(bias)):
            site.fault("TP525", f"adds bias {site.nodes[0].input[bias]!r}, which every rank holds, to a partial result")
    return [Lies(x.axes, shares | pending)]


def _columns_fit(site: Site, places: tuple[int, int, int | None, int | None]) -> None:
    """Bias, scales and zero points of fc1 and fc3 lie as their columns."""
    weight, *others = places
    for at in others:
        if at is not None and site.given(at) and site.given(weight):
            columns = site.lies(weight).axes[1]
            site.matched(site.finished(at).axes[1], columns, f"{site.nodes[0].input[at]!r} and the inner width")


def _inner_shares(site: Site, inner: Axis, width: Axis) -> lattice.Shares:
    """What is left open: the inner width of fc1 (twice, where it is fused with its gate) must be that of fc2."""
    if inner.whole and width.whole:
        return frozenset()
    opened = _opened(site, inner, width)
    fusion, factor = site.attribute("swiglu_fusion", 0), inner.lengths[0] // max(1, opened.lengths[0])
    if factor == 2:
        two = lattice.whole(2, site.tp)
        both = lattice.merged([opened, two]) if fusion == 1 else lattice.joined([opened, opened])
        site.matched(inner, both, "the inner widths of fc1 and fc2")
    elif factor == 1:
        site.matched(inner, opened, "the inner widths of fc1 and fc2")
    else:
        raise Undecided(f"an inner width that is {inner} in fc1 and {width} in fc2")
    return summed_over(site, opened)


def _opened(site: Site, inner: Axis, width: Axis) -> Axis:
    """The summed axis of fc2 in entries, where several are packed in a byte."""
    bits = int(site.attribute("expert_weight_bits", 4)) if site.op == "QMoE" else 8
    return width if bits == 8 else lattice.merged([width, lattice.whole(8 // bits, site.tp)])
