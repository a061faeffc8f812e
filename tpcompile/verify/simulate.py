"""Lockstep simulation: all ranks of a bundle in one process, stage by stage, collectives in numpy.

A rank's nodes are sorted into stages: a collective's result belongs to the stage after its input. One ONNX Runtime
session runs one stage of one rank; between stages the collectives that became ready are done on all ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort  # type: ignore[import-untyped]

from tpcompile.bundle.manifest import Placement
from tpcompile.errors import refuse
from tpcompile.graph.scopes import read_names
from tpcompile.targets.collectives import holds_collective, is_joint, read_collective
from tpcompile.verify.branches import SIDES, branches, graphs
from tpcompile.verify.files import Array, Bundle, ModelFile, attribute
from tpcompile.verify.shelf import Shelf

REMEDY = (
    "This is a fault of tpcompile or of a changed file: compile again, and report it with the model if it comes back"
)


@dataclass(frozen=True)
class Trace:
    """What one run left behind: `values[rank][name]` of every value of every rank, stored tensors excepted.

    Of an If whose branches hold collectives the values of one branch are there: `taken` says of which, by the If's
    first output.
    """

    values: tuple[dict[str, Array], ...]
    taken: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> list[Array]:
        """The value on every rank, in order of rank."""
        return [values[name] for values in self.values]


def session_options(folder: Any = None, *, lean: bool = False) -> ort.SessionOptions:
    """Options under which sums are done in the graph's own order and weights are mapped from `folder`.

    `lean`: weights are not copied into another layout.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    if lean:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return options


def held_part(array: Array, placement: Placement | None, rank: int) -> Array:
    """The part of a whole input that `rank` holds, by its placement in bundle.json."""
    if not placement:
        return array
    indices = np.concatenate([np.arange(start, stop) for start, stop in placement.ranges[rank]])
    return np.ascontiguousarray(np.take(array, indices, axis=placement.axis))


@dataclass
class Lockstep:
    """The sessions of all ranks; `run` may be called for several sets of inputs.

    `memory_bytes`: only one session is open at a time, and large values go to disk.
    """

    bundle: Bundle
    memory_bytes: int | None = None
    _program: _Program = field(init=False)

    def __post_init__(self) -> None:
        shelf = Shelf(self.memory_bytes)
        self._program = _Program(self.bundle.ranks, [model.graph for model in self.bundle.ranks], shelf)

    def run(self, feeds: Mapping[str, Array]) -> Trace:
        """Run whole inputs through all ranks. Refuses nodes that fail and ranks that disagree (TP530)."""
        values: list[dict[str, Array]] = []
        for rank, model in enumerate(self.bundle.ranks):
            wanted = [value.name for value in model.graph.input if value.name not in model.tensors]
            missing = [name for name in wanted if name not in feeds]
            if missing:
                raise refuse("TP530", f"rank {rank}", f"reads inputs {missing} that nothing feeds", REMEDY)
            values.append(
                {name: held_part(feeds[name], self.bundle.placement("inputs", name), rank) for name in wanted}
            )
        taken: dict[str, str] = {}
        self._program.run(values, taken)
        return Trace(tuple(values), taken)


