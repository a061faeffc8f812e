"""Rules of attention: heads may be cut, positions and the width of a head may not; query heads must have their keys."""

from __future__ import annotations

import numpy as np

from tpcompile.verify import lattice
from tpcompile.verify.files import attribute
from tpcompile.verify.lattice import Axis, Lies, State
from tpcompile.verify.rules.site import Site, Undecided


def _by_heads(site: Site, at: int, heads: str) -> tuple[Axis, ...]:
    """Batch, heads, positions, width of input `at`; three axes are taken apart by the attribute `heads`."""
    axes = site.finished(at).axes
    if len(axes) == 4:
        return axes
    counts = [attribute(node, heads, 0) for node in site.nodes]
    if not all(counts):
        raise Undecided(f"three axes and no attribute {heads}")
    lengths = [[count, length // count] for count, length in zip(counts, axes[2].lengths, strict=True)]
    parts = lattice.divided(axes[2], lengths)
    if parts is None:
        raise Undecided(f"heads that cannot be told from {axes[2]}")
    return axes[0], parts[0], axes[1], parts[1]


def rotary(site: Site) -> list[State]:
    """RotaryEmbedding turns the entries of each head alike."""
    state = site.finished(0)
    site.need_whole(_by_heads(site, 0, "num_heads")[3], "the width of a head")
    for at in range(1, len(site.nodes[0].input)):
        if site.given(at) and not all(axis.whole or axis.alike for axis in site.finished(at).axes[1:]):
            site.fault("TP526", f"reads {site.nodes[0].input[at]!r}, which is {site.lies(at)} and must be whole")
    return [state]


def serve(site: Site, queries: Axis, keys: Axis) -> None:
    """Each rank's query heads must be those that its key heads serve, in the same order."""
    repeats = [mine // max(1, theirs) for mine, theirs in zip(queries.lengths, keys.lengths, strict=True)]
    if queries.flat is None or keys.flat is None:
        site.matched(queries, keys if set(repeats) == {1} else lattice.merged([keys, lattice.alike(repeats)]), "heads")
        return
    times, rest = divmod(queries.flat[0], max(1, keys.flat[0]))
    served = [
        np.repeat(held, repeat) == mine // max(1, times)
        for held, mine, repeat in zip(keys.flat[1], queries.flat[1], repeats, strict=True)
        if held.size * repeat == mine.size
    ]
    if rest or len(served) < site.tp or not all(same.all() for same in served):
        site.fault("TP526", f"the query heads ({queries}) are not those that the key heads ({keys}) serve")


def attention(site: Site) -> list[State]:
    """ONNX Attention: batch and heads pass through; keys and values of a rank's query heads must be on that rank."""
    q, k, v = (
        _by_heads(site, at, heads) for at, heads in ((0, "q_num_heads"), (1, "kv_num_heads"), (2, "kv_num_heads"))
    )
    for axes in (q, k, v):
        for axis, what in zip(axes[2:], ("the positions", "the width of a head"), strict=True):
            site.need_whole(axis, what)
    kv = site.matched(k[1], v[1], "the heads of keys and values")
    for at in (4, 5):
        if site.given(at):
            kv = site.matched(kv, site.finished(at).axes[1], "the heads of the cache and of new keys")
    serve(site, q[1], kv)
    if site.given(3):
        mask = site.finished(3).axes
        if len(mask) > 2 and not mask[-3].unit:
            site.matched(mask[-3], q[1], "the heads of mask and queries")
    whole = [[lattice.whole(size, site.tp) for size in site.shapes(at)[0]] for at in range(len(site.nodes[0].output))]
    if len(site.lies(0).axes) == 4:
        found: list[State] = [Lies((q[0], q[1], q[2], v[3]))]
    else:
        found = [Lies((q[0], q[2], lattice.merged([q[1], v[3]])))]
    present = [Lies((k[0], kv, axes[2], axes[3])) for axes in whole[1:3]]
    scores = [Lies((q[0], q[1], axes[2], axes[3])) for axes in whole[3:]]
    return [*found, *present, *scores]
