"""Regions of a graph that torch keeps apart, as nodes of the graph itself: without gradients, or with automatic casts.

torch.export keeps the body of `with torch.no_grad()` and of `with torch.autocast(...)` as a module that an operator
runs. What such a body does can be said without it: results without gradients are detached, and a cast is an operator.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tpcompile.errors import refuse
from tpcompile.torch.call import append, fake_mode_of, target_name

aten = torch.ops.aten
GRADIENTS = torch.ops.higher_order.wrap_with_set_grad_enabled
AUTOCAST = torch.ops.higher_order.wrap_with_autocast


def without_regions(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with the nodes of its regions in its graph; the program itself where it has none.

    Raises:
        Refused: TP726 another operator runs a part of the graph: a branch, a loop, a mapped function.
    """
    if not any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in program.graph.nodes):
        return program
    graph = torch.fx.Graph()
    writer = _Writer(graph, fake_mode_of(program.graph))
    table: dict[torch.fx.Node, Any] = {}
    body = _Body(writer, program.graph_module, _Mode(), table)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            table[node] = graph.node_copy(node)
    ends = body.write()
    last = next(node for node in reversed(program.graph.nodes) if node.op == "output")
    graph.output(ends).meta = dict(last.meta)
    made = copy.copy(program)
    made._graph_signature = copy.deepcopy(program.graph_signature)
    for spec, end in zip(made._graph_signature.output_specs, ends, strict=True):
        if isinstance(end, torch.fx.Node):
            spec.arg.name = end.name
    made._graph_module = torch.fx.GraphModule(torch.nn.Module(), graph)
    made._graph_module.meta = dict(program.graph_module.meta)
    return made


@dataclass(frozen=True)
class _Mode:
    """Whether results have gradients, and per kind of device the type that operators are cast to."""

    gradients: bool = True
    casts: Mapping[str, torch.dtype] = field(default_factory=dict)


@dataclass
class _Writer:
    """Appends to the graph; every value is detached once."""

    graph: torch.fx.Graph
    fakes: Any
    detached: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)

    def detach(self, node: torch.fx.Node) -> torch.fx.Node:
        if not isinstance(node.meta["val"], torch.Tensor):
            return node
        if node not in self.detached:
            self.detached[node] = append(self.graph, self.fakes, aten.detach.default, (node,), {})
        return self.detached[node]


@dataclass
class _Body:
    """The graph of a module, written into that of another.

    `table` holds, for the nodes of the module, those that stand for them: a list for what an operator gives several of.
    """

    writer: _Writer
    module: torch.fx.GraphModule
    mode: _Mode
    table: dict[torch.fx.Node, Any]
    own: set[torch.fx.Node] = field(default_factory=set)

    def write(self) -> Any:
        """What the module gives, in the form in which its graph gives it."""
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                return torch.fx.node.map_arg(node.args[0], self._leaving)
        raise AssertionError("a graph without an output")

    def _call(self, node: torch.fx.Node) -> None:
        given: Any = node.args[0] if node.args else None
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self.table[node] = self._region(node)
        elif node.target is operator.getitem and isinstance(self.table.get(given), list | tuple):
            self.table[node] = self.table[given][node.args[1]]
        else:
            writes = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
            self.table[node] = self._written(node, writes)

    def _written(self, node: torch.fx.Node, writes: bool) -> torch.fx.Node:
        """A node as it is, its operands cast where the region casts them."""
        wanted = self._cast_to(node)
        written = node.args[0] if writes and node.args else None

        def operand(each: torch.fx.Node) -> Any:
            found = self.table[each]
            if each is written:
                return found
            if writes:  # what is written to may be read where there are gradients
                found = self._leaving(each)
            value: Any = found.meta["val"] if isinstance(found, torch.fx.Node) else None
            casts = wanted is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
            if not casts or value.dtype in (wanted, torch.float64):
                return found
            return append(self.writer.graph, self.writer.fakes, aten.to.dtype, (found, wanted), {})

        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), operand)
        made = self.writer.graph.create_node("call_function", node.target, args, dict(kwargs), node.name)
        made.meta = dict(node.meta)
        self.own.add(made)
        return made

    def _cast_to(self, node: torch.fx.Node) -> torch.dtype | None:
        """The type to which an automatic cast brings an operator's operands; its result shows it."""
        value = node.meta.get("val")
        first = value[0] if isinstance(value, tuple | list) and value else value
        if not isinstance(first, torch.Tensor) or first.device.type not in self.mode.casts:
            return None
        if not isinstance(node.target, torch._ops.OpOverload) or not first.is_floating_point():
            return None
        key = f"Autocast{first.device.type.upper()}"
        schema = node.target._schema
        name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
        return first.dtype if torch._C._dispatch_has_kernel_for_dispatch_key(name, key) else None

    def _leaving(self, node: torch.fx.Node) -> Any:
        """A value as others see it: what is made without gradients has none."""
        found = self.table[node]
        return self.writer.detach(found) if not self.mode.gradients and found in self.own else found

    def _region(self, node: torch.fx.Node) -> Sequence[Any]:
        given: Sequence[Any] = node.args
        if node.target is GRADIENTS:
            enabled, inner, *operands = given
            mode = replace(self.mode, gradients=enabled)
        elif node.target is AUTOCAST:
            device, dtype, enabled, _, inner, *operands = given
            casts = {kind: each for kind, each in self.mode.casts.items() if kind != device}
            if enabled:
                casts[device] = dtype if dtype is not None else torch.get_autocast_dtype(device)
            mode = replace(self.mode, casts=casts)
        else:
            fact = f"'{target_name(node.target)}' runs a part of the graph"
            remedy = "Write it without branches, loops and maps over tensors, or export each part by itself"
            raise refuse("TP726", f"node {node.name}", fact, remedy)
        module = getattr(self.module, inner.target)
        takes = [each for each in module.graph.nodes if each.op == "placeholder"]
        table = {each: self._leaving(given) if isinstance(given, torch.fx.Node) else given
                 for each, given in zip(takes, operands, strict=True)}  # fmt: skip
        ends = _Body(self.writer, module, mode, table).write()
        return ends if isinstance(ends, list | tuple) else (ends,)
