"""One call of a torch operator, with places for the operands that a program's node has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True)
class Slot:
    """The place of operand `index` among a call's arguments."""

    index: int


@dataclass(frozen=True)
class Call:
    """How to write a node again: `arguments` by the names of the operator's schema, operands as slots.

    `names` says under which argument an attribute of the node goes back, where the two are called otherwise.
    """

    target: Callable[..., Any]
    arguments: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def tensors(self) -> frozenset[int]:
        """The operands that are tensors by the operator's schema: the others are numbers, or lists of them."""
        schema = getattr(self.target, "_schema", None)
        taken = {argument.name for argument in schema.arguments if "Tensor" in str(argument.type)} if schema else set()
        given = [self.arguments[name] for name in taken]
        slots = [each for one in given for each in (one if isinstance(one, list) else [one])]
        return frozenset(slot.index for slot in slots if isinstance(slot, Slot))

    def filled(self, operands: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) of the call for these operands, attributes in place of what the source said."""
        changed = {self.names.get(name, name): value for name, value in attributes.items()}
        arguments = {name: _filled(changed.get(name, value), operands) for name, value in self.arguments.items()}
        return positioned(self.target, arguments)


def _filled(argument: Any, operands: Sequence[Any]) -> Any:
    if isinstance(argument, Slot):
        return operands[argument.index]
    if isinstance(argument, list | tuple):
        return [_filled(each, operands) for each in argument]
    return argument


def bound(target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments by the names of its schema, defaults filled in; by number for a plain function."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {str(k): value for k, value in enumerate(args)} | dict(kwargs)
    given = {argument.name: argument.default_value for argument in schema.arguments}
    given.update(zip(given, args, strict=False))
    return given | dict(kwargs)


def positioned(target: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The reverse of `bound`; what has its default is left out."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        args = [value for name, value in arguments.items() if name.isdigit()]
        return tuple(args), {name: value for name, value in arguments.items() if not name.isdigit()}
    last = [argument for argument in schema.arguments if not argument.kwarg_only]
    while last and last[-1].has_default_value() and _same(arguments[last[-1].name], last[-1].default_value):
        last.pop()
    return tuple(arguments[argument.name] for argument in last), {
        argument.name: arguments[argument.name]
        for argument in schema.arguments
        if argument.kwarg_only and not _same(arguments[argument.name], argument.default_value)
    }


def _same(value: Any, default: Any) -> bool:
    return not isinstance(value, torch.fx.Node) and type(value) is type(default) and value == default


def append(graph: torch.fx.Graph, fakes: Any, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Append a call with what it makes as its meta value. The sizes of the graph's symbols stay open."""
    node = graph.call_function(target, tuple(args), dict(kwargs))
    values = torch.fx.node.map_arg((tuple(args), dict(kwargs)), lambda operand: operand.meta["val"])
    symbols = fakes.shape_env
    with fakes, symbols.suppress_guards() if symbols is not None else nullcontext():
        node.meta["val"] = target(*values[0], **values[1])
    return node


def fake_mode_of(graph: torch.fx.Graph) -> Any:
    """The mode that the values of a graph's nodes live in."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode
    return torch._subclasses.FakeTensorMode()


def makes_one(target: Any) -> bool:
    """Whether an operator gives one tensor, and no tuple or list of them."""
    schema = getattr(target, "_schema", None)
    return schema is not None and [str(each.type) for each in schema.returns] == ["Tensor"]


def target_name(target: Any) -> str:
    """An operator's name: "aten.linear.default", "operator.mul"."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._schema.name.partition('::')[2]}.{target._overloadname}"
    return f"{getattr(target, '__module__', '').removeprefix('_')}.{getattr(target, '__name__', target)}"
