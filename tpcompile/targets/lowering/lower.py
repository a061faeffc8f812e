"""Go through a rank's model once and lower every node that the table knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from tpcompile.graph.contents import ONNX_DOMAINS
from tpcompile.graph.scopes import all_names, read_names, subgraphs
from tpcompile.targets.lowering.opsets import raise_opset
from tpcompile.targets.lowering.registry import LOWERINGS, NotLowered
from tpcompile.targets.lowering.site import Emitted, Site, Store, copy_without_weights
from tpcompile.targets.lowering.types import ValueTypes
from tpcompile.targets.lowering.whole_numbers import at_the_edges, held_as_floats, is_move, move

HINT = "TRT_"
"""What attributes begin with that only TensorRT's parser knows."""


@dataclass(frozen=True)
class Lowered:
    """A lowered model.

    `changes` counts the nodes that were lowered by operator; `left` says of nodes that the table knows and that stay as
    they are, why.
    """

    model: onnx.ModelProto
    changes: Mapping[str, int]
    left: Mapping[str, str]

    def without_hints(self) -> onnx.ModelProto:
        """The model as other runtimes take it: without the attributes that only TensorRT knows."""
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        for node in _all_nodes(made.graph):
            kept = [entry for entry in node.attribute if not entry.name.startswith(HINT)]
            node.ClearField("attribute")
            node.attribute.extend(kept)
        return made


def lower(model: onnx.ModelProto, folder: Path, data_file: str) -> Lowered:
    """The rank's model with what TensorRT does not take written in what it does, numbers kept.

    Args:
        model: a rank's model, its external data in files of `folder`. It is not changed.
        folder: where data lies, and where `data_file` is written if large tensors had to change.
        data_file: a flat file name.
    """
    types = ValueTypes.of(model, folder)
    floats = held_as_floats(model, types, _store(model, folder, data_file))
    run = _Run(model, types, _store(model, folder, data_file), floats)
    made = run.lowered()
    if run.broken:  # numbers of 8 bits are all held as floats, or none
        run = _Run(model, types, _store(model, folder, data_file), frozenset())
        made = run.lowered()
    return Lowered(made, dict(run.changes), run.left)


def _store(model: onnx.ModelProto, folder: Path, data_file: str) -> Store:
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    return Store(folder, data_file, stored, all_names(model.graph))


def _settle(graph: onnx.GraphProto, settled: Mapping[str, int]) -> None:
    """Numbers for symbols that stand for one, as TensorRT wants to see them: in a cache, the size of a head."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in settled:
                dim.dim_value = settled[dim.dim_param]
            elif dim.dim_param.isdecimal():  # exporters that write a number's name
                dim.dim_value = int(dim.dim_param)


class _Run:
    """One walk over a model; `floats` are the values of narrow types that are held as float32."""

    def __init__(self, model: onnx.ModelProto, types: ValueTypes, store: Store, floats: frozenset[str]) -> None:
        self.model, self.types, self.store, self.floats = model, types, store, floats
        self.opset = 1
        self.read = frozenset(_read(model.graph)) - {""}
        self.changes: Counter[str] = Counter()
        self.left: dict[str, str] = {}
        self.broken = False
        """Whether a node that stays reads or makes one of `floats`."""

    def lowered(self) -> onnx.ModelProto:
        made = copy_without_weights(self.model)
        self.opset = raise_opset(made, self.store.name)
        self.lower(made.graph)
        at_the_edges(made.graph, self.floats, self.types, self.store)
        still_read = set(_read(made.graph))
        for tensor in (*self.model.graph.initializer, *self.store.added):
            if tensor.name in still_read:
                made.graph.initializer.append(tensor)
        _settle(made.graph, self.types.settled)
        return made

    def lower(self, graph: onnx.GraphProto) -> None:
        nodes: list[onnx.NodeProto] = []
        before: Emitted = {}
        for node in graph.node:
            domain = "" if node.domain in ONNX_DOMAINS else node.domain
            lowering = LOWERINGS.get((domain, node.op_type)) or (move if is_move(node) else None)
            if lowering is not None:
                site = Site(node, self.opset, self.types, self.store, self.read, self.floats, before)
                try:
                    given = lowering(site)
                except NotLowered as reason:
                    self.left[node.name or node.output[0]] = str(reason)
                    self.broken = self.broken or bool(self.floats & {*node.input, *node.output})
                else:
                    if given is not None:
                        nodes += _renamed(site, [given] if isinstance(given, str) else list(given))
                        self.changes[node.op_type] += 1
                        continue
            for inner in subgraphs(node):
                self.lower(inner)
            nodes.append(node)
        # A copy each: a message cannot be moved within its own list.
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        graph.ClearField("node")
        graph.node.extend(kept)


def _renamed(site: Site, given: list[str | None]) -> list[onnx.NodeProto]:
    """The emitted nodes, with the node's own outputs that are read in the place of the values given for them."""
    names = {}
    extra = []
    made = {name for node in site.emitted for name in node.output}
    for output, value in zip(site.node.output, [*given, *[None] * len(site.node.output)], strict=False):
        if output not in site.read:
            continue
        if value is None:
            raise ValueError(f"lowering {site.node.op_type} gives nothing for its output '{output}'")
        if value == output:  # it is stored now
            continue
        if value in made and value not in names:
            names[value] = output
        else:  # an operand, or one value for two outputs
            extra.append(onnx.helper.make_node("Identity", [names.get(value, value)], [output], name=output))
    for node in site.emitted:
        for field in (node.input, node.output):
            for position, name in enumerate(field):
                field[position] = names.get(name, name)
    for (op, domain, operands, attributes, count), outputs in site.fresh.items():
        what = (op, domain, tuple(names.get(name, name) for name in operands), attributes, count)
        site.before[what] = [names.get(name, name) for name in outputs]
    return [*site.emitted, *extra]


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _all_nodes(inner)


def _read(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name that is read anywhere."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from read_names(node)
