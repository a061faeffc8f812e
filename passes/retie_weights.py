"""Make equal copies of an embedding table one tensor again: exporters fold the transposed table into the LM head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx

from tpcompile.graph.program import Node, Program, Value
from tpcompile.passes.compilation import Compilation
from tpcompile.weights.source import FileBytes

SMALLEST = 4096
"""Elements below which a copy costs less than finding it."""
BLOCK_ROWS = 256
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RetieWeights:
    """Comes before shapes. A weight with the content of a table that ids look up, as it is or transposed, becomes it.

    One vocabulary is then cut once, for the lookup and for the logits. Contents are compared bit by bit; the first
    block that differs ends a comparison, and weights whose data is absent are left alone.
    """

    name: ClassVar[str] = "retie weights"

    def run(self, work: Compilation) -> str:
        program = work.program
        tables = [value for value in program.weights if _is_table(value) and _contents(value) is not None]
        named = {*program.outputs, *(value for node in program.nodes for value in node.captured)}  # read by their names
        tied = 0
        for table in tables:
            shape = table.weight.shape if table.weight else ()
            for other in program.weights:
                if other is table or other.weight is None or other.dtype != table.dtype or other in tables:
                    continue
                if other in named:
                    continue
                if other.weight.shape == shape and _equal(table, other, transposed=False):
                    _replace(program, other, table)
                    tied += 1
                elif other.weight.shape == shape[::-1] and _equal(table, other, transposed=True):
                    _replace(program, other, _transposed(program, table, other))
                    tied += 1
        return f"{tied} copies of tables" if tied else ""


def _is_table(value: Value) -> bool:
    shape = value.weight.shape if value.weight else ()
    looked_up = any(node.op == "Gather" and index == 0 for node, index in value.consumers)
    return looked_up and len(shape) == 2 and shape[0] * shape[1] >= SMALLEST


def _contents(value: Value) -> Array | None:
    """The bits of a stored matrix, mapped and not read; None where absent or of a type below a byte."""
    weight = value.weight
    if weight is None:
        return None
    count = weight.shape[0] * weight.shape[1]
    width = weight.source.nbytes // count if count else 0
    if width not in (1, 2, 4, 8) or width * count != weight.source.nbytes:
        return None
    dtype = np.dtype(f"u{width}")
    source = weight.source
    if isinstance(source, FileBytes):
        if not source.path.is_file():
            return None
        return np.memmap(source.path, dtype, "r", source.offset, weight.shape)
    return np.frombuffer(source.data, dtype).reshape(weight.shape)


def _equal(table: Value, other: Value, *, transposed: bool) -> bool:
    a, b = _contents(table), _contents(other)
    if a is None or b is None:
        return False
    b = b.T if transposed else b
    return all(np.array_equal(a[k : k + BLOCK_ROWS], b[k : k + BLOCK_ROWS]) for k in range(0, len(a), BLOCK_ROWS))


def _replace(program: Program, old: Value, new: Value) -> None:
    for node, index in old.consumers:
        node.inputs[index] = new
        new.consumers.append((node, index))
    del program.values[old.name]


def _transposed(program: Program, table: Value, like: Value) -> Value:
    """A node that transposes the table, in front of everything that reads it."""
    name = f"{like.name}.tied"
    while name in program.values:
        name += "_"
    value = Value(name)
    proto = onnx.helper.make_node("Transpose", [table.name], [name], name=name, perm=[1, 0])
    node = Node("Transpose", "", name, [table], [value], {"perm": [1, 0]}, program.opsets.get("", 0), origin=proto)
    value.producer = node
    table.consumers.append((node, 0))
    program.values[name] = value
    program.nodes.insert(0, node)
    return value
