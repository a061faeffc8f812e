"""Cuts, unit matrices, and truth values in the forms that TensorRT takes."""

from __future__ import annotations

from tpcompile.targets.collectives import DOMAIN, OP_TYPE, make_collective, read_collective
from tpcompile.targets.lowering.registry import lowering
from tpcompile.targets.lowering.site import Site
from tpcompile.targets.lowering.whole_numbers import move


@lowering("", "Slice")
def cut_out(site: Site) -> list[str | None] | str | None:
    """Without axes, the first ones are meant, also where there are fewer ends than axes."""
    if len(site.node.input) < 3 or site.has(3):
        return move(site)
    axes_of, ends = site.types.shape(site.input(0)), site.types.shape(site.input(1))
    count = ends[0] if ends else None
    if axes_of is None or count is None or count == len(axes_of):
        return move(site)
    axes = site.integers(*range(count))
    return site.emit("Slice", [*site.node.input[:3], axes, site.input(4) if site.has(4) else None])


@lowering("", "EyeLike")
def eye(site: Site) -> str:
    """Ones where the column is the row and an offset: also of sizes that vary."""
    x, kind = site.input(0), site.dtype(site.node.output[0])
    zero, one = site.constant(0, "int64"), site.constant(1, "int64")
    rows, columns = (site.emit("Range", [zero, site.squeeze(site.length(x, axis), 0), one]) for axis in (0, 1))
    diagonal = site.emit("Add", [rows, site.constant(site.attribute("k", 0), "int64")])
    return site.cast(site.emit("Equal", [site.unsqueeze(diagonal, 1), columns]), kind)


@lowering(DOMAIN, OP_TYPE)
def collective(site: Site) -> str | None:
    """Truth values travel as numbers: NCCL, which carries out collectives, has no such type."""
    if site.types.dtype(site.input(0)) != "bool":
        return None
    found = read_collective(site.node)
    moved = site.store.name(f"{found.output}.moved")
    site.emitted.append(
        make_collective(
            found.op,
            site.cast(found.input, "int32"),
            moved,
            nb_rank=found.nb_rank,
            name=moved,
            groups=found.groups,
            reduce_op=found.reduce_op,
            root=found.root,
        )
    )
    return site.cast(moved, "bool")


@lowering("", "ReduceMax", "ReduceMin")
def any_or_all(site: Site) -> str | None:
    """Of truth values: any or all of them, as numbers."""
    if site.types.dtype(site.input(0)) != "bool":
        return None
    attributes = {entry.name: site.attribute(entry.name) for entry in site.node.attribute}
    given = [site.cast(site.input(0), "int32"), *site.node.input[1:]]
    return site.cast(site.emit(site.node.op_type, given, **attributes), "bool")