class _Program:
    """One graph per rank, all of them the main one or all of them one branch, in stages."""

    def __init__(self, models: Sequence[ModelFile], graphs: Sequence[onnx.GraphProto], shelf: Shelf) -> None:
        self.models, self.graphs, self.shelf = models, graphs, shelf
        self.stages = [_staged(model, graph, shelf) for model, graph in zip(models, graphs, strict=True)]
        counts = [len(stages) for stages in self.stages]
        if len(set(counts)) != 1:
            raise refuse("TP530", "", f"the ranks have {counts} stages between collectives", REMEDY)
        self._branches: dict[tuple[str, str], _Program] = {}

    def run(self, values: Sequence[dict[str, Array]], taken: dict[str, str]) -> None:
        """Add all values of all ranks to `values`, and to `taken` which branch each If took."""
        for stages in zip(*self.stages, strict=True):
            for rank, stage in enumerate(stages):
                stage.run(rank, values[rank])
            for nodes in zip(*(stage.joints for stage in stages), strict=False):
                inputs = [_input(self.models[r], values[r], node.input[0]) for r, node in enumerate(nodes)]
                if all(node.op_type == "If" for node in nodes):
                    self._choose(nodes, inputs, values, taken)
                    continue
                for rank, result in enumerate(perform(nodes, inputs)):
                    values[rank][nodes[rank].output[0]] = result

    def _choose(
        self,
        nodes: Sequence[onnx.NodeProto],
        conditions: Sequence[Array],
        values: Sequence[dict[str, Array]],
        taken: dict[str, str],
    ) -> None:
        """Run the branch that all ranks take. Refuses ranks that take different ones (TP530)."""
        sides = [SIDES[0] if bool(condition.item()) else SIDES[1] for condition in conditions]
        name = nodes[0].output[0]
        if len(set(sides)) > 1:
            fact = f"its branches hold collectives, and the ranks take {', '.join(sides)}"
            raise refuse("TP530", f"If {nodes[0].name or name}", fact, REMEDY)
        if (name, sides[0]) not in self._branches:
            held = [dict(branches(node))[sides[0]] for node in nodes]
            self._branches[name, sides[0]] = _Program(self.models, held, self.shelf)
        program = self._branches[name, sides[0]]
        taken[name] = sides[0]
        program.run(values, taken)
        for model, mine, node, graph in zip(self.models, values, nodes, program.graphs, strict=True):
            for made, value in zip(node.output, graph.output, strict=True):
                mine[made] = _input(model, mine, value.name)


def _input(model: ModelFile, values: Mapping[str, Array], name: str) -> Array:
    return values[name] if name in values else model.array(name)


class _Stage:
    """The nodes of one rank that run between two rounds of collectives, and the joint nodes that follow."""

    def __init__(
        self, model: ModelFile, nodes: Sequence[onnx.NodeProto], joints: Sequence[onnx.NodeProto], shelf: Shelf
    ) -> None:
        self.model, self.nodes, self.joints, self.shelf = model, nodes, joints, shelf
        made = {name for node in nodes for name in node.output if name}
        read = dict.fromkeys(name for node in nodes for name in read_names(node) if name not in made)
        self.initializers = {tensor.name: tensor for held in graphs(model.graph) for tensor in held.initializer}
        stored = self.initializers
        self.made = sorted(made)
        self.fed = [name for name in read if name not in stored]
        self.stored = {name for name in read if name in stored}
        self._session: ort.InferenceSession | None = None

    def run(self, rank: int, values: dict[str, Array]) -> None:
        """Add every value the stage makes to `values`."""
        if not self.nodes:
            return
        missing = [name for name in self.fed if name not in values]
        if missing:
            raise refuse("TP530", f"rank {rank}", f"{missing[0]!r} is read before any node makes it", REMEDY)
        feeds = {name: values[name] for name in self.fed}
        try:
            session = self._session or self._open(feeds)
            results = session.run(self.made, feeds)
            self._session = session if self.shelf.limit_bytes is None else None
        except Exception as error:  # onnxruntime raises a dozen types of its own
            text = " ".join(str(error).split())
            raise refuse("TP530", f"rank {rank}", f"its graph does not run: {text[:400]}", REMEDY) from error
        values.update(self.shelf.put(dict(zip(self.made, results, strict=True))))

    def _open(self, feeds: Mapping[str, Array]) -> ort.InferenceSession:
        inputs = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), None)
            for name, value in feeds.items()
        ]
        graph = onnx.GraphProto(
            name="stage", node=self.nodes, input=inputs, output=[onnx.ValueInfoProto(name=name) for name in self.made]
        )
        graph.initializer.extend(self.initializers[name] for name in sorted(self.stored))
        proto = onnx.ModelProto(ir_version=self.model.proto.ir_version, graph=graph)
        proto.opset_import.extend(self.model.proto.opset_import)
        proto.functions.extend(self.model.proto.functions)
        return ort.InferenceSession(
            proto.SerializeToString(),
            session_options(self.model.folder, lean=self.shelf.limit_bytes is not None),
            providers=["CPUExecutionProvider"],
        )


