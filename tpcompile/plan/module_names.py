"""The names a weight goes by: its own, and those of the module of the original model that it belongs to.

Exporters rename weights that they transpose ("onnx::MatMul_719", "val_84"). The module is still told by what reads
them: by the node's path ("/model/layers.0/mlp/up_proj/MatMul"), by its scope in the metadata, or by the name of the
bias that is added to the product.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from tpcompile.graph.program import Node, Value
from tpcompile.plan.roles import readers_of

PARAMETER = re.compile(r"(weight|bias|qweight|kernel|scales?|zeros?|qzeros|zero_points?)(_\w+)?")
"""The last part of a weight's name where it only says what kind of parameter of its module it is."""
ADDING = ("Add", "Gemm", "BiasGelu", "FastGelu")
"""Operators that add the bias of a product."""
OPERATORS = ("MatMul", "Gemm", "Add", "Conv", "Gather")
"""What exporters write between a module's name and its parameter's: "q_proj.MatMul.weight"."""


def names_of(value: Value, nodes: Sequence[Node]) -> list[str]:
    """Every name by which a weight may be asked for: its own first, then those of its module, without repetition.

    Args:
        value: the stored tensor.
        nodes: the nodes that read it.
    """
    found = [value.name, module_of(value.name)]
    for node in readers_of(nodes):
        found += _modules_of(node)
    return list(dict.fromkeys(name for name in found if name))


def matches(names: Iterable[str], pattern: str) -> bool:
    """Whether a pattern (`*`, `?`, `[…]`) is that of one of the names, or of one behind a dot."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}") for name in names)


def module_of(name: str) -> str:
    """The module that a parameter's name tells of: "h.1.mlp.c_fc" of "h.1.mlp.c_fc.weight"."""
    parts = name.split(".")
    if len(parts) > 1 and PARAMETER.fullmatch(parts[-1]):
        parts.pop()
    if len(parts) > 1 and parts[-1] in OPERATORS:
        parts.pop()
    return ".".join(parts)


def path_of(node: Node) -> str:
    """The module that a node was exported from, by its scope or its own name; "" where neither tells."""
    return node.scope or ".".join(part for part in node.name.split("/")[:-1] if part)


def _modules_of(node: Node) -> Iterator[str]:
    yield path_of(node)
    made = [value for value in node.outputs if value is not None]
    adding = [node] if node.op in ADDING else []
    adding += [reader for value in made for reader, _ in value.consumers if reader.op in ADDING]
    for reader in adding:
        for operand in reader.inputs:
            if operand is not None and operand.weight is not None and operand.name.endswith(".bias"):
                yield module_of(operand.name)
