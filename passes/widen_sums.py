"""Sum in float32 what is computed in half precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from onnx import TensorProto

from tpcompile.graph.local import CollectiveCall, LocalNode
from tpcompile.graph.tensors import ONNX_DTYPES
from tpcompile.passes.compilation import Compilation

NARROW = ("float16", "bfloat16")


@dataclass(frozen=True)
class WidenSums:
    """Needs the program of all ranks. Sums of floats narrower than float32 stand between two Casts then.

    What the ranks add up is not rounded between, and where a runtime computes products in float32 anyway, as ONNX
    Runtime does on CPUs, no part is rounded before it is added. With reduce_dtype "model" nothing is changed.
    """

    name: ClassVar[str] = "widen sums"

    def run(self, work: Compilation) -> str:
        if work.request.reduce_dtype != "float32":
            return ""
        local = work.local
        calls = {call.node: call for call in local.collectives if call.op == "all_reduce" and call.dtype in NARROW}
        taken = {name for node in local.nodes for name in node.outputs}
        local.nodes = [made for node in local.nodes for made in _widened(node, calls.get(node), taken)]
        local.collectives = [
            replace(call, dtype="float32", nbytes=_doubled(call.nbytes)) if call.node in calls else call
            for call in local.collectives
        ]
        return f"{len(calls)} sums in float32"


def _widened(node: LocalNode, call: CollectiveCall | None, taken: set[str]) -> Iterator[LocalNode]:
    if call is None:
        yield node
        return
    x, y = node.inputs[0], node.outputs[0]
    wide, total = (_fresh(f"{y}.{suffix}", taken) for suffix in ("wide", "total"))
    yield _cast(x, wide, TensorProto.FLOAT, node)
    node.inputs, node.outputs = [wide], [total]
    yield node
    yield _cast(total, y, ONNX_DTYPES[call.dtype], node)


def _cast(x: str, y: str, to: int, beside: LocalNode) -> LocalNode:
    return LocalNode("Cast", "", y, [x], [y], {"to": to}, region=beside.region)


def _fresh(wanted: str, taken: set[str]) -> str:
    found, count = wanted, 0
    while found in taken:
        count += 1
        found = f"{wanted}.{count}"
    taken.add(found)
    return found


def _doubled(nbytes: str) -> str:
    """The bytes text ("batch*seq*256") of elements twice as wide: the number stands last."""
    *symbols, number = nbytes.split("*")
    return "*".join([*symbols, str(2 * int(number))])