def _staged(model: ModelFile, graph: onnx.GraphProto, shelf: Shelf) -> list[_Stage]:
    """The stages of one rank; a value's stage is the latest one of what it is made from.

    An empty sequence is made where it is first read: as an input of a session it would have no type.
    """
    empty = {node.output[0]: node for node in graph.node if node.op_type == "SequenceEmpty"}
    stage: dict[str, int] = {}
    nodes: dict[int, list[onnx.NodeProto]] = {}
    joints: dict[int, list[onnx.NodeProto]] = {}
    for node in graph.node:
        if node.op_type == "SequenceEmpty":
            continue
        if node.op_type != "If" and holds_collective(node):
            fact = f"a collective inside the body of {node.op_type} cannot be simulated"
            raise refuse("TP530", f"{model.name}: {node.name}", fact, REMEDY)
        joint = is_joint(node)
        now = max((stage.get(name, 0) for name in read_names(node)), default=0)
        nodes.setdefault(now, []).extend(empty.pop(name) for name in read_names(node) if name in empty)
        (joints if joint else nodes).setdefault(now, []).append(node)
        stage.update(dict.fromkeys(node.output, now + joint))
    last = max([0, *stage.values()])
    return [_Stage(model, nodes.get(now, []), joints.get(now, []), shelf) for now in range(last + 1)]


_REDUCE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def group_of(node: onnx.NodeProto, world: int) -> list[int]:
    """The ranks, in order, that take part in a collective on this rank."""
    return list(attribute(node, "groups") or range(world))


def perform(nodes: Sequence[onnx.NodeProto], inputs: Sequence[Array]) -> list[Array]:
    """One collective on all ranks: the result of each. Refuses groups and values that do not fit together (TP530)."""
    results = []
    for rank, node in enumerate(nodes):
        where, group = f"rank {rank}: {node.name or node.output[0]}", group_of(node, len(nodes))
        call = read_collective(node)
        kind, reduce, root = call.op, call.reduce_op, call.root
        if rank not in group or any(other not in range(len(nodes)) for other in group):
            raise refuse("TP530", where, f"has group {group} on rank {rank} of {len(nodes)}", REMEDY)
        parts = [inputs[other] for other in group]
        if len({(part.shape, part.dtype) for part in parts}) != 1:
            raise refuse(
                "TP530", where, f"{kind} of values of different shape: {[part.shape for part in parts]}", REMEDY
            )
        place, size = group.index(rank), len(group)
        splits = kind in ("reduce_scatter", "all_to_all")
        if kind in ("all_gather", "reduce_scatter", "all_to_all") and (
            not parts[0].ndim or (splits and parts[0].shape[0] % size)
        ):
            raise refuse("TP530", where, f"{kind} of shape {list(parts[0].shape)} over {size} ranks", REMEDY)
        if kind == "all_reduce":
            results.append(_reduced(reduce, parts, where))
        elif kind == "reduce_scatter":
            results.append(np.split(_reduced(reduce, parts, where), size)[place])
        elif kind == "all_gather":
            results.append(np.concatenate(parts))
        elif kind == "all_to_all":
            results.append(np.concatenate([np.split(part, size)[place] for part in parts]))
        elif kind == "broadcast" and root in group:
            results.append(parts[group.index(root)])
        else:
            raise refuse("TP530", where, f"is {kind!r} with root {root} in group {group}", REMEDY)
    return results


def _reduced(reduce: str, parts: Sequence[Array], where: str) -> Array:
    if reduce not in _REDUCE and reduce != "avg":
        raise refuse("TP530", where, f"has reduce_op {reduce!r}", REMEDY)
    dtype = parts[0].dtype
    total = parts[0].astype(dtype if dtype.kind in "iub" else np.float64)
    for part in parts[1:]:
        total = _REDUCE["sum" if reduce == "avg" else reduce](total, part.astype(total.dtype))
    return np.asarray(total / len(parts) if reduce == "avg" else total).astype(dtype)
