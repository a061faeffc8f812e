"""Sizes as texts: the expressions that torch writes of them, and nothing else that Python could evaluate."""

from __future__ import annotations

import ast
import re
from itertools import islice

import sympy
from torch.utils._sympy import functions

LONGEST, MOST_NODES = 100_000, 10_000
CONSTANTS = {"true", "false", "oo", "int_oo", "zoo"}
OF_SYMPY = (
    *("Add", "Mul", "Pow", "Integer", "Rational", "Float", "Symbol", "Max", "Min", "Abs", "Mod", "Piecewise"),
    *("Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan", "StrictLessThan"),
    *("Eq", "Ne", "Ge", "Le", "Gt", "Lt", "And", "Or", "Not", "ceiling", "floor", "ITE", "ExprCondPair", "Tuple"),
)
FUNCTIONS = {name for name in OF_SYMPY if hasattr(sympy, name)} | {"ExprCondPair"} | {
    name for name, found in vars(functions).items() if isinstance(found, type) and issubclass(found, sympy.Function)
}  # fmt: skip
ASSUMPTIONS = {
    *("integer", "positive", "negative", "nonnegative", "nonpositive", "nonzero", "zero", "real", "finite", "infinite"),
    *("extended_real", "extended_positive", "extended_nonnegative", "commutative", "precision", "even", "odd"),
}
NUMBER = re.compile(r"-?[0-9.]+(e[-+]?[0-9]+)?")


def is_expression(text: str) -> bool:
    """Whether `text` is an expression over sizes: calls of known functions on symbols and moderate numbers."""
    if len(text) > LONGEST:
        return False
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    if sum(1 for _ in islice(ast.walk(tree), MOST_NODES + 1)) > MOST_NODES:
        return False
    try:
        return _is_term(tree)
    except RecursionError:
        return False


def _is_term(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool()):
            return True
        case ast.Constant(value=int(number)):
            return abs(number) < 2**64
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return abs(number) < 2**64
        case ast.Name(id=name):
            return name in CONSTANTS
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=options) if name in FUNCTIONS:
            if not all(option.arg in ASSUMPTIONS and isinstance(option.value, ast.Constant)
                       and type(option.value.value) in (bool, int) for option in options):  # fmt: skip
                return False
            match name, arguments:
                case "Symbol", [ast.Constant(value=str(symbol))]:
                    return symbol.isidentifier() and symbol.isascii()
                case "Float", [ast.Constant(value=str(digits))]:
                    return NUMBER.fullmatch(digits) is not None
                case "Symbol" | "Float", _:
                    return False
                case "Pow" | "PowByNatural" | "FloatPow", [base, exponent]:
                    return _is_term(base) and _is_power(exponent)
            return bool(arguments) and all(map(_is_term, arguments))
    return False


def _is_power(node: ast.expr) -> bool:
    """Small powers alone: sympy would spell out the digits of large ones."""
    match node:
        case ast.Call(func=ast.Name(id="Integer"), args=[inner], keywords=[]):
            return _is_power(inner)
        case ast.Constant(value=int(number)) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return abs(number) <= 16
        case ast.Call(func=ast.Name(id="Rational"), args=[ast.Constant(value=int()), ast.Constant(value=int())]):
            return True
    return False
