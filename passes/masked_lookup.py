"""Look up a table of which each rank has some rows: ids outside are masked, so that the ranks' sum is the lookup.

ONNX indices count from the end where negative: ids are brought to [0, rows) first, for an unmasked lookup of
`ids - offset` would silently read other rows. An id that no row of the whole table has stays one that this rank's rows
have not either: the runtime refuses it as it does in the source, where a masked row of zeros would be believed.
"""

from __future__ import annotations

import numpy as np

from tpcompile.dims.cut import Cut
from tpcompile.dims.relation import Relation
from tpcompile.graph.dtypes import numpy_dtype
from tpcompile.graph.program import Value
from tpcompile.passes.emit import Emitter


def masked_ids(emitter: Emitter, relation: Relation, held: Cut, ids: str, output: str) -> tuple[str, str]:
    """Local ids and the mask of those this rank has, with the output's axes.

    Where another rank has the row they are 0, where none has they are what was asked for.
    """
    lookup, node = relation.lookup, relation.node
    if lookup is None:
        raise ValueError(node.name)
    table = relation.input(0)[lookup.axis]
    rows = [held.index(table, rank) for rank in range(emitter.mesh.tp)]
    given = node.inputs[1]
    if given is not None and given.dtype != "int64":
        ids = emitter.node("Cast", [ids], emitter.name(f"{output}.ids"), to="int64")
    asked = ids
    zero, total = emitter.integers("tpcompile.zero", 0), emitter.integers(f"{output}.rows", table.size)
    offset = emitter.constant(f"{output}.offset", [np.array(mine[0], np.int64) for mine in rows])
    count = emitter.constant(f"{output}.held", [np.array(len(mine), np.int64) for mine in rows])
    wrapped = emitter.node("Add", [ids, total], emitter.name(f"{output}.wrapped"))
    negative = emitter.node("Less", [ids, zero], emitter.name(f"{output}.negative"))
    ids = emitter.node("Where", [negative, wrapped, ids], emitter.name(f"{output}.ids"))
    known = emitter.node("Less", [ids, total], emitter.name(f"{output}.known"))
    other = emitter.node("Where", [known, zero, asked], emitter.name(f"{output}.other"))
    before = emitter.node("Less", [ids, zero], emitter.name(f"{output}.before"))
    other = emitter.node("Where", [before, asked, other], emitter.name(f"{output}.elsewhere"))
    ids = emitter.node("Sub", [ids, offset], emitter.name(f"{output}.shifted"))
    below = emitter.node("Less", [ids, zero], emitter.name(f"{output}.below"))
    inside = emitter.node("Less", [ids, count], emitter.name(f"{output}.inside"))
    above = emitter.node("Not", [below], emitter.name(f"{output}.above"))
    mask = emitter.node("And", [inside, above], emitter.name(f"{output}.mine"))
    ids = emitter.node("Where", [mask, ids, other], emitter.name(f"{output}.safe"))
    trailing = len(relation.input(0)) - lookup.axis - 1
    if trailing:
        rank = len(relation.input(1))
        mask = emitter.unsqueeze(mask, list(range(rank, rank + trailing)), emitter.name(f"{output}.mask"))
    return ids, mask


def mask_rows(emitter: Emitter, value: Value | None, found: str, mask: str, output: str) -> None:
    """Zero the rows that other ranks have."""
    dtype = numpy_dtype(value.dtype or "float32") if value is not None else np.dtype(np.float32)
    nothing = emitter.constant("tpcompile.nothing", np.zeros((), dtype))
    emitter.node("Where", [mask, found, nothing], output)
