"""Weights that are stored cut and gathered right before their first use, as fully sharded data parallel training does.

A rank then holds 1/N of their bytes and, from the first use to the last, one whole weight at a time. What is computed
stays whole on every rank.
"""

from __future__ import annotations

import numpy as np

from tpcompile.dims.cut import Mesh, block
from tpcompile.graph.local import LocalSize, LocalWeight
from tpcompile.graph.program import Value
from tpcompile.passes.emit import Emitter
from tpcompile.plan.gathered import stored_axis
from tpcompile.plan.uses import item_bytes
from tpcompile.weights.ranges import Part


def assembled(emitter: Emitter, value: Value, name: str, mesh: Mesh) -> str:
    """Store each rank's part under `name`, gather the whole, and return its name.

    The parts lie along the first axis that divides evenly, else along the longest one: parts are padded to equal
    length for the gather then, and what pads them is left out behind it.
    """
    if value.weight is None:
        raise ValueError(value.name)
    shape, ranks = value.weight.shape, range(mesh.tp)
    axis = stored_axis(value.weight, mesh.tp)
    blocks = [block(shape[axis], mesh.tp, rank) for rank in ranks]
    parts = tuple(Part(tuple((each,) if k == axis else None for k in range(len(shape)))) for each in blocks)
    emitter.program.weights.append(LocalWeight(name, value.weight, parts))
    lengths = [stop - start for start, stop in blocks]
    longest, whole = max(lengths), emitter.name(f"{name}.whole")
    region, emitter.region = emitter.region, None  # every branch of an If may read it
    front = [axis, *(k for k in range(len(shape)) if k != axis)]
    sent = name
    if axis:
        sent = emitter.node("Transpose", [sent], emitter.name(f"{name}.front"), perm=front)
    if min(lengths) < longest:
        again = [np.array([*range(length), *[0] * (longest - length)], np.int64) for length in lengths]
        rows = emitter.constant(f"{name}.again", again)
        sent = emitter.node("Gather", [sent, rows], emitter.name(f"{name}.padded"), axis=0)
    size: list[LocalSize] = [longest * mesh.tp, *(shape[k] for k in front[1:])]
    nbytes = round(item_bytes(value.dtype) * np.prod([shape[k] for k in front[1:]]) * longest * mesh.tp)
    direct = not axis and min(lengths) == longest
    found = emitter.collective(
        "all_gather", sent, whole if direct else emitter.name(f"{name}.gathered"), mesh.all_axes, value=value,
        shapes=[size] * mesh.tp, nbytes=str(nbytes), because=f"{value.name} is stored cut and used whole",
    )  # fmt: skip
    if min(lengths) < longest:
        kept = [rank * longest + k for rank, length in enumerate(lengths) for k in range(length)]
        order = emitter.constant(f"{name}.order", np.array(kept, np.int64))
        found = emitter.node("Gather", [found, order], emitter.name(f"{name}.rows") if axis else whole, axis=0)
    if axis:
        found = emitter.node("Transpose", [found], whole, perm=[front.index(k) for k in range(len(shape))])
    emitter.region = region
    return found
