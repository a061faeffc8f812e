"""Products and lookups of weights of few bits, with a scale for each block of a row."""

from tpcompile.dims.dim import Dim
from tpcompile.dims.registry import rule
from tpcompile.dims.relation import Lookup, NotCovered, Relation
from tpcompile.dims.rules.quantized import MICROSOFT, WITHIN_BLOCK

PACKED = "several numbers lie in one byte"


@rule("MatMulNBits", domain=MICROSOFT)
def matmul_in_blocks(op: Relation) -> None:
    """Columns (N) are free; rows (K) are cut between blocks and leave a partial sum."""
    x, w, y = op.input(0), op.input(1), op.output()
    bits, length = op.node.attribute("bits", 4), op.node.attribute("block_size")
    if op.node.attribute("weight_prepacked", 0):
        raise NotCovered("its weight is packed for one kind of device")
    if len(w) != 3 or w[2].size != length * bits // 8:
        raise NotCovered("its weight is not in blocks of bytes")
    for dim, out in zip(x[:-1], y[:-1], strict=True):
        op.pair(dim, out)
    columns, rows = y[-1], x[-1]
    count = op.blocks(rows, length, WITHIN_BLOCK)
    op.pair(w[0], columns)
    op.pair(w[1], count)
    op.whole(w[2], WITHIN_BLOCK)
    op.sums(rows)
    _per_block(op, 2, columns, count)
    if op.has(3):
        zeros = op.node.inputs[3]
        packed = zeros is not None and zeros.dtype == "uint8"
        _per_block(op, 3, columns, op.blocks(count, 8 // bits, PACKED) if packed else count)
    if op.has(4):
        op.whole(rows, "its rows are in another order")
        for dim in op.input(4):
            op.whole(dim, "its rows are in another order")
    if op.has(5):
        op.pair(op.input(5)[0], columns)
        op.once = frozenset((5,))
    op.local_attribute("K", lambda cut, rank: cut.local_size(rows, rank), rows)
    op.local_attribute("N", lambda cut, rank: cut.local_size(columns, rank), columns)


def _per_block(op: Relation, parameter: int, columns: Dim, count: Dim) -> None:
    """A parameter of [N, blocks], or all of it in one axis."""
    own = op.input(parameter)
    if len(own) == 1:
        op.pair_products(own, [columns, count])
    else:
        op.pair(own[0], columns)
        op.pair(own[1], count)


@rule("GatherBlockQuantized", domain=MICROSOFT)
def gather_in_blocks(op: Relation) -> None:
    """As Gather of a table with a scale per block: masked where the table's rows are cut, a partial sum then."""
    x, ids, scales, y = op.input(0), op.input(1), op.input(2), op.output()
    axis, blocked = op.axis("gather_axis", len(x), 0), op.axis("quantize_axis", len(x), 1)
    bits, length = op.node.attribute("bits", 4), op.node.attribute("block_size", 128)
    table = op.value(0)
    if axis == blocked or not length or not x[axis].static or table is None:
        raise NotCovered("a scale for several rows")
    packed = 8 // bits if table.dtype == "uint8" else 1
    if packed > 1 and blocked != len(x) - 1:
        raise NotCovered("bytes and blocks along different axes")
    for k, dim in enumerate(ids):
        op.pair(dim, y[axis + k])
    for k, (dim, scale) in enumerate(zip(x, scales, strict=True)):
        out = dim if k == axis else y[k if k < axis else k + len(ids) - 1]
        if k == blocked:
            count = op.blocks(out, length, WITHIN_BLOCK)
            op.pair(scale, count)
            op.pair(dim, op.blocks(out, packed, PACKED))
            if op.has(3):
                op.pair(op.input(3)[k], op.blocks(count, packed, PACKED))
            continue
        for other in (dim, scale, *([op.input(3)[k]] if op.has(3) else [])):
            op.pair(out, other)
    op.sums(x[axis])
    op.lookup = Lookup(axis)
