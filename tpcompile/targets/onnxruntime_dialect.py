"""Collectives as ONNX Runtime's CUDA builds with NCCL run them: com.microsoft AllReduce, AllGather and AllToAll.

Those are sums of float16, float32 and float64, and moves of these, int64 and bool, along axis 0 and always over all
ranks. What they lack is made of what they have: other types travel in one that holds all their values; another
reduction gathers what the ranks have and reduces it on each; a broadcast gathers and takes the root's. Groups of some
of the ranks, and what nothing here carries, are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tpcompile.errors import Fault, raise_all
from tpcompile.graph.names import fresh_name
from tpcompile.graph.scopes import all_names, subgraphs
from tpcompile.graph.tensors import DTYPES, type_name
from tpcompile.targets.collectives import (
    DOMAIN,
    ORT_DOMAIN,
    ORT_OP_TYPES,
    ORT_VERSION,
    Collective,
    is_collective,
    read_collective,
)

SUMMED_AS: dict[int, int] = {
    **{kind: kind for kind in (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)},
    TensorProto.BFLOAT16: TensorProto.FLOAT,
    TensorProto.INT32: TensorProto.DOUBLE,  # exact: 2^53 is more than any number of ranks can sum up to
}
"""The type that AllReduce sums a type in."""
_NARROW = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT8", "INT8")
_PLAIN = ("FLOAT16", "FLOAT", "DOUBLE", "INT64", "BOOL")
MOVED_AS: dict[int, int] = {
    **{getattr(TensorProto, name): getattr(TensorProto, name) for name in _PLAIN},
    **{getattr(TensorProto, name): TensorProto.FLOAT16 for name in _NARROW},
    **{kind: TensorProto.FLOAT for kind in (TensorProto.BFLOAT16, TensorProto.UINT16, TensorProto.INT16)},
    **{kind: TensorProto.INT64 for kind in (TensorProto.INT32, TensorProto.UINT32)},
}
"""The type, of those that AllGather and AllToAll take, in which a type travels without loss."""
REDUCTIONS = {
    "sum": ("ReduceSum", 13),
    **{name: (f"Reduce{name.title()}", 18) for name in ("prod", "max", "min")},
    "avg": ("ReduceMean", 18),
}
"""The operator that reduces on each rank, and the opset that made its axes an input."""
Step = tuple[str, list[str], dict[str, Any]]
"""One node of a composition: its operator, its inputs after the first, its attributes."""
REMEDY = "Leave out --dialect onnxruntime: DistCollective has it"


@dataclass(frozen=True)
class Sent:
    """What travels for one collective: the operation, the type, and how many bytes for each byte of the result."""

    op: str
    dtype: str
    growth: float


def translate(model: onnx.ModelProto, tp: int) -> dict[str, Sent]:
    """Put ONNX Runtime's operators in the place of every `DistCollective` of a rank's model.

    Returns what travels, by the name of the collective's output.

    Raises:
        Refused: TP730 for each collective that they can neither do nor be composed to.
    """
    translation = _Translation(model, tp)
    translation.graph(model.graph)
    raise_all(translation.faults)
    kept = [opset for opset in model.opset_import if opset.domain not in (DOMAIN, ORT_DOMAIN)]
    del model.opset_import[:]
    model.opset_import.extend([*kept, helper.make_opsetid(ORT_DOMAIN, ORT_VERSION)])
    return translation.sent


class _Translation:
    """One rank's model on its way: the names that are taken, and what was found so far."""

    def __init__(self, model: onnx.ModelProto, tp: int) -> None:
        self.main, self.tp = model.graph, tp
        self.opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        self.taken = all_names(model.graph)
        self.sent: dict[str, Sent] = {}
        self.faults: list[Fault] = []
        self.constants: dict[int, str] = {}

    def graph(self, graph: onnx.GraphProto) -> None:
        """Translate a graph and those within it."""
        types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if is_collective(node):
                call = read_collective(node)
                nodes += self.composed(graph, call, types[call.output])
                continue
            for inner in subgraphs(node):
                self.graph(inner)
            nodes.append(onnx.NodeProto())
            nodes[-1].CopyFrom(node)
        del graph.node[:]
        graph.node.extend(nodes)

    def composed(self, graph: onnx.GraphProto, call: Collective, kind: int) -> list[onnx.NodeProto]:
        """The nodes that do what `call` does with values of type `kind`."""
        sums = call.op == "all_reduce" and call.reduce_op == "sum" and kind in SUMMED_AS
        stacks = call.op in ("all_reduce", "broadcast") and not sums
        fault = self.lacking(call, kind)
        if fault:
            where = f"collective {call.name or call.output}"
            self.faults.append(Fault("TP730", where, f"{fault}, which ONNX Runtime's collectives cannot do", REMEDY))
            return []
        op = "all_gather" if stacks else call.op
        carrier = (SUMMED_AS if sums else MOVED_AS)[kind]
        steps: list[Step] = []
        if carrier != kind:
            steps.append(("Cast", [], {"to": carrier}))
        if stacks:
            steps.append(self.along_first("Unsqueeze", 13))
        size = {} if op == "all_reduce" else {"group_size": self.tp}
        steps.append((ORT_OP_TYPES[op], [], size | ({"axis": 0} if op == "all_gather" else {})))
        sending = len(steps) - 1
        if call.op == "broadcast":
            steps.append(("Gather", [self.constant(call.root)], {"axis": 0}))
        elif stacks:
            name, inputs, attributes = self.along_first(*REDUCTIONS[call.reduce_op])
            steps.append((name, inputs, attributes | {"keepdims": 0}))
        if carrier != kind:
            steps.append(("Cast", [], {"to": kind}))
        growth = DTYPES[carrier][1] / DTYPES[kind][1] * (self.tp if stacks else 1)
        self.sent[call.output] = Sent(op, type_name(carrier), growth)
        return self.chained(graph, call, steps, sending, carrier)

    def lacking(self, call: Collective, kind: int) -> str:
        """What of a collective has no translation; "" where all has."""
        if call.groups and call.groups != tuple(range(self.tp)):
            return f"is {call} in the group {list(call.groups)} of {self.tp} ranks"
        if call.op == "reduce_scatter":
            return f"is {call}"
        if kind not in MOVED_AS or (call.reduces and kind == TensorProto.BOOL):
            return f"is {call}, of type {type_name(kind)}"
        return ""

    def chained(
        self,
        graph: onnx.GraphProto,
        call: Collective,
        steps: list[Step],
        sending: int,
        carrier: int,
    ) -> list[onnx.NodeProto]:
        """The steps as nodes, each reading the one before; what is sent has its type declared."""
        nodes, x = [], call.input
        for index, (op, inputs, attributes) in enumerate(steps):
            output = call.output if index == len(steps) - 1 else self.name(f"{call.output}.{op.lower()}")
            ours = index == sending
            name = call.name if ours else output
            domain = ORT_DOMAIN if ours else ""
            nodes.append(helper.make_node(op, [x, *inputs], [output], name=name, domain=domain, **attributes))
            if ours and output != call.output:
                graph.value_info.append(helper.make_tensor_value_info(output, carrier, None))
            x = output
        return nodes

    def along_first(self, op: str, since: int) -> Step:
        """A step over axis 0: an attribute in old opsets, an input from `since` on."""
        return (op, [self.constant(0, 1)], {}) if self.opset >= since else (op, [], {"axes": [0]})

    def constant(self, number: int, rank: int = 0) -> str:
        """An int64 constant of the model: `number` itself, or a list of only it."""
        key = 2 * number + rank
        if key not in self.constants:
            self.constants[key] = self.name(f"tpcompile.{'axis' if rank else 'root'}.{number}")
            array = np.full((1,) * rank, number, np.int64)
            self.main.initializer.append(numpy_helper.from_array(array, self.constants[key]))
        return self.constants[key]

    def name(self, wanted: str) -> str:
        """`wanted`, or the first free `wanted.N`."""
        return fresh_name(wanted, self.taken)
