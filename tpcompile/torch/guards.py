"""How sizes of inputs depend on each other: the texts in which torch.export keeps what it found, read without running.

L['attention_mask'].size()[1] == L['past'][0].size()[2] + L['input_ids'].size()[1]
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence

Shapes = Mapping[str, Sequence[int | None]]
"""By the path of an input ("L['past'][0]") its sizes, None where one is not chosen yet."""

OF_TWO: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
OF_MANY: dict[str, Callable[..., int]] = {"min": min, "max": max}


class _Unknown(Exception):
    """A size that is not chosen yet, or a text of another form."""


def is_guard(text: str) -> bool:
    """Whether `text` compares sizes of inputs and says nothing else."""
    try:
        tree = ast.parse(text, mode="eval").body
        return isinstance(tree, ast.Compare) and _value(tree, None) is not None
    except (SyntaxError, ValueError, RecursionError, MemoryError, _Unknown, ArithmeticError):
        return False


def holds(text: str, shapes: Shapes) -> bool:
    """Whether a guard holds for these sizes; True where some that it speaks of are not chosen yet."""
    try:
        return bool(_value(ast.parse(text, mode="eval").body, shapes))
    except (_Unknown, ArithmeticError):
        return True


def _value(node: ast.expr, shapes: Shapes | None) -> int:
    """The value of a term; without `shapes` its form alone is checked, every size being 1."""
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner, shapes)
        case ast.BinOp(left=left, op=action, right=right) | ast.Compare(left=left, ops=[action], comparators=[right]):
            if type(action) in OF_TWO:
                return int(OF_TWO[type(action)](_value(left, shapes), _value(right, shapes)))
        case ast.Call(func=ast.Name(id=name), args=terms, keywords=[]) if name in OF_MANY and terms:
            return OF_MANY[name](*[_value(term, shapes) for term in terms])
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=source, attr="size"), args=[], keywords=[]),
            slice=ast.Constant(value=int(axis)),
        ):
            path = _path(source)
            if shapes is None:
                return 1
            sizes = shapes.get(path, ())
            size = sizes[axis] if 0 <= axis < len(sizes) else None
            if size is not None:
                return size
    raise _Unknown


def _path(node: ast.expr) -> str:
    """The path of an input as torch's pytree spells it: names and numbers, nothing that could be code."""
    match node:
        case ast.Name(id="L"):
            return "L"
        case ast.Subscript(value=inner, slice=ast.Constant(value=int(index))) if type(index) is int:
            return f"{_path(inner)}[{index}]"
        case ast.Subscript(value=inner, slice=ast.Constant(value=str(name))) if name.isidentifier():
            return f"{_path(inner)}['{name}']"
        case ast.Attribute(value=inner, attr=name):
            return f"{_path(inner)}.{name}"
    raise _Unknown
