"""Rules of fused elementwise operators, norms and products of ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tpcompile.verify import lattice
from tpcompile.verify.lattice import Lies, State
from tpcompile.verify.rules import arithmetic
from tpcompile.verify.rules.site import Site, Undecided, broadcast


def skip_norm(site: Site) -> list[State]:
    """A norm of the sum of input, skip and bias: over the last axis, which must be whole in all of them."""
    operands = [at for at in range(len(site.nodes[0].input)) if site.given(at)]
    for at in operands:
        site.states[at] = site.finished(at)
        site.need_whole(site.lies(at).axes[-1], "the last axis")
    axes = broadcast(site, operands)
    statistic = Lies((*axes[:-1], lattice.whole(1, site.tp)))
    found: list[State] = [Lies(axes), statistic, statistic, Lies(axes)]
    return found[: len(site.nodes[0].output)]


def embed_norm(site: Site) -> list[State]:
    """Looks up, adds and norms in one: tables must be whole, the batch of ids may lie as it will."""
    for at, name in enumerate(site.nodes[0].input):
        if name and at > 1:
            for axis in site.finished(at).axes:
                site.need_whole(axis, f"{name!r}")
    ids = site.finished(0).axes
    width = site.lies(2).axes[-1]
    embedded = Lies((*ids, width))
    found: list[State] = [embedded, Lies(ids[:1]), embedded]
    return found[: len(site.nodes[0].output)]


def bias_softmax(site: Site) -> list[State]:
    """A Softmax of the sum of two values, over the last axes from `axis` on."""
    for at in (0, 1):
        site.states[at] = site.finished(at)
    axes = site.lies(0).axes
    broadcast(site, [0, 1])
    for axis in axes[int(site.attribute("axis", 1)) :]:
        site.need_whole(axis, "an axis that Softmax runs over")
    return [Lies(axes)]


def gated(site: Site) -> list[State]:
    """BiasSplitGelu: after the bias the last axis is two halves, one the gate of the other."""
    for at in (0, 1):
        site.states[at] = site.finished(at)
    axes = broadcast(site, [0, 1])
    first, second = (
        lattice.select(axes[-1], [np.arange(side * (size // 2), (side + 1) * (size // 2)) for size in axes[-1].lengths])
        for side in (0, 1)
    )
    return [Lies((*axes[:-1], site.matched(first, second, "the two halves")))]


def fused_matmul(site: Site) -> list[State]:
    """A MatMul of operands that may be turned, their batch axes too, times a number."""
    for at, side in ((0, "A"), (1, "B")):
        state = site.lies(at)
        axes = list(state.axes)
        if site.attribute(f"transBatch{side}", 0):  # [m, batch…, k] stands for [batch…, m, k]
            axes = [*axes[1:-1], axes[0], axes[-1]]
        if site.attribute(f"trans{side}", 0) and len(axes) > 1:
            axes[-2:] = axes[:-3:-1]
        site.states[at] = replace(state, axes=tuple(axes))
    return arithmetic.matmul(site)


def gemm_gelu(site: Site) -> list[State]:
    """GemmFastGelu: a product, a bias and a nonlinear function, so what it sums over must be whole."""
    site.need_whole(site.lies(0).axes[-1], "the summed axis")
    for at in (0, 1):
        site.states[at] = site.finished(at)
    (product,) = arithmetic.matmul(site.first(2))
    if not isinstance(product, Lies):
        raise Undecided("a product that has no place")
    return [arithmetic.with_bias(site, product, 2)]
