"""A bundle for four ranks with every collective, over all of them and over groups that differ by rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from tests.run import handmade
from tests.run.handmade import Array
from tpcompile.bundle.manifest import IOEntry, Placement
from tpcompile.targets.collectives import make_collective


def rows(size: int, ranks: int) -> Placement:
    part = size // ranks
    return Placement(0, tuple(((r * part, (r + 1) * part),) for r in range(ranks)))


CASES: list[tuple[str, dict[str, Any]]] = [
    ("all_reduce", {"reduce_op": op}) for op in ("sum", "prod", "max", "min", "avg")
] + [
    ("all_gather", {}), ("reduce_scatter", {"reduce_op": "sum"}), ("reduce_scatter", {"reduce_op": "avg"}),
    ("all_to_all", {}), ("broadcast", {"root": 2}),
]  # fmt: skip
GROUPS = [None, [(0, 1), (2, 3)], [(2, 0), (3, 1)]]


def expected(op: str, options: dict[str, Any], groups: Sequence[tuple[int, ...]], blocks: list[Array]) -> Array:
    """All ranks' results, one after the other, computed here in numpy."""
    made: list[Array] = [np.empty(0)] * len(blocks)
    reduce = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "avg": np.add}
    for group in groups:
        mine = [blocks[r] for r in group]
        total = mine[0]
        for block in mine[1:]:
            total = reduce[options.get("reduce_op", "sum")](total, block)
        if options.get("reduce_op") == "avg":
            total = (total / len(group)).astype(total.dtype)
        for at, rank in enumerate(group):
            parts = [np.split(block, len(group))[at] for block in mine]
            sent = blocks[options["root"]] if "root" in options else total
            made[rank] = {
                "all_reduce": total, "all_gather": np.concatenate(mine), "all_to_all": np.concatenate(parts),
                "reduce_scatter": np.split(total, len(group))[at], "broadcast": sent,
            }[op]  # fmt: skip
    return np.concatenate(made)


def bundle(folder: Path, dtype: str) -> tuple[Path, Array, dict[str, Array]]:
    """The bundle, its input `x`, and all outputs as numpy has them."""
    ranks, size = 4, 16
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    rng = np.random.default_rng(3)
    x = (
        rng.integers(0, 2, (size * 1, 3))
        if dtype == "bool"
        else rng.integers(0 if dtype == "uint8" else -3, 4, (size, 3))
    )
    x = x.astype(kind)
    inputs = {"x": IOEntry(dtype, (size, 3), rows(size, ranks))}
    outputs, wanted, made = {}, {}, []
    nodes: list[list[onnx.NodeProto]] = [[helper.make_node("Identity", ["x"], ["own"])] for _ in range(ranks)]
    for op, options in CASES:
        for index, groups in enumerate(GROUPS):
            if (dtype == "bool" and options.get("reduce_op") == "avg") or (op == "broadcast" and groups is not None):
                continue
            name = f"{op}/{options.get('reduce_op', '')}/{index}"
            for rank in range(ranks):
                group = next((g for g in groups or () if rank in g), ())
                nodes[rank].append(
                    make_collective(op, "own", name, nb_rank=len(group) or ranks, groups=group, name=name, **options)
                )
            wanted[name] = expected(op, options, groups or [tuple(range(ranks))], np.split(x, ranks))
            outputs[name] = IOEntry(dtype, (len(wanted[name]), 3), rows(len(wanted[name]), ranks))
    for rank in range(ranks):
        made.append(handmade.model_of(nodes[rank], {}, inputs, outputs, rank=rank))
    return handmade.write_bundle(folder, made, inputs, outputs), x, wanted
