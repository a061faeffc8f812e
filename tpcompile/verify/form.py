"""The form of the rank files: do they keep what bundle.json and the source say, and issue the same collectives?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import onnx

from tpcompile.bundle.manifest import CollectiveEntry
from tpcompile.errors import Fault, Refused
from tpcompile.targets.collectives import is_collective, is_ort_collective, read_collective, register_schema
from tpcompile.verify.branches import graphs, walk
from tpcompile.verify.files import Bundle, ModelFile, attribute
from tpcompile.verify.inputs import input_values, spelled
from tpcompile.verify.simulate import REMEDY, group_of

SMALL = 4096


def form_faults(bundle: Bundle, source: ModelFile) -> Iterator[Fault]:
    """Shapes that contradict each other within a rank file, and inputs and outputs that are not the source's."""
    register_schema()
    known = _strict_fault(source) is None  # what onnx cannot infer for the source it cannot hold against the ranks
    for rank, model in enumerate(bundle.ranks):
        fault = _strict_fault(model) if known else None
        if fault:
            yield Fault("TP520", model.name, f"strict shape inference fails: {fault}", REMEDY)
        for side in ("inputs", "outputs"):
            yield from _signature_faults(bundle, source, rank, side)


def _strict_fault(model: ModelFile) -> str | None:
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in (
        tensor for held in graphs(proto.graph) for tensor in held.initializer
    ):  # onnx reads shape operands only where they are in the file itself
        if tensor.data_location == onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= SMALL:
            with suppress(Refused):  # bytes that are not there are the weights check's to name
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(model.array(tensor.name)), tensor.name))
    try:
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except Exception as error:  # a C++ error of onnx's own or ValueError above 2 GB
        return " ".join(str(error).split())[:300]
    return None


def _signature_faults(bundle: Bundle, source: ModelFile, rank: int, side: str) -> Iterator[Fault]:
    mine, theirs = (
        (input_values(m) if side == "inputs" else list(m.graph.output)) for m in (bundle.ranks[rank], source)
    )
    listed = bundle.manifest.inputs if side == "inputs" else bundle.manifest.outputs
    names = [value.name for value in theirs]
    for where, found in ((f"rank {rank}", [value.name for value in mine]), ("bundle.json", list(listed))):
        if found != names:
            yield Fault("TP521", where, f"has {side} {found}, the source has {names}", REMEDY)
            return
    for value, wanted in zip(mine, theirs, strict=True):
        entry, shape = listed[value.name], spelled(wanted)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(wanted.type.tensor_type.elem_type).name
        if (entry.dtype, list(entry.shape)) != (dtype, shape):
            yield Fault(
                "TP521",
                f"bundle.json: {value.name}",
                f"is {entry.dtype} {list(entry.shape)}, in the source {dtype} {shape}",
                REMEDY,
            )
        if entry.placement:
            shape[entry.placement.axis] = entry.placement.local_size(rank)
        if spelled(value) != shape or value.type.tensor_type.elem_type != wanted.type.tensor_type.elem_type:
            yield Fault(
                "TP521",
                f"rank {rank}: {value.name}",
                f"is declared as {spelled(value)}, by source and placement it is {shape}",
                REMEDY,
            )


def collective_faults(bundle: Bundle) -> Iterator[Fault]:
    """Collectives that contradict themselves, each other, the other ranks' or bundle.json, and those nobody reads."""
    orders: list[list[tuple[object, ...]]] = []
    for rank, model in enumerate(bundle.ranks):
        read = {name for node in walk(model.graph) for name in node.input} | {
            value.name for held in graphs(model.graph) for value in held.output
        }
        mine: list[tuple[object, ...]] = []
        for node in (node for node in walk(model.graph) if is_collective(node)):
            try:
                found = read_collective(node)
            except Refused as refused:
                yield from (Fault("TP522", f"rank {rank}: {f.where}", f.fact, REMEDY) for f in refused.faults)
                continue
            mine.append((found.op, found.reduce_op, found.root, found.nb_rank, found.output))
            if found.output not in read:
                yield Fault(
                    "TP527",
                    f"rank {rank}: {found.name}",
                    f"the result {found.output!r} of {found.op} is read by nobody",
                    REMEDY,
                )
        orders.append(mine)
    for rank, mine in enumerate(orders):
        if mine != orders[0]:
            at = next(
                (k for k, (a, b) in enumerate(zip(mine, orders[0], strict=False)) if a != b),
                min(len(mine), len(orders[0])),
            )
            here, there = (_named(order, at) for order in (mine, orders[0]))
            yield Fault(
                "TP522",
                f"rank {rank}",
                f"its collective {at} is {here}, that of rank 0 is {there}: they would wait for each other",
                REMEDY,
            )
            return
    yield from _group_faults(bundle)
    entries = bundle.manifest.collectives
    if len(entries) != len(orders[0]):
        fact = f"lists {len(entries)} collectives, the rank files have {len(orders[0])}"
        yield Fault("TP522", "bundle.json", fact, REMEDY)
    for at, (entry, issued) in enumerate(zip(entries, orders[0], strict=False)):
        if entry.op != issued[0]:
            fact = f"lists collective {at} as {entry.op}, the rank files have {_named(orders[0], at)}"
            yield Fault("TP522", "bundle.json", fact, REMEDY)
            return


def _named(order: list[tuple[object, ...]], at: int) -> str:
    return f"{order[at][0]} to {order[at][-1]!r}" if at < len(order) else "missing"


def _group_faults(bundle: Bundle) -> Iterator[Fault]:
    """Groups must hold their own rank, agree between their members, and be those of bundle.json."""
    rounds = zip(*([node for node in walk(model.graph) if is_collective(node)] for model in bundle.ranks), strict=True)
    for at, nodes in enumerate(rounds):
        groups = [group_of(node, bundle.tp) for node in nodes]
        where = nodes[0].name or nodes[0].output[0]
        for rank, group in enumerate(groups):
            if (
                rank not in group
                or not set(group) <= set(range(bundle.tp))
                or any(groups[other] != group for other in group)
            ):
                yield Fault("TP522", f"rank {rank}: {where}", f"its group is {group}, the ranks have {groups}", REMEDY)
                return
            size = "group_size" if is_ort_collective(nodes[rank]) else "nb_rank"
            said = attribute(nodes[rank], size, len(group))
            if said != len(group):
                yield Fault("TP522", f"rank {rank}: {where}", f"{size} is {said} for group {group}", REMEDY)
                return
        entries = bundle.manifest.collectives
        if at < len(entries) and _listed_groups(entries[at], bundle.tp) != {tuple(group) for group in groups}:
            yield Fault(
                "TP522",
                where,
                f"runs in groups {sorted({tuple(g) for g in groups})}, bundle.json lists {list(entries[at].groups)}",
                REMEDY,
            )


def _listed_groups(entry: CollectiveEntry, tp: int) -> set[tuple[int, ...]]:
    return {tuple(group) for group in entry.groups} or {tuple(range(tp))}
