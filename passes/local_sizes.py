"""What depends on local sizes: shape operands, bounds and attributes become each rank's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tpcompile.dims.cut import Cut
from tpcompile.dims.relation import LocalAttribute, Relation, ScaledShape
from tpcompile.graph.dtypes import numpy_dtype
from tpcompile.graph.local import PerRank
from tpcompile.graph.program import Node
from tpcompile.passes.emit import Emitter


@dataclass(frozen=True)
class LocalSizes:
    """Applies the patches of relations. `whole(node, index)` names the global version of an operand."""

    emitter: Emitter
    whole: Callable[[Node, int], str]

    def apply(
        self, node: Node, relation: Relation, held: Cut, inputs: list[str]
    ) -> tuple[dict[str, object], frozenset[str]]:
        """Patch the names in `inputs` in place; returns the attributes to set and those to drop.

        Args:
            node: the node.
            relation: its rule's patches.
            held: the cut, restricted to the leaves along which the node runs cut.
            inputs: names of its operands.
        """
        attributes: dict[str, object] = {}
        dropped: set[str] = set()
        entries: dict[int, tuple[int, list[dict[int, int]]]] = {}
        ranks = range(self.emitter.mesh.tp)
        for patch in relation.patches:
            if isinstance(patch, ScaledShape):
                ratios = [[(1, 1) if dim is None else held.ratio(dim, rank) for dim in patch.dims] for rank in ranks]
                if any(a != b for each in ratios for a, b in each):
                    inputs[patch.operand] = self._scaled(node, patch.operand, ratios)
            elif not any(held.leaves(dim) for dim in patch.when):
                continue
            elif isinstance(patch, LocalAttribute):
                values = tuple(patch.compute(held, rank) for rank in ranks)
                attributes[patch.name] = values[0] if all(value == values[0] for value in values) else PerRank(values)
            else:
                rows = entries.setdefault(patch.operand, (patch.length, [{} for _ in ranks]))[1]
                for rank, row in enumerate(rows):
                    row.update({position: compute(held, rank) for position, compute in patch.entries.items()})
                dropped.update(patch.drops)
        for operand, (length, rows) in entries.items():
            self._entries(node, operand, length, rows, inputs)
        return attributes, frozenset(dropped)

    def _scaled(self, node: Node, operand: int, ratios: Sequence[Sequence[tuple[int, int]]]) -> str:
        value = node.inputs[operand]
        if value is None or value.known is None:
            raise ValueError(f"{node.name} has no shape")
        name = f"{node.name}.shape"
        if value.fixed:
            rows = [[int(v) * a // b for v, (a, b) in zip(value.known[0], each, strict=True)] for each in ratios]
            return self.emitter.integers(name, rows)
        up = self.emitter.per_rank(f"{name}.held", [[a for a, _ in each] for each in ratios], False)
        down = self.emitter.per_rank(f"{name}.global", [[b for _, b in each] for each in ratios], False)
        scaled = self.emitter.node("Mul", [self.whole(node, operand), up], self.emitter.name(f"{name}.scaled"))
        return self.emitter.node("Div", [scaled, down], self.emitter.name(name))

    def _entries(
        self, node: Node, operand: int, length: int, rows: Sequence[Mapping[int, int]], inputs: list[str]
    ) -> None:
        """Replace entries of an integer operand (a scalar where `length` is 0) by each rank's own."""
        value = node.inputs[operand] if operand < len(node.inputs) else None
        name = f"{node.name}.local.{operand}"
        dtype = numpy_dtype(value.dtype or "int64") if value is not None else np.dtype(np.int64)
        known = value.known[0] if value is not None and value.known is not None and value.fixed else None
        shape = known.shape if known is not None else (length,) if length else ()
        arrays = []
        for row in rows:
            array = np.zeros(max(1, length), dtype) if known is None else np.array(known, dtype).reshape(-1)
            for position, number in row.items():
                array[position] = number
            arrays.append(array.reshape(shape))
        made = self.emitter.constant(name, arrays)
        if value is not None and known is None and len(rows[0]) < max(1, length):
            where = np.zeros(max(1, length), bool)
            where[list(rows[0])] = True
            mask = self.emitter.constant(f"{name}.where", where.reshape(shape))
            made = self.emitter.node("Where", [mask, made, inputs[operand]], self.emitter.name(f"{name}.mixed"))
        inputs += [""] * (operand + 1 - len(inputs))
        inputs[operand] = made
