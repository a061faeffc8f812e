"""Cut a rank's graph at its collectives: stages of nodes that run without waiting, and what is exchanged between them.

The level of a value is the number of collectives on the longest way to it, or more where nobody reads it before. All
nodes of one level make one segment; the collectives that read a level come right after it, in file order. Nodes that
depend on no input (constants, dequantised weights) are copied into each segment that reads them, so that no weight is
passed around.

An If whose branches hold collectives stands where a collective would, as a choice between the stages of two graphs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

import onnx

from tpcompile.errors import refuse
from tpcompile.graph.scopes import outer_names, read_names
from tpcompile.targets.collectives import Collective, holds_collective, is_collective, is_joint, read_collective

RANDOM = {"RandomNormal", "RandomUniform", "Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"}
NARROW = (
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.FLOAT8E4M3FN,
    onnx.TensorProto.FLOAT8E4M3FNUZ,
    onnx.TensorProto.FLOAT8E5M2,
    onnx.TensorProto.FLOAT8E5M2FNUZ,
)
"""Types that are summed in float32: MPI has no fast sum for them, and each sum is then rounded once."""


@dataclass(frozen=True)
class Segment:
    """Nodes that run as one session: runtime values read and made, and the initializers they need (all names)."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: tuple[str, ...]


@dataclass(frozen=True)
class Exchange:
    """A collective in its place; `owned`: nothing else reads its input, so it may work in that memory."""

    collective: Collective
    owned: bool


@dataclass(frozen=True)
class Branch:
    """One branch of a Choice, complete in itself.

    `graph` holds the branch with the weights and fixed nodes that it reads from outside; its inputs are the moving
    values that it captures, under their own names.
    """

    graph: onnx.GraphProto
    stages: tuple[Stage, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.graph.input)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.graph.output)


@dataclass(frozen=True)
class Choice:
    """An If whose branches hold collectives: all ranks must find the same in `condition`, and run the same branch."""

    name: str
    condition: str
    then_branch: Branch
    else_branch: Branch
    outputs: tuple[str, ...]


Stage = Segment | Exchange | Choice


def split(graph: onnx.GraphProto, shown: Container[str] = (), *, widen: bool = True) -> list[Stage]:
    """The stages of `graph` in the order they run. Nodes must be in topological order, as ONNX demands.

    Values named in `shown` leave their segment, and their memory is not worked in, though nobody else may read them.
    `widen`: sums of narrow floats are made in float32.

    Raises:
        Refused: TP602 a collective inside a Loop or Scan; TP461 a collective that contradicts itself.
    """
    nodes = _widened(graph) if widen else list(graph.node)
    _refuse_collectives_in_loops(nodes)
    return list(_Splitter(graph, nodes, shown, widen).stages())


def collectives(stages: Iterable[Stage]) -> Iterator[Collective]:
    """Every collective of `stages` in order: of a choice those of the then_branch, then those of the else_branch."""
    for stage in stages:
        if isinstance(stage, Exchange):
            yield stage.collective
        elif isinstance(stage, Choice):
            yield from collectives(stage.then_branch.stages)
            yield from collectives(stage.else_branch.stages)


