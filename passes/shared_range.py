"""Quantise a value of which each rank has a part with the range of all of it: that of one device, to the last bit.

Ranks agree on the largest element and the largest of the negated ones in one small AllReduce. The operator itself, run
on these two numbers, gives scale and zero point, with which each rank quantises what it has.
"""

from __future__ import annotations

import numpy as np

from tpcompile.dims.cut import SubAxes
from tpcompile.graph.local import LocalNode
from tpcompile.graph.program import Node
from tpcompile.passes.emit import Emitter


def quantize_with_shared_range(
    emitter: Emitter, node: Node, x: str, outputs: list[str], over: SubAxes, because: str
) -> None:
    """DynamicQuantizeLinear of `x`, cut over the sub-axes `over`; `outputs` are its result, scale and zero point."""
    scale, result = node.outputs[1], outputs[0]
    assert scale is not None  # the rule covers no other form
    negated = emitter.node("Neg", [x], emitter.name(f"{result}.negated"))
    ends = []
    for part, source in (("largest", x), ("smallest", negated)):
        found = emitter.node("ReduceMax", [source], emitter.name(f"{result}.{part}"), keepdims=0)
        ends.append(emitter.unsqueeze(found, [0], emitter.name(f"{result}.{part}")))
    mine = emitter.node("Concat", ends, emitter.name(f"{result}.range.local"), axis=0)
    shared = emitter.collective(
        "all_reduce", mine, emitter.name(f"{result}.range"), over, value=scale, shapes=[[2]] * emitter.mesh.tp,
        nbytes="8", because=because, reduce="max",
    )  # fmt: skip
    signs = emitter.constant("tpcompile.signs", np.array([1, -1], np.float32))
    both = emitter.node("Mul", [shared, signs], emitter.name(f"{result}.range"))
    kept = [emitter.name(f"{result}.range.quantized"), *outputs[1:]]
    emitter.append(LocalNode(node.op, node.domain, f"{node.name}.range", [both], kept))
    emitter.node("QuantizeLinear", [x, *outputs[1:]], result)
