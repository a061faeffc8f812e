"""Rules of quantised operators: scales and zero points must lie as the axis or the blocks that they belong to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from tpcompile.verify import lattice
from tpcompile.verify.files import attribute
from tpcompile.verify.lattice import Axis, Lies, State
from tpcompile.verify.rules import arithmetic, lookups
from tpcompile.verify.rules.site import Site, Undecided, broadcast, summed_over


def linear(site: Site) -> list[State]:
    """QuantizeLinear, DequantizeLinear: one scale for all, one along an axis, or one per block of it."""
    state = site.finished(0)
    for at in (1, 2):
        if site.given(at):
            _scale_fits(site, state, site.finished(at), site.nodes[0].input[at])
    return [state]


def _scale_fits(site: Site, state: Lies, scale: Lies, name: str) -> None:
    block = int(site.attribute("block_size", 0))
    if all(axis.unit for axis in scale.axes):
        return
    on = int(site.attribute("axis", 1)) % len(state.axes)
    if len(scale.axes) == 1:
        site.matched(scale.axes[0], state.axes[on], f"{name!r} and axis {on}")
        return
    if not block or len(scale.axes) != len(state.axes):
        raise Undecided("scales of neither one axis nor blocks")
    for at, (mine, theirs) in enumerate(zip(scale.axes, state.axes, strict=True)):
        if at == on:
            blocks_fit(site, mine, theirs, block, f"{name!r} and the blocks of axis {at}")
        else:
            site.matched(mine, theirs, f"{name!r} and axis {at}")


def blocks_fit(site: Site, blocks: Axis, axis: Axis, size: int, what: str) -> None:
    """Entry i of `axis` must find the block i // size of the whole in the place of its local block."""
    if axis.whole and blocks.whole:
        return
    if axis.flat is None or blocks.flat is None:
        raise Undecided(f"{what}: {blocks} and {axis}")
    for held, mine in zip(axis.flat[1], blocks.flat[1], strict=True):
        local = np.arange(held.size) // size
        if local.max(initial=-1) >= mine.size or not np.array_equal(mine[local], held // size):
            site.fault("TP526", f"{what} do not lie alike: {blocks} (blocks of {size}) and {axis}")
            return


def dynamic(site: Site) -> list[State]:
    """DynamicQuantizeLinear: the range of all entries, so none may lack."""
    state = site.finished(0)
    for at, axis in enumerate(state.axes):
        site.need_whole(axis, f"axis {at}, to find the range")
    one = Lies(())
    return [state, one, one]


def matmul_integer(site: Site) -> list[State]:
    """MatMulInteger: an exact product of what lies above the zero points: linear, so sums may stay open."""
    (found,) = arithmetic.matmul(site.first(2))
    _zeros_fit(site, 2, -2, 0)
    _zeros_fit(site, 3, -1, 1)
    return [found]


def _zeros_fit(site: Site, at: int, axis: int, of: int) -> None:
    """Zero points: one, or one per row of a, column of b."""
    if site.given(at):
        state = site.finished(at)
        if state.axes and not all(mine.unit for mine in state.axes):
            if len(state.axes) != 1:
                raise Undecided("zero points of more than one axis")
            site.matched(state.axes[0], site.lies(of).axes[axis], "zero points and what they belong to")


def dynamic_matmul(site: Site) -> list[State]:
    """DynamicQuantizeMatMul: quantises a by its own range, so a must be whole; columns of b may be cut."""
    for at, axis in enumerate(site.finished(0).axes):
        site.need_whole(axis, f"axis {at} of {site.nodes[0].input[0]!r}, to find its range")
    (found,) = arithmetic.matmul(site.first(2))
    for at in (2, 3, 4):
        if site.given(at) and not all(axis.unit for axis in site.finished(at).axes):
            site.matched(site.lies(at).axes[-1], site.lies(1).axes[-1], "what belongs to columns, and the columns")
    return [found]


def integer_to_float(site: Site) -> list[State]:
    """MatMulIntegerToFloat: a product with scales, and a bias that counts once."""
    (found,) = arithmetic.matmul(site.first(2))
    for at, axis, of in ((2, -2, 0), (4, -2, 0), (3, -1, 1), (5, -1, 1)):
        _zeros_fit(site, at, axis, of)
    if not isinstance(found, Lies):
        raise Undecided("a product that has no place")
    return [arithmetic.with_bias(site, found, 6)]


def matmul_nbits(site: Site) -> list[State]:
    """MatMulNBits: a [.., K] with b [N, blocks of K, bytes], a scale per block, packed zero points, a bias of N."""
    a, b = site.lies(0), site.finished(1)
    size, bits = int(site.attribute("block_size")), int(site.attribute("bits", 4))
    for name, lengths in (("K", a.axes[-1].lengths), ("N", b.axes[0].lengths)):
        told = [int(attribute(node, name)) for node in site.nodes]
        if told != list(lengths):
            site.fault("TP526", f"attribute {name} is {told} by rank, and there are {list(lengths)}")
    blocks = b.axes[1]
    blocks_fit(site, blocks, a.axes[-1], size, "the blocks of the weight and the summed axis")
    rows = b.axes[0]
    for at in (2, 3):
        if site.given(at):
            per_row = [length // max(1, n) for length, n in zip(_flat_lengths(site, at), rows.lengths, strict=True)]
            mine_rows, inner = _rows_of(site, at, rows, per_row)
            site.matched(mine_rows, rows, f"rows of {site.nodes[0].input[at]!r} and of the weight")
            packed = at == 3 and site.values(at)[0].dtype == np.uint8
            if packed:
                blocks_fit(site, inner, blocks, 8 // bits, "packed zero points and the blocks of the weight")
            else:
                site.matched(inner, blocks, f"{site.nodes[0].input[at]!r} and the blocks of the weight")
    if site.given(4):
        raise Undecided("an order of groups (g_idx)")
    shares = summed_over(site, a.axes[-1])
    if a.shares and shares:
        site.fault("TP524", f"multiplies {site.nodes[0].input[0]!r}, which is not reduced yet")
    result = Lies((*a.axes[:-1], rows), a.shares | shares)
    return [arithmetic.with_bias(site, result, 5)]


def _flat_lengths(site: Site, at: int) -> list[int]:
    return [array.size for array in site.values(at)]


def _rows_of(site: Site, at: int, rows: Axis, per_row: list[int]) -> tuple[Axis, Axis]:
    """Scales or zero points as [rows, blocks or bytes], stored so or flat."""
    axes = site.finished(at).axes
    if len(axes) == 2:
        return axes[0], axes[1]
    wanted = (rows.flat[0], axes[0].flat[0] // rows.flat[0]) if rows.flat and axes[0].flat else ()
    lengths = [[n, each] for n, each in zip(rows.lengths, per_row, strict=True)]
    found = lattice.divided(axes[0], lengths, wanted) if len(axes) == 1 else None
    if found is None:
        raise Undecided(f"rows that cannot be told from {site.lies(at)}")
    return found[0], found[1]


def gather_blocks(site: Site) -> list[State]:
    """GatherBlockQuantized: a lookup in a quantised table, its scales and zero points cut as it is."""
    data, size = site.finished(0), int(site.attribute("block_size", 128))
    at = int(site.attribute("gather_axis", 0)) % len(data.axes)
    on = int(site.attribute("quantize_axis", 1)) % len(data.axes)
    made = site.shapes()
    lead = len(site.values(1)[0].shape) - 1
    place = on + lead if on > at else on
    per_entry = [shape[place] // max(1, length) for shape, length in zip(made, data.axes[on].lengths, strict=True)]
    if len(set(per_entry)) > 1 or on == at:
        raise Undecided("a lookup along the quantised axis")
    opened = lattice.merged([data.axes[on], lattice.whole(per_entry[0], site.tp)])
    for other in (2, 3):
        if site.given(other):
            scale, name = site.finished(other), site.nodes[0].input[other]
            site.matched(scale.axes[at], data.axes[at], f"rows of {name!r} and of the table")
            packs = per_entry[0] if other == 3 else 1
            blocks_fit(site, scale.axes[on], opened, size * packs, f"{name!r} and the blocks of the table")
    axes = tuple(opened if axis == on else mine for axis, mine in enumerate(data.axes))
    nodes = [onnx.helper.make_node("Gather", n.input[:2], n.output, n.name, axis=at) for n in site.nodes]
    return lookups.gather(replace(site, states=[Lies(axes), site.states[1]], nodes=nodes))


def elementwise_of_scales(site: Site) -> list[State]:
    """QLinearAdd and its like: numbers of one scale each, combined entry by entry."""
    values = [at for at in (0, 3) if site.given(at)]
    for at in range(len(site.nodes[0].input)):
        if site.given(at):
            site.states[at] = site.finished(at)
            if at not in values and not all(axis.unit for axis in site.lies(at).axes):
                raise Undecided("a scale per entry")
    return [Lies(broadcast(site, values))]
