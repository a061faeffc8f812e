"""From an exported PyTorch program to the neutral program that rules, planner and passes work on."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from tpcompile.errors import refuse
from tpcompile.graph.constants import constant_of
from tpcompile.graph.names import fresh_name
from tpcompile.graph.program import Node, Program, Value, Weight
from tpcompile.graph.samples import SAMPLES
from tpcompile.torch.call import Call, Slot, bound, makes_one, target_name
from tpcompile.torch.reading import READINGS, Reading
from tpcompile.torch.sizes import SymbolSizes
from tpcompile.torch.tensors import name_of
from tpcompile.torch.written import WRITTEN, joined
from tpcompile.weights.source import Source

DOMAIN = "aten"
OPSET = 23
"""The version of standard operators that operands and attributes are laid out for."""
MUTATIONS = {OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION}
KINDS = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR}
ONLY_PASSING = {"aten.contiguous.default", "aten.alias.default", "aten.cat.default", "aten.lift_fresh_copy.default"}
SAME_UNLESS_RETYPED = {"aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten._to_copy.default"}
WITH_NUMBER = {"Add": "add_number", "Sub": "sub_number", "Mul": "scale", "Div": "scale"}
"""What an operator of two tensors is with one tensor and a number: a number would be added once by each rank."""


class Reader:
    """Reads the graph of an exported program, once.

    Args:
        program: prepared (see `tpcompile.torch.capture`).
        sources: where the bytes of each parameter, buffer and constant lie, by its full name.
        tied: names of parameters that are another one: name → the one that stands for both.
        sizes: the samples' sizes.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        sources: Mapping[str, Source],
        tied: Mapping[str, str],
        sizes: SymbolSizes,
    ) -> None:
        self.program, self.sources, self.tied, self.sizes = program, sources, tied, sizes
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.found: dict[torch.fx.Node, Any] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self._taken: set[str] = set()
        self._lists: dict[Any, Value] = {}

    def read(self) -> Program:
        """The program; its `origin` are the FakeTensors by the names of values.

        Raises:
            Refused: TP722 for what is no tensor among what the graph takes, TP723 where it writes into an input.
        """
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        self.written = {spec.target for spec in self.program.graph_signature.output_specs if spec.kind in MUTATIONS}
        outputs: list[Value] = []
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._door(node, specs[node.name])
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                ends = [arg for arg in node.args[0] if isinstance(arg, torch.fx.Node)]
                outputs = [self.found[arg] for arg in ends]
                self._ends = {arg.name: self.found[arg] for arg in ends}
        outputs = [value for value in outputs if isinstance(value, Value)]
        program = Program(self.nodes, self.inputs, outputs, self.values, {"": OPSET}, origin=self.tensors)
        for spec in self.program.graph_signature.output_specs:
            if spec.kind == OutputKind.BUFFER_MUTATION:
                stored = self.values[self.tied.get(spec.target, spec.target)]
                program.written.append((stored, self._ends[spec.arg.name]))
            elif spec.kind in MUTATIONS:
                fact = f"the graph writes into what it is given: '{spec.target}'"
                raise refuse("TP723", str(spec.target), fact, "Give back what it makes, as an output")
        return program

    # -- doors -------------------------------------------------------

    def _door(self, node: torch.fx.Node, spec: Any) -> None:
        value: Any = node.meta.get("val")
        if spec.kind in KINDS:
            name = self.tied.get(spec.target, spec.target)
            if name in self.values:
                self.found[node] = self.values[name]
                return
            self.found[node] = made = self._value(name, value)
            trained = spec.kind == InputKind.PARAMETER and value.requires_grad
            made.weight = Weight(
                name, made.dtype or "", tuple(value.shape), self.sources[name], trained, spec.target in self.written
            )
            if spec.kind != InputKind.PARAMETER and spec.target not in self.written:
                content = constant_of(made)
                made.known = (content,) * SAMPLES if content is not None else None
        elif spec.kind != InputKind.USER_INPUT:
            kind = spec.kind.name.lower().replace("_", " ")
            fact = f"the graph takes '{node.name}', a {kind}, which is no tensor"
            raise refuse("TP722", node.name, fact, "Export the model without custom objects and effect tokens")
        elif isinstance(value, torch.Tensor):
            self.found[node] = made = self._value(node.name, value)
            self.inputs.append(made)
        else:
            self.found[node] = self._number(node.name, value) if _is_number(value) else value

    def _value(self, name: str, meta: Any, producer: Node | None = None, index: int = 0) -> Value:
        made = Value(fresh_name(name, self._taken), producer=producer, index=index)
        self.values[made.name] = made
        if isinstance(meta, torch.Tensor):
            self.tensors[made.name] = meta
            made.dtype = name_of(meta.dtype)
            made.shape = tuple(self.sizes.spelled(size) for size in meta.shape)
            made.sizes = tuple(self.sizes.of(size) for size in meta.shape)
        return made

    def _number(self, name: str, meta: Any, producer: Node | None = None) -> Value:
        made = Value(fresh_name(name, self._taken), "int64", (), (), producer=producer)
        made.known, made.varies = self.sizes.content(meta)
        self.values[made.name] = made
        return made

    # -- calls -------------------------------------------------------

    def _call(self, node: torch.fx.Node) -> None:
        name = target_name(node.target)
        if node.target is operator.getitem:
            made, index = node.args
            if node.users:  # others may ask for what was left out because nobody reads it
                self.found[node] = self._of(made)[index]
            return
        target: Any = node.target
        arguments = bound(target, node.args, node.kwargs)
        same = self._same(node, name, arguments)
        if same is not None:
            self.found[node] = same
        elif _is_number(node.meta.get("val")):
            self._arithmetic(node, name, arguments)
        else:
            written = WRITTEN[name](node, arguments) if name in WRITTEN else None
            if written is not None:
                target, arguments = written[0], bound(written[0], (), written[1])
            self._operation(node, target, arguments)

    def _same(self, node: torch.fx.Node, name: str, arguments: Mapping[str, Any]) -> Value | None:
        """The value that a call only passes on: exporters spell out many slices of all and casts to the same type."""
        given = next(iter(arguments.values()), None)
        if name == "aten.cat.default" and len(found := joined(arguments["tensors"])) == 1:
            given = found[0]
        source = self.found.get(given) if isinstance(given, torch.fx.Node) else None
        made, before = node.meta.get("val"), self.tensors.get(source.name) if isinstance(source, Value) else None
        if before is None or not isinstance(made, torch.Tensor):
            return None
        alike = before.dtype == made.dtype and [*map(_expression, before.shape)] == [*map(_expression, made.shape)]
        if name == "aten.dropout.default" and not (arguments["train"] and arguments["p"]):
            return source
        if name in SAME_UNLESS_RETYPED or name in ONLY_PASSING:
            return source if alike else None
        if name == "aten.expand.default" or (name == "aten.slice.Tensor" and arguments["step"] == 1):
            return source if alike else None
        return None

    def _arithmetic(self, node: torch.fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        """A number made of numbers, or the size of an axis: known in each sample."""
        made = Node(_plain_name(name), DOMAIN, node.name, [], [], {}, OPSET, scope=_scope(node))
        if name == "aten.sym_size.int":
            made.attributes = {"dim": arguments["dim"]}
        slots = {key: self._slot(value, made.inputs) for key, value in arguments.items()}
        target: Any = node.target
        made.origin = Call(target, slots)
        self.found[node] = value = self._number(node.name, node.meta["val"], made)
        made.outputs = [value]
        self._append(made)

    def _operation(self, node: torch.fx.Node, target: Any, arguments: dict[str, Any]) -> None:
        name = target_name(target)
        reading = READINGS.get(name) or Reading(_plain_name(name))
        operands: list[Value | None] = []
        slots = dict(arguments)
        for key in reading.order or ():
            slots[key] = self._slot(arguments[key], operands, always=True)
        for key, value in arguments.items():
            if key == reading.sizes:
                slots[key] = self._list(node, list(value), operands)
            elif key not in (reading.order or ()) and _holds_node(value):
                slots[key] = self._slot(value, operands)
        first = next((value for value in operands if value is not None and value.sizes is not None), None)
        rank = len(first.sizes or ()) if first is not None else 0
        plain = {key: value for key, value in arguments.items() if not _holds_node(value)}
        attributes = dict(reading.attributes(arguments, rank)) if reading.attributes else plain
        call = Call(target, slots, reading.names or {})
        op = reading.op if isinstance(reading.op, str) else reading.op(arguments)
        made = Node(op, DOMAIN, node.name, operands, [], attributes, OPSET, origin=call, scope=_scope(node))
        if op in WITH_NUMBER and not any(value is not None and value.sizes for value in operands[1:]):
            made.op = WITH_NUMBER[op]
        values = node.meta.get("val")
        if isinstance(values, tuple | list) and makes_one(target):
            values = values[:1]
        if isinstance(values, tuple | list):
            outputs = [self._value(f"{node.name}.{k}", value, made, k) for k, value in enumerate(values)]
            self.found[node] = outputs
        else:
            outputs = [self._value(node.name, values, made)]
            self.found[node] = outputs[0]
        made.outputs = list(outputs)
        self._append(made)

    def _append(self, node: Node) -> None:
        for position, value in enumerate(node.inputs):
            if value is not None:
                value.consumers.append((node, position))
        self.nodes.append(node)

    def _slot(self, argument: Any, operands: list[Value | None], always: bool = False) -> Any:
        """The argument with slots for what are values; lists of tensors have a slot for each."""
        if isinstance(argument, list | tuple):
            if any(isinstance(each, torch.fx.Node) and _is_number(each.meta["val"]) for each in argument):
                return self._list(None, list(argument), operands)
            return [self._slot(each, operands) if isinstance(each, torch.fx.Node) else each for each in argument]
        value = self._of(argument)
        if isinstance(value, Value) or always:
            operands.append(value if isinstance(value, Value) else None)
            return Slot(len(operands) - 1) if isinstance(value, Value) else argument
        return argument

    def _of(self, argument: Any) -> Any:
        return self.found.get(argument) if isinstance(argument, torch.fx.Node) else None

    def _list(self, node: torch.fx.Node | None, entries: Sequence[Any], operands: list[Value | None]) -> Slot:
        """A list of sizes as one operand: each entry a number or a value."""
        key = tuple(entries)
        if key not in self._lists:
            made = Node("sizes", DOMAIN, "", [], [], {}, OPSET)
            made.origin = [self._slot(entry, made.inputs) for entry in entries]
            each = [self.found[entry] if isinstance(entry, torch.fx.Node) else entry for entry in entries]
            name = fresh_name(f"{node.name if node is not None else 'call'}.sizes", self._taken)
            value = Value(name, "int64", (len(each),), ((len(each),) * SAMPLES,), producer=made)
            value.known = tuple(
                np.array([e.known[k] if isinstance(e, Value) and e.known else e for e in each], np.int64)
                for k in range(SAMPLES)
            )
            value.varies = np.array(
                [isinstance(e, Value) and e.varies is not None and bool(e.varies.any()) for e in each], bool
            )
            made.name, made.outputs = name, [value]
            self.values[name] = self._lists[key] = value
            self._append(made)
        operands.append(self._lists[key])
        return Slot(len(operands) - 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | torch.SymInt | torch.SymBool | torch.SymFloat)


def _expression(size: int | torch.SymInt) -> Any:
    """A size as it is written: two may agree in all samples, and still be two where inputs are longer."""
    return size if isinstance(size, int) else size.node.expr


def _holds_node(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_node, value))
    return isinstance(value, torch.fx.Node)


def _plain_name(name: str) -> str:
    """ "aten.linear.default" → "linear", "operator.mul" → "mul"; other libraries' operators keep the library's name."""
    parts = name.split(".")
    return ".".join(parts[:-1]) if len(parts) == 3 and parts[0] != "aten" else parts[1] if len(parts) > 1 else parts[0]


def _scope(node: torch.fx.Node) -> str:
    """The module of the model that a call belongs to."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    return next((str(entry[0]) for entry in reversed(list(stack.values()))), "")


def symbols_of(graph: torch.fx.Graph) -> Iterator[Any]:
    """Every symbol in the sizes of a graph's inputs, in order, with its place: (symbol, placeholder, axis)."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                    yield str(size.node.expr), node.name, axis
