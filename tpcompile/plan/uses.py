"""Stored tensors and how they are used: bytes, readers, and the leaves along which they can be cut."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import Dim, leaves, root
from tpcompile.graph.program import Node, Sizes, Value

PICKING = ("Gather", "GatherND")
HALVES = frozenset(("float16", "bfloat16"))
"""Types that ranks may sum in float32."""


def item_bytes(dtype: str | None) -> float:
    """Bytes of an element by its type's name: 4 for "float32", 1 for "float8_e4m3fn" and "bool", 0.5 for "int4"."""
    digits = re.match(r"[a-z]+(\d+)", dtype or "float32")
    return int(digits.group(1)) / 8 if digits else 1


def stored_bytes(value: Value) -> float:
    count = item_bytes(value.dtype)
    for size in value.weight.shape if value.weight else ():
        count *= size
    return count


def value_bytes(value: Value, nominal: Callable[[Sizes], int]) -> int:
    """Bytes of a value at nominal sizes."""
    count = item_bytes(value.dtype)
    for sizes in value.sizes or ():
        count *= nominal(sizes)
    return round(count)


def weight_uses(analysis: Analysis) -> Iterator[tuple[Value, list[Dim], list[Node]]]:
    """Every stored tensor with its dims and the nodes that read it; small ones once per use, with that use's dims."""
    shared: dict[Value, list[Node]] = defaultdict(list)
    for node in analysis.relations:
        for index, value in enumerate(node.inputs):
            if value is None or value.weight is None:
                continue
            if (node, index) in analysis.at_use:
                yield value, analysis.at_use[node, index], [node]
            else:
                shared[value].append(node)
    for value, nodes in shared.items():
        axes = analysis.axes[value]
        if axes is not None:
            yield value, axes, nodes


def uncut_leaves(analysis: Analysis, value: Value, nodes: Sequence[Node]) -> set[Dim]:
    """The leaves along which a stored tensor cannot be cut, because some reader needs them whole."""
    found = set(analysis.conflicts.get(value, ()))
    for node in nodes:
        found.update(analysis.blocked[node])
    if value.captors or value in analysis.program.outputs:
        found.update(leaf for dim in analysis.axes[value] or () for leaf in leaves(dim))
    return found


def stored_behind(value: Value) -> Value | None:
    """The stored tensor a value is, or is made of by operators that only rearrange or decode it."""
    while value.weight is None:
        node = value.producer
        if (
            node is None
            or node.op not in ("Transpose", "Cast", "Identity", "DequantizeLinear", "Reshape", "Unsqueeze", "Squeeze")
            or node.inputs[0] is None
        ):
            return None
        value = node.inputs[0]
    return value


def largest_stored(node: Node) -> float:
    """Bytes of the largest stored matrix that a node's operands are or are made of, 0 where there is none.

    Of a weight of three axes or more of which indices pick, as a route does of experts, one is read at a time.
    """
    found = 0.0
    for value in node.inputs:
        picker = value.producer if value is not None else None
        behind = stored_behind(value) if value is not None else None
        picked = stored_behind(picker.inputs[0]) if picker and picker.op in PICKING and picker.inputs[0] else None
        if behind is not None and len(behind.sizes or ()) > 1:
            found = max(found, stored_bytes(behind))
        elif picked is not None and picked.weight is not None and len(picked.weight.shape) > 2:
            found = max(found, stored_bytes(picked) / picked.weight.shape[0])
    return found


def segments(axes: Sequence[Dim]) -> Iterator[tuple[list[Dim], float]]:
    """The rectangular parts of a tensor: (leaves, elements), one for each choice of segments of its sums."""
    for choice in itertools.product(*[list(terms(dim)) for dim in axes]):
        size = 1.0
        found: list[Dim] = []
        for inside, count in choice:
            found += inside
            size *= count
        yield found, size


def terms(dim: Dim) -> Iterator[tuple[list[Dim], int]]:
    top = root(dim)
    if top.kind == "leaf":
        yield [top], top.sizes[0]
    elif top.kind == "sum":
        for part in top.parts:
            yield from terms(part)
    elif top.kind == "blocks":
        yield list(leaves(top)), top.sizes[0]
    else:
        for choice in itertools.product(*[list(terms(part)) for part in top.parts]):
            size = 1
            for _, count in choice:
                size *= count
            yield [leaf for inside, _ in choice for leaf in inside], size
