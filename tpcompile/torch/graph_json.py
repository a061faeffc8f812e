"""What a graph in JSON may say before torch makes a program of it.

torch trusts these texts: it evaluates expressions, looks operators and enumerations up by name, and puts names into the
code of the module's `forward`. So each is held against the form that torch itself writes, and all others are refused.
"""

from __future__ import annotations

import dataclasses
import keyword
import types
import typing
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import _SYM_OPS
from torch._export.serde.union import _Union

from tpcompile.errors import Fault, Refused, raise_all, refuse
from tpcompile.torch.expressions import is_expression
from tpcompile.torch.guards import is_guard
from tpcompile.torch.trees import check_tree

AGAIN = "Save it again with torch.export.save of this torch, or copy the file again"
NOT_OURS = "torch writes no such thing: take the file from its source again, and do not trust this copy"
NAMESPACES = ("aten", "tpcompile")
ON_NUMBERS = {
    f"{function.__module__}.{function.__name__}" for function in _SYM_OPS
    if not isinstance(function, torch._ops.OpOverload)
} | {"_operator.getitem"}  # fmt: skip
"""Functions of Python and torch on sizes, as the schema spells them."""
BRANCHES = {
    f"torch.ops.higher_order.{name}"
    for name in ("cond", "while_loop", "scan", "map_impl", "wrap_with_set_grad_enabled", "wrap_with_autocast")
}
KEPT_NOTES = ("stack_trace", "nn_module_stack", "torch_fn")
"""What is said of a node beside its operator and is only ever shown; the rest is left out."""


def check_form(kind: Any, data: Any, where: str, at: str = "") -> None:
    """Refuse (TP733) JSON `data` that has not the types of the schema's class `kind`; `at` is its place, dotted."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if data is not None:
            check_form(inner[0], data, where, at)
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = _fields(kind)
        if not isinstance(data, dict):
            raise _misformed(where, at, "an object", data)
        if issubclass(kind, _Union):
            if len(data) != 1 or not set(data) <= set(fields):
                raise _misformed(where, at, f"one of {', '.join(fields)}", sorted(data))
        elif missing := [name for name, (_, needed) in fields.items() if needed and name not in data]:
            raise refuse("TP733", where, f"{at or 'the graph'} lacks the key {missing[0]}", AGAIN)
        for name in data.keys() & fields.keys():
            check_form(fields[name][0], data[name], where, f"{at}.{name}".lstrip("."))
    elif origin is list:
        if not isinstance(data, list):
            raise _misformed(where, at, "a list", data)
        for index, item in enumerate(data):
            check_form(inner[0], item, where, f"{at}[{index}]")
    elif origin is dict:
        if not isinstance(data, dict):
            raise _misformed(where, at, "an object", data)
        for name, item in data.items():
            check_form(inner[1], item, where, f"{at}.{name}".lstrip("."))
    else:
        _check_leaf(kind, data, where, at)


def _check_leaf(kind: Any, data: Any, where: str, at: str) -> None:
    whole = type(data) is int
    if isinstance(kind, type) and issubclass(kind, IntEnum):
        if not whole or data not in set(kind):
            raise _misformed(where, at, f"one of {kind.__name__}", data)
    elif kind is float:
        if not (whole or type(data) is float or data in ("Infinity", "-Infinity", "NaN")):
            raise _misformed(where, at, "a number", data)
    elif type(data) is not kind:
        said = {int: "an integer", str: "a text", bool: "true or false"}.get(kind, str(kind))
        raise _misformed(where, at, said, data)


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Per field of a class of the schema its type, and whether it must be there."""
    hints = typing.get_type_hints(kind, globalns=vars(schema))
    return {field.name: (hints[field.name], field.default is field.default_factory is dataclasses.MISSING)
            for field in dataclasses.fields(kind)}  # fmt: skip


def _misformed(where: str, at: str, expected: str, found: Any) -> Refused:
    shown = repr(found)
    return refuse("TP733", where, f"{at or 'the graph'} should be {expected}, found {shown[:60]}", AGAIN)