class _Splitter:
    """What is known of a graph while it is cut: levels of moving values, nodes of fixed ones, who reads what."""

    def __init__(
        self, graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], shown: Container[str], widen: bool
    ) -> None:
        self.shown, self.widen = shown, widen
        self.stored = {tensor.name: tensor for tensor in graph.initializer}
        self.given = {value.name for value in graph.input} - self.stored.keys()
        self.outputs = [value.name for value in graph.output]
        self.place = {id(node): index for index, node in enumerate(nodes)}
        self.reads = {id(node): read_names(node) for node in nodes}
        self.level = dict.fromkeys(self.given, 0)
        self.fixed: dict[str, onnx.NodeProto] = {}
        self.moving: list[onnx.NodeProto] = []
        for node in nodes:
            self._settle(node)
        self._sink()
        self.last_read: dict[str, float] = {}
        self.uses = dict.fromkeys(self.outputs, 1)
        self.uses |= {name: 1 for name in self.level if name in shown}
        for node in self.moving:
            for name in self.reads[id(node)]:
                self.uses[name] = self.uses.get(name, 0) + 1
                # A collective reads at the level of its input: after the segment, so its input must leave it.
                at = self._depth(node) + (0.5 if is_joint(node) else 0)
                self.last_read[name] = max(self.last_read.get(name, 0), at)

    def _settle(self, node: onnx.NodeProto) -> None:
        """Sort `node` among the fixed or the moving, the latter with a level."""
        levels = [self.level[name] for name in self.reads[id(node)] if name in self.level]
        made = [name for name in node.output if name]
        if levels or is_joint(node) or node.op_type in RANDOM:
            self.moving.append(node)
            self.level.update(dict.fromkeys(made, max(levels, default=0) + is_joint(node)))
        else:
            self.fixed.update(dict.fromkeys(made, node))

    def _sink(self) -> None:
        """Move each node to its first reader, so that views of one value are not passed around as copies of it."""
        first_read: dict[str, int] = dict.fromkeys(self.outputs, 0)
        for node in reversed(self.moving):
            made = [name for name in node.output if name]
            if not is_joint(node) and node.op_type not in RANDOM:
                readers = [first_read[name] for name in made if name in first_read]
                self.level.update(dict.fromkeys(made, max(self._depth(node), min(readers, default=0))))
            for name in self.reads[id(node)]:
                first_read[name] = min(first_read.get(name, self._depth(node)), self._depth(node))

    def _depth(self, node: onnx.NodeProto) -> int:
        """After how many collectives `node` runs."""
        first = next(name for name in node.output if name)
        return self.level[first] - is_joint(node)

    def stages(self) -> Iterator[Stage]:
        depths = range(1 + max(self.level.values(), default=0))
        own: list[list[onnx.NodeProto]] = [[] for _ in depths]
        after: list[list[onnx.NodeProto]] = [[] for _ in depths]
        for node in self.moving:
            (after if is_joint(node) else own)[self._depth(node)].append(node)
        for depth in depths:
            yield from self._segment(depth, own[depth], after)
            for node in after[depth]:
                name = node.input[0]
                if is_collective(node):
                    yield Exchange(read_collective(node), owned=self.uses[name] == 1 and name not in self.given)
                    continue
                branches = {entry.name: self._branch(entry.g) for entry in node.attribute}
                yield Choice(
                    node.name or node.output[0], name, branches["then_branch"], branches["else_branch"],
                    tuple(node.output),
                )  # fmt: skip

    def _branch(self, inner: onnx.GraphProto) -> Branch:
        """A branch as a graph of its own, cut into stages."""
        captured = outer_names(inner)
        fixed = sorted(self._fixed_below(captured), key=lambda node: self.place[id(node)])
        read = dict.fromkeys(captured + [name for node in fixed for name in self.reads[id(node)]])
        graph = onnx.GraphProto(name=inner.name, value_info=inner.value_info, output=inner.output)
        graph.node.extend([*fixed, *inner.node])
        graph.input.extend(onnx.ValueInfoProto(name=name) for name in captured if name in self.level)
        graph.initializer.extend(inner.initializer)
        graph.initializer.extend(self.stored[name] for name in read if name in self.stored)
        return Branch(graph, tuple(split(graph, self.shown, widen=self.widen)))

    def _segment(
        self, depth: int, own: list[onnx.NodeProto], after: Sequence[Sequence[onnx.NodeProto]]
    ) -> Iterator[Segment]:
        """The segment of one level, or none where nothing leaves it."""
        made = {name: None for node in own for name in node.output if name}
        leaving = [
            name for name in made if self.last_read.get(name, -1) > depth or name in self.outputs or name in self.shown
        ]
        if depth == 0:  # what is the same at every step, but leaves the graph or is exchanged, is made once here
            wanted = self.outputs + [node.input[0] for nodes in after for node in nodes]
            wanted += [name for name in self.fixed if name in self.shown]
            leaving += [name for name in dict.fromkeys(wanted) if name not in self.level]
        if not leaving:
            return
        nodes = own + self._fixed_below([*leaving, *(name for node in own for name in self.reads[id(node)])])
        nodes.sort(key=lambda node: self.place[id(node)])
        read = dict.fromkeys([name for node in nodes for name in self.reads[id(node)]] + leaving)
        yield Segment(
            nodes=tuple(nodes),
            inputs=tuple(name for name in read if name in self.level and name not in made),
            outputs=tuple(leaving),
            initializers=tuple(name for name in read if name in self.stored),
        )

    def _fixed_below(self, names: list[str]) -> list[onnx.NodeProto]:
        """The fixed nodes that `names` rest on."""
        found: dict[int, onnx.NodeProto] = {}
        todo = [name for name in names if name in self.fixed]
        while todo:
            node = self.fixed[todo.pop()]
            if id(node) not in found:
                found[id(node)] = node
                todo += [name for name in self.reads[id(node)] if name in self.fixed]
        return list(found.values())


def _widened(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of `graph`, sums of narrow floats with a Cast before and after, so that they are summed in float32."""
    element = {value.name: value.type.tensor_type.elem_type for value in [*graph.value_info, *graph.output]}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        kind = element.get(node.output[0], 0) if is_collective(node) else 0
        if kind not in NARROW or not read_collective(node).reduces:
            nodes.append(node)
            continue
        wide = onnx.NodeProto()
        wide.CopyFrom(node)
        wide.input[0], wide.output[0] = f"{node.output[0]}/wide_in", f"{node.output[0]}/wide_out"
        nodes += [
            onnx.helper.make_node("Cast", [node.input[0]], [wide.input[0]], to=onnx.TensorProto.FLOAT),
            wide,
            onnx.helper.make_node("Cast", [wide.output[0]], [node.output[0]], to=kind),
        ]
    return nodes


def _refuse_collectives_in_loops(nodes: Sequence[onnx.NodeProto]) -> None:
    for node in nodes:
        if node.op_type != "If" and holds_collective(node):
            raise refuse(
                "TP602",
                f"{node.op_type} {node.name or node.output[0]}",
                "holds collectives inside, and how often its body runs may differ between ranks",
                "Compile the model again; tpcompile leaves whole what a loop computes",
            )
