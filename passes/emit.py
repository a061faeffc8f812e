"""Write nodes, constants and collectives into the program of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpcompile.dims.cut import Mesh
from tpcompile.graph.dtypes import numpy_dtype
from tpcompile.graph.local import (
    COLLECTIVE,
    OWN_DOMAIN,
    Array,
    CollectiveCall,
    Constant,
    LocalNode,
    LocalProgram,
    LocalSize,
    PerRank,
)
from tpcompile.graph.names import fresh_name
from tpcompile.graph.program import Region, Value


class Emitter:
    """Appends to a `LocalProgram`; every name it makes is new. `region` is the branch that nodes are appended to."""

    def __init__(self, mesh: Mesh, taken: Sequence[str], opset: int) -> None:
        self.mesh, self.opset = mesh, opset
        self.program = LocalProgram(mesh.tp)
        self.region: Region | None = None
        self._taken = set(taken)
        self._constants: dict[object, str] = {}

    def name(self, wanted: str) -> str:
        """`wanted`, or the first free `wanted.N`."""
        return fresh_name(wanted, self._taken)

    def node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Append a node of the standard domain with one output, named after it."""
        self.append(LocalNode(op, "", output, list(inputs), [output], attributes))
        return output

    def append(self, node: LocalNode) -> None:
        """Append a node to the present region."""
        node.region = self.region
        self.program.nodes.append(node)

    def constant(self, name: str, arrays: Sequence[Array] | Array) -> str:
        """A constant, the same on all ranks or one per rank; equal ones are shared."""
        each = [arrays] * self.mesh.tp if isinstance(arrays, np.ndarray) else list(arrays)
        each = [np.ascontiguousarray(array).reshape(array.shape) for array in each]
        key = tuple((array.dtype.name, array.shape, array.tobytes()) for array in each)
        if key not in self._constants:
            self._constants[key] = self.name(name)
            self.program.constants.append(Constant(self._constants[key], tuple(each)))
        return self._constants[key]

    def integers(self, name: str, values: Sequence[int] | Sequence[Sequence[int]] | int) -> str:
        """An int64 constant: a number, a list, or (a list of lists) one list per rank."""
        if isinstance(values, int) or not values or isinstance(values[0], int):
            return self.constant(name, np.array(values, np.int64))
        return self.constant(name, [np.array(each, np.int64) for each in values])

    def per_rank(self, name: str, rows: Sequence[Sequence[int]], scalar: bool) -> str:
        """An int64 constant per rank: a list, or (`scalar`) its only number."""
        return self.constant(name, [np.array(row[0] if scalar else row, np.int64) for row in rows])

    def scalars(self, name: str, values: Sequence[float], dtype: str | None) -> str:
        """One scalar per rank, of a value's type."""
        return self.constant(name, [np.array(value, numpy_dtype(dtype or "float32")) for value in values])

    def unsqueeze(self, x: str, axes: Sequence[int], output: str) -> str:
        if self.opset < 13:
            return self.node("Unsqueeze", [x], output, axes=list(axes))
        return self.node("Unsqueeze", [x, self.integers(f"{output}.axes", list(axes))], output)

    def collective(
        self,
        op: str,
        x: str,
        output: str,
        axes: tuple[int, ...],
        *,
        value: Value,
        shapes: Sequence[Sequence[LocalSize]],
        nbytes: str,
        because: str,
        dtype: str | None = None,
        root: int = -1,
        reduce: str = "sum",
        more: Sequence[str] = (),
        **attributes: Any,
    ) -> str:
        """A collective over the groups of ranks that differ on sub-axes `axes`; `root` is who broadcasts.

        `dtype` is the type that is sent, by default that of `value`; `more` are operands behind `x`.
        """
        groups = self.mesh.groups(axes)
        everyone = len(groups) == 1
        mine = [next(group for group in groups if rank in group) for rank in range(self.mesh.tp)]
        node = LocalNode(COLLECTIVE, OWN_DOMAIN, output, [x, *more], [output], {
            "collective_operation": op,
            "reduce_op": reduce if op in ("all_reduce", "reduce_scatter") else "none",
            "root": root,
            "nb_rank": len(groups[0]),
            "groups": [] if everyone else PerRank(tuple(mine)),
            **attributes,
        })  # fmt: skip
        self.append(node)
        self.program.collectives.append(
            CollectiveCall(
                node,
                op,
                value,
                dtype or value.dtype or "",
                () if everyone else tuple(map(tuple, groups)),
                tuple(tuple(s) for s in shapes),
                nbytes,
                because,
            )
        )
        return output