def check_program(program: schema.ExportedProgram, where: str, namespaces: Iterable[str] = ()) -> None:
    """Refuse whatever torch would evaluate, import or run that it does not write itself; leave out what is only noted.

    Args:
        program: as the schema has it, its types checked.
        where: the file, for errors.
        namespaces: of operators that may stand in it, beside aten's and ours; their libraries are imported already.

    Raises:
        Refused: TP734 objects that only unpickling would bring back; TP735 operators; TP736 names and expressions;
            TP737 containers of inputs and outputs.
    """
    major = program.schema_version.major
    if major != schema.SCHEMA_VERSION[0]:
        fact = f"its graph has version {major}, and torch {torch.__version__} reads version {schema.SCHEMA_VERSION[0]}"
        raise refuse("TP733", where, fact, "Export the model again with this torch, or install the torch that wrote it")
    if not set(program.verifiers) <= {"", "ATEN", "TRAINING"}:
        fact = f"its graph is of the dialect {', '.join(program.verifiers)}"
        raise refuse("TP733", where, fact, "Export it with torch.export.export, without a backend's own passes")
    # Python source: torch would run it where it checks inputs; here it only says how sizes depend on each other.
    program.guards_code = [guard for guard in program.guards_code if is_guard(guard)]
    program.graph_module.metadata = {}
    allowed = (*NAMESPACES, *namespaces)
    faults: dict[str, Fault] = {}
    for part in parts_of(program):
        if isinstance(part, schema.Node):
            _check_operator(part.target, part.name or "", where, allowed, faults)
            part.metadata = {key: text for key, text in part.metadata.items() if key in KEPT_NOTES}
        elif isinstance(part, schema.Argument) and part.type == "as_operator":
            _check_operator(part.as_operator, "", where, allowed, faults)
        elif isinstance(part, schema.SymExpr) and not is_expression(part.expr_str):
            raise _unsafe(where, "a size", part.expr_str)
        elif isinstance(part, (schema.CustomObjArgument, schema.TokenArgument)):
            remedy = "Export a model whose forward takes and holds tensors alone"
            raise refuse("TP734", where, f"{part.name!r} is an object, not a tensor, and such are pickled", remedy)
        elif isinstance(part, schema.ModuleCallSignature):
            check_tree(part.in_spec, where, of_inputs=True)
            check_tree(part.out_spec, where)
        for name in _names(part):
            if not is_name(name):
                raise _unsafe(where, "a name", name)
        for name in _paths(part):
            if not is_path(name):
                raise _unsafe(where, "a tensor's name", name)
    raise_all(faults.values())


def parts_of(root: Any) -> Iterator[Any]:
    """Every object of the schema within `root`, itself included."""
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, _Union):
            yield part
            waiting.append(part.value)
        elif dataclasses.is_dataclass(part):
            yield part
            waiting += [getattr(part, field.name) for field in dataclasses.fields(part)]


def is_name(name: str) -> bool:
    """Whether `name` may stand in a program's code as a variable."""
    return name.isidentifier() and not keyword.iskeyword(name)


def is_path(name: str) -> bool:
    """Whether `name` may lead to a module's tensor: "layers.0.weight"."""
    return all(part and not part.startswith("__") and not set(part) & set("\"'\\") and part.isprintable()
               for part in name.split("."))  # fmt: skip


def _unsafe(where: str, what: str, found: str) -> Refused:
    return refuse("TP736", where, f"{what} is {found[:80]!r}, which would be run as code", NOT_OURS)


def _names(part: Any) -> Iterable[str]:
    """The texts of a part of the schema that become variables or attributes in code."""
    match part:
        case schema.Node():
            return [part.name] if part.name else ()
        case schema.NamedArgument():
            return [part.name] if part.name else ()
        case schema.TensorArgument() | schema.GraphArgument() | schema.InputToConstantInputSpec():
            return (part.name,)
        case schema.SymIntArgument() | schema.SymFloatArgument() | schema.SymBoolArgument():
            return (part.as_name,) if part.type == "as_name" else ()
        case schema.Graph():
            values = (part.tensor_values, part.sym_int_values, part.sym_bool_values, part.sym_float_values)
            return [name for names in values for name in names]
        case schema.ModuleCallSignature():
            return part.forward_arg_names or ()
        case schema.GradientToUserInputSpec() | schema.UserInputMutationSpec():
            return (part.user_input_name,)
    return ()


def _paths(part: Any) -> Iterable[str]:
    """The names of parameters, buffers, constants and modules in a part of the schema."""
    match part:
        case schema.InputToParameterSpec() | schema.ParameterMutationSpec() | schema.GradientToParameterSpec():
            return (part.parameter_name,)
        case schema.InputToBufferSpec() | schema.BufferMutationSpec():
            return (part.buffer_name,)
        case schema.InputToTensorConstantSpec():
            return (part.tensor_constant_name,)
        case schema.ModuleCallEntry():
            return (part.fqn,) if part.fqn else ()
    return ()


def _check_operator(target: str, node: str, where: str, namespaces: tuple[str, ...], faults: dict[str, Fault]) -> None:
    """Add a fault for an operator that may not stand in a graph, once."""
    if target in ON_NUMBERS or target in BRANCHES or target in faults:
        return
    place = f"{where}, node {node}" if node else where
    namespace, name, overload = target[10:].split(".") if target.count(".") == 4 else ("", "", "")
    if not target.startswith("torch.ops.") or not all(map(str.isidentifier, (namespace, name, overload))):
        fact = f"calls {target[:80]!r}, which is no operator"
        faults[target] = Fault("TP735", place, fact, "Export a model whose forward computes with torch's operators")
    elif namespace not in namespaces:
        fact = f"calls the operator {namespace}::{name}, which is neither torch's own nor ours"
        remedy = f"Import what defines it and read the file with namespaces=[{namespace!r}], or export without it"
        faults[target] = Fault("TP735", place, fact, remedy)
    else:
        operator = getattr(getattr(getattr(torch.ops, namespace), name, None), overload, None)
        if not isinstance(operator, torch._ops.OpOverload):
            fact = f"calls the operator {namespace}::{name}.{overload}, which torch {torch.__version__} does not have"
            remedy = "Import what defines it first, or export the model again with this torch"
            faults[target] = Fault("TP735", place, fact, remedy)
        elif any(argument.name == "filename" for argument in operator._schema.arguments):
            fact = f"calls the operator {namespace}::{name}, which opens files"
            faults[target] = Fault("TP735", place, fact, NOT_OURS)
