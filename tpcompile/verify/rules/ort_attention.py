"""Rules of ONNX Runtime's attention operators: heads may be cut, positions and the width of a head may not."""

from __future__ import annotations

from collections.abc import Sequence

from tpcompile.verify import lattice
from tpcompile.verify.files import attribute
from tpcompile.verify.lattice import Axis, Lies, State
from tpcompile.verify.rules.attention import serve
from tpcompile.verify.rules.site import Site, Undecided


def heads_of(site: Site, axis: Axis, counts: Sequence[int], what: str) -> tuple[Axis, Axis]:
    """The last axis of a value as heads (`counts[rank]` of them) and the width of one, which must be whole."""
    if any(count < 1 or length % count for count, length in zip(counts, axis.lengths, strict=True)):
        site.fault("TP526", f"has {list(counts)} heads by rank in {what}, which is {axis}")
        return axis, lattice.whole(1, site.tp)
    parts = lattice.divided(axis, [[n, length // n] for n, length in zip(counts, axis.lengths, strict=True)])
    if parts is None:
        raise Undecided(f"heads that cannot be told from {axis}")
    heads, width = parts
    site.need_whole(width, f"the width of a head in {what}")
    return heads, width


def counts_of(site: Site, name: str) -> list[int]:
    """An attribute that may differ by rank."""
    return [int(attribute(node, name, 0)) for node in site.nodes]


def need_whole(site: Site, operands: Sequence[int]) -> None:
    """Inputs of which each rank needs all."""
    for at in operands:
        if site.given(at):
            for axis in site.finished(at).axes:
                site.need_whole(axis, repr(site.nodes[0].input[at]))


def bias_fits(site: Site, at: int, heads: Axis) -> None:
    """An attention bias, [batch or 1, heads or 1, queries, keys]: its heads are those of the queries."""
    if site.given(at):
        axes = site.finished(at).axes
        if len(axes) != 4:
            raise Undecided("an attention bias that has no four axes")
        if not axes[1].unit:
            site.matched(axes[1], heads, "the heads of the attention bias and of the queries")
        for axis in axes[2:]:
            site.need_whole(axis, "positions of the attention bias")


def outputs(site: Site, batch: Axis, queries: Axis, value_heads: Axis, cache_heads: Axis, width: Axis) -> list[State]:
    """Output [batch, positions, heads * width], then caches and scores with the lengths of the run."""
    found: list[State] = [
        Lies((batch, lattice.whole(site.shapes()[0][1], site.tp), lattice.merged([value_heads, width])))
    ]
    for at in range(1, len(site.nodes[0].output)):
        if site.nodes[0].output[at]:
            _, _, positions, last = (lattice.whole(size, site.tp) for size in site.shapes(at)[0])
            found.append(Lies((batch, cache_heads if at < 3 else queries, positions, last)))
        else:
            found.append(lattice.Free.UNKNOWN)
    return found


def group_query(site: Site) -> list[State]:
    """GroupQueryAttention: queries, keys and values apart, or packed in one axis, q | k | v."""
    nq, nkv = counts_of(site, "num_heads"), counts_of(site, "kv_num_heads")
    query = site.finished(0)
    if site.given(1):
        parts = [query.axes[2], site.finished(1).axes[2], site.finished(2).axes[2]]
    else:
        lengths = query.axes[2].lengths
        widths = [length // (q + 2 * kv) for length, q, kv in zip(lengths, nq, nkv, strict=True)]
        if any(w * (q + 2 * kv) != n for w, q, kv, n in zip(widths, nq, nkv, lengths, strict=True)):
            site.fault("TP526", f"has {nq} and {nkv} heads by rank in an axis that is {query.axes[2]}")
            return [lattice.Free.UNKNOWN] * len(site.nodes[0].output)
        sizes = [[n * w for n, w in zip(counts, widths, strict=True)] for counts in (nq, nkv, nkv)]
        parts = site.parted(query.axes[2], sizes)
    q, width = heads_of(site, parts[0], nq, "queries")
    k, _ = heads_of(site, parts[1], nkv, "keys")
    v, _ = heads_of(site, parts[2], nkv, "values")
    kv = site.matched(k, v, "the heads of keys and values")
    for at in (3, 4):
        if site.given(at):
            kv = site.matched(kv, site.finished(at).axes[1], "the heads of the cache and of new keys")
    serve(site, q, kv)
    need_whole(site, (5, 6, 7, 8, 9))
    bias_fits(site, 10, q)
    if site.given(11):
        site.matched(site.finished(11).axes[0], q, "the heads of sinks and queries")
    site.need_whole(query.axes[1], "the positions")
    return outputs(site, query.axes[0], q, q, kv, width)


def multi_head(site: Site) -> list[State]:
    """MultiHeadAttention: [batch, positions, heads * width], or keys as [batch, heads, positions, width]."""
    counts = counts_of(site, "num_heads")
    query = site.finished(0)
    if len(query.axes) != 3 or not site.given(1) or not site.given(2):
        raise Undecided("packed queries, keys and values")
    q, _ = heads_of(site, query.axes[2], counts, "queries")
    sides = []
    for at, what in ((1, "keys"), (2, "values")):
        axes = site.finished(at).axes
        sides.append(heads_of(site, axes[2], counts, what) if len(axes) == 3 else (axes[1], axes[3]))
    (k, _), (v, width) = sides
    heads = site.matched(site.matched(q, k, "the heads of queries and keys"), v, "the heads of keys and values")
    if site.given(3):
        bias = site.parted(site.finished(3).axes[0], [query.axes[2].lengths, *_widths(site, counts)])
        site.matched(bias[0], query.axes[2], "bias and queries")
        for at, part in ((1, bias[1]), (2, bias[2])):
            axes = site.lies(at).axes
            whole = axes[2] if len(axes) == 3 else lattice.merged([axes[1], axes[3]])
            site.matched(part, whole, "bias and keys or values")
    need_whole(site, (4, 8))
    bias_fits(site, 5, q)
    for at in (6, 7):
        if site.given(at):
            heads = site.matched(heads, site.finished(at).axes[1], "the heads of the cache and of new keys")
    site.need_whole(query.axes[1], "the positions")
    return outputs(site, query.axes[0], q, v, heads, width)


def _widths(site: Site, counts: Sequence[int]) -> list[list[int]]:
    """Local entries of keys and of values, heads times width."""
    found = []
    for at in (1, 2):
        axes = site.lies(at).axes
        if len(axes) == 3:
            found.append(list(axes[2].lengths))
        else:
            found.append([n * width for n, width in zip(counts, axes[3].lengths, strict=True)])
    return found


def packed(site: Site) -> list[State]:
    """Attention: the product with weights [in, q | k | v] is within it, so what that sums over must be whole."""
    counts = counts_of(site, "num_heads")
    x, w = site.finished(0), site.finished(1)
    site.need_whole(x.axes[2], "the summed axis")
    site.need_whole(w.axes[0], "the summed axis")
    told = [attribute(node, "qkv_hidden_sizes") for node in site.nodes]
    each = [list(sizes or [length // 3] * 3) for sizes, length in zip(told, w.axes[1].lengths, strict=True)]
    if any(sum(sizes) != length for sizes, length in zip(each, w.axes[1].lengths, strict=True)):
        site.fault("TP526", f"has parts of {each} by rank in weights whose columns are {w.axes[1]}")
        return [lattice.Free.UNKNOWN] * len(site.nodes[0].output)
    parts = site.parted(w.axes[1], [list(sizes) for sizes in zip(*each, strict=True)])
    (q, _), (k, _), (v, width) = (
        heads_of(site, part, counts, what) for part, what in zip(parts, ("queries", "keys", "values"), strict=True)
    )
    heads = site.matched(site.matched(q, k, "the heads of queries and keys"), v, "the heads of keys and values")
    if site.given(2):
        site.matched(site.finished(2).axes[0], w.axes[1], "bias and columns of the weights")
    need_whole(site, (3, 6))
    if site.given(4):
        past = site.finished(4).axes
        heads = site.matched(heads, past[2], "the heads of the cache and of new keys")
    bias_fits(site, 5, q)
    site.need_whole(x.axes[1], "the positions")
    found: list[State] = [Lies((x.axes[0], x.axes[1], lattice.merged([v, width])))]
    if len(site.nodes[0].output) > 1 and site.nodes[0].output[1]:
        two, _, _, positions, last = (lattice.whole(size, site.tp) for size in site.shapes(1)[0])
        found.append(Lies((two, x.axes[0], heads, positions, last)))
    return found


def rotary(site: Site) -> list[State]:
    """RotaryEmbedding turns the entries of each head alike; a head is as wide as the cosines say, or the heads."""
    state = site.finished(0)
    need_whole(site, (1, 2, 3))
    if len(state.axes) == 4:
        site.need_whole(state.axes[3], "the width of a head")
        return [state]
    counts = counts_of(site, "num_heads")
    if not all(counts):
        width = 2 * site.lies(2).axes[-1].lengths[0]
        counts = [length // width for length in state.axes[2].lengths]
        if any(length % width for length in state.axes[2].lengths):
            site.fault("TP526", f"turns heads of {width} in an axis that is {state.axes[2]}")
            return [state]
    heads_of(site, state.axes[2], counts, "what is turned")
    return [state]
