"""What the symbols of an exported program stand for in the two samples of the analysis, and sizes made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sympy import sympify

from tpcompile.graph.program import Sizes
from tpcompile.graph.samples import SAMPLES, Samples

Content = tuple[tuple[Any, ...], Any]
"""`known` and `varies` of a value."""


class SymbolSizes:
    """Numbers for the symbols of a graph.

    Args:
        graph: whose nodes carry FakeTensors in `meta["val"]`.
        names: what people call a symbol ("batch" for s23); others keep torch's name.
    """

    def __init__(self, graph: torch.fx.Graph, names: Mapping[str, str]) -> None:
        self.samples = Samples(set(_static_sizes(graph)))
        self.names = names
        self._found: dict[Any, Sizes] = {}

    def of(self, size: int | torch.SymInt) -> Sizes:
        """A size in each sample."""
        return (size,) * SAMPLES if isinstance(size, int) else self._at(size.node.expr)

    def spelled(self, size: int | torch.SymInt) -> int | str:
        """A size as people read it: 64, "batch", "2*seq"."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        renamed = {symbol: type(symbol)(self._name(symbol), integer=True) for symbol in expression.free_symbols}
        return str(expression.xreplace(renamed))

    def content(self, value: Any) -> Content:
        """`known` and `varies` of a number that is no tensor: int, bool, float or what torch makes of them."""
        if isinstance(value, bool | int | float):
            return (np.array(value),) * SAMPLES, None
        numbers = self._at(value.node.expr)
        return tuple(np.array(number) for number in numbers), np.array(bool(value.node.expr.free_symbols))

    def _name(self, symbol: Any) -> str:
        return self.names.get(str(symbol), str(symbol))

    def _at(self, expression: Any) -> Any:
        if expression not in self._found:
            each = [
                {symbol: sympify(self.samples.symbol(self._name(symbol))[k]) for symbol in expression.free_symbols}
                for k in range(SAMPLES)
            ]
            self._found[expression] = tuple(_number(expression.xreplace(values)) for values in each)
        return self._found[expression]


def _number(expression: Any) -> Any:
    """The number that an expression without symbols is: int, float or bool."""
    if expression.is_Boolean:
        return bool(expression)
    return int(expression) if expression.is_integer else float(expression)


def _static_sizes(graph: torch.fx.Graph) -> list[int]:
    found = []
    for node in graph.nodes:
        values = node.meta.get("val")
        for value in values if isinstance(values, tuple | list) else (values,):
            if isinstance(value, torch.Tensor):
                found += [size for size in value.shape if isinstance(size, int)]
    return found
