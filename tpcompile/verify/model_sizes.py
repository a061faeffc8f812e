"""Sizes that a model's nodes tell of its inputs: rows of the tables that ids are looked up in, sizes of caches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import onnx

from tpcompile.verify.files import ModelFile, attribute

SEES_THROUGH = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Where", "Clip")


def table_rows(model: ModelFile, fed: Collection[str]) -> dict[str, int]:
    """Rows of the table that an integer input of `fed` indexes, by input (of the smallest where there are several)."""
    made = {name: node for node in model.graph.node for name in node.output}
    rows: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type not in ("Gather", "GatherBlockQuantized") or attribute(node, "axis", 0):
            continue
        dims = stored_shape(model, made, node.input[0])
        name = node.input[1]
        while name in made and made[name].op_type in SEES_THROUGH:
            source = made[name]
            name = source.input[1 if source.op_type == "Where" else 0]
        if name in fed and dims is not None and len(dims) > 1:
            rows[name] = min(dims[0], rows.get(name, dims[0]))
    return rows


def stored_shape(model: ModelFile, made: Mapping[str, onnx.NodeProto], name: str) -> tuple[int, ...] | None:
    """The shape of a stored tensor, or of what is made from one by turning, reshaping or dequantising it."""
    if name in model.tensors:
        return tuple(model.tensors[name].dims)
    node = made.get(name)
    before = stored_shape(model, made, node.input[0]) if node is not None and node.input else None
    if node is None or before is None:
        return None
    if node.op_type == "Transpose":
        order = attribute(node, "perm") or range(len(before))[::-1]
        return tuple(before[at] for at in order)
    if node.op_type == "Reshape" and node.input[1] in model.tensors:
        sizes = tuple(int(size) for size in model.array(node.input[1]))
        return sizes if min(sizes, default=1) > 0 else None
    return before if node.op_type in ("Cast", "Identity", "DequantizeLinear") else None


def sliding_window(model: ModelFile) -> int:
    """The length of caches that slide along with a window: only a full one has defined values in all places.

    0 where there are none.
    """
    nodes = [node for node in model.graph.node if attribute(node, "sliding_window_cache", 0)]
    return max((int(attribute(node, "local_window_size", 0)) for node in nodes), default=0)


def head_sizes(model: ModelFile, caches: Mapping[str, str]) -> dict[str, int]:
    """The sizes of heads that caches leave unsaid: `caches` names the symbol at the last axis of each; by symbol.

    They follow from the node that reads the cache: its number of heads, and the columns of what its queries come from.
    """
    made = {name: node for node in model.graph.node for name in node.output}
    found: dict[str, int] = {}
    for node in model.graph.node:
        heads = attribute(node, "num_heads", 0)
        symbols = [caches[name] for name in node.input if name in caches]
        if not heads or not symbols:
            continue
        packed = 2 * attribute(node, "kv_num_heads", heads) if not any(node.input[1:3]) else 0
        columns = _columns(model, made, node.input[0])
        if columns is not None and columns % (heads + packed) == 0:
            found.update(dict.fromkeys(symbols, columns // (heads + packed)))
    return found


def _columns(model: ModelFile, made: Mapping[str, onnx.NodeProto], name: str) -> int | None:
    """How many columns a value has, told by the product or Split that it comes from through its first inputs."""
    shape_of = partial(stored_shape, model, made)
    while (node := made.get(name)) is not None and node.input:
        if node.op_type == "MatMulNBits":
            return int(attribute(node, "N"))
        if node.op_type == "Split" and len(node.input) > 1 and node.input[1] in model.tensors:
            return int(model.array(node.input[1])[list(node.output).index(name)])
        weight = shape_of(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if weight is not None:
            return weight[0 if attribute(node, "transB", 0) else -1]
        name = node.input[0]
    return None
