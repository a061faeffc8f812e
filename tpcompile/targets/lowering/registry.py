"""The table of lowerings: by operator, how it is written in others.

@lowering("com.microsoft", "FastGelu")
def fast_gelu(site):
    return site.emit("Gelu", [site.input(0)], approximate="tanh")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpcompile.targets.lowering.site import Site

Lowering = Callable[["Site"], str | Sequence[str | None] | None]
"""Emits nodes and gives the values that stand for the node's outputs, in order; None for outputs that nobody reads.

None instead of all: TensorRT takes this form as it is.
"""
LOWERINGS: dict[tuple[str, str], Lowering] = {}


class NotLowered(Exception):
    """This form of the operator stays as it is; the text says why."""


def lowering(domain: str, *ops: str) -> Callable[[Lowering], Lowering]:
    """Register how operators are lowered.

    Raises:
        ValueError: an operator is registered twice.
    """

    def register(function: Lowering) -> Lowering:
        for op in ops:
            if (domain, op) in LOWERINGS:
                raise ValueError(f"{domain or 'ai.onnx'}.{op} is lowered already")
            LOWERINGS[domain, op] = function
        return function

    return register
