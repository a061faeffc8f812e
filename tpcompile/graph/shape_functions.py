"""Shapes of operators that onnx has no schema of: ONNX Runtime's com.microsoft and what it hides in ai.onnx.

@shape_function("com.microsoft", "BiasGelu", "FastGelu")
def like_first(op):
    return [op.like(0)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcompile.graph.program import Node

Described = tuple[str, tuple[int | None, ...] | None]
"""(dtype, shape) of an output; ("", None) where unknown, None for a size that depends on data."""
UNKNOWN: Described = ("", None)


class Unknown(Exception):
    """The shapes of this form of the operator are not known here."""


@dataclass(frozen=True)
class ShapeQuery:
    """A node at one sample of sizes: what a shape function may look at."""

    node: Node
    operands: Sequence[tuple[str, tuple[int, ...]] | None]
    data: Sequence[np.ndarray[Any, Any] | None]

    def has(self, index: int) -> bool:
        return index < len(self.operands) and self.operands[index] is not None

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of a required operand."""
        return self._operand(index)[1]

    def dtype(self, index: int) -> str:
        return self._operand(index)[0]

    def like(self, index: int) -> Described:
        """An output of the type and shape of an operand."""
        return self._operand(index)

    def _operand(self, index: int) -> tuple[str, tuple[int, ...]]:
        found = self.operands[index] if index < len(self.operands) else None
        if found is None:
            raise Unknown(f"operand {index} is absent")
        return found

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.node.attribute(name, default)


Function = Callable[[ShapeQuery], Sequence[Described]]
SHAPE_FUNCTIONS: dict[tuple[str, str], Function] = {}


def shape_function(domain: str, *ops: str) -> Callable[[Function], Function]:
    """Register the shape function of operators: it gives (dtype, shape) of outputs, of trailing ones or not.

    Raises:
        ValueError: an operator is registered twice.
    """

    def register(function: Function) -> Function:
        for op in ops:
            if (domain, op) in SHAPE_FUNCTIONS:
                raise ValueError(f"{domain or 'ai.onnx'}.{op} has a shape function already")
            SHAPE_FUNCTIONS[domain, op] = function
        return function

    return register


def described(query: ShapeQuery) -> list[Described] | None:
    """(dtype, shape) of all outputs of a node, None where no function knows them."""
    function = SHAPE_FUNCTIONS.get((query.node.domain, query.node.op))
    if function is None:
        return None
    try:
        found = list(function(query))
    except (Unknown, LookupError, TypeError, ValueError, ZeroDivisionError):
        return None  # a form it did not think of: what depends on it runs whole
    return (found + [UNKNOWN] * len(query.node.outputs))[: len(query.node.outputs)]
