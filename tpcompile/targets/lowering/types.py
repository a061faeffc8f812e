"""Types and shapes of a rank model's values, by the inference that the compiler itself uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from tpcompile.graph.contents import held_tensors
from tpcompile.graph.evaluate import BROADCAST
from tpcompile.graph.external import find_data
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.program import Program, Sizes, Value
from tpcompile.graph.read import SourceModel
from tpcompile.graph.samples import SAMPLES, Samples
from tpcompile.graph.shapes import COMPARISONS, infer_shapes
from tpcompile.targets.collectives import register_schema


@dataclass(frozen=True)
class ValueTypes:
    """What is known of values by name; where lengths of the inputs stand; symbols that turned out to be numbers."""

    values: dict[str, Value]
    origins: dict[Sizes, tuple[str, int]]
    settled: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, model: onnx.ModelProto, folder: Path) -> ValueTypes:
        """Infer the types of a model whose external data lies in `folder`; no weight is read but small constants."""
        register_schema()
        places = find_data(held_tensors(model), folder, allow_links=False, require_data=True)
        program = to_program(SourceModel(model, folder, "rank model", 0, places=places))
        told: dict[str, tuple[str, tuple[Sizes, ...]]] = {}

        def tell(_samples: object) -> dict[str, tuple[str, tuple[Sizes, ...]]]:
            return told

        while True:
            samples = infer_shapes(program, tell).samples
            found = {name: kind for name, kind in _contradicted(program) if name not in told}
            if not found:
                return cls(program.values, _origins(program, samples))
            told.update(found)

    def dtype(self, name: str) -> str | None:
        """The element type's standard name, None where it is unknown."""
        found = self.values.get(name)
        return found.dtype if found is not None else None

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """Sizes, None for those that vary; None where even the rank is unknown."""
        found = self.values.get(name)
        if found is None or found.sizes is None:
            return None
        return tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in found.sizes)

    def origin(self, name: str, axis: int) -> tuple[str, int]:
        """The first input, and its axis, that is as long as an axis of a value by its symbol; else that axis itself."""
        return self.origins.get(self.lengths(name, axis) or (), (name, axis))

    def lengths(self, name: str, axis: int) -> tuple[int, ...] | None:
        """The size of an axis in each sample of input sizes, None where it is unknown."""
        found = self.values.get(name)
        return None if found is None or found.sizes is None else found.sizes[axis]

    def known(self, name: str) -> bool:
        """Whether the content of a value follows from the inputs' shapes."""
        found = self.values.get(name)
        return found is not None and found.known is not None

    def settle(self, name: str, axis: int, size: int) -> None:
        """An axis is of a fixed size by an operator's definition: so is its symbol, wherever that stands."""
        found = self.values.get(name)
        symbol = found.shape[axis] if found is not None and found.shape is not None else None
        if isinstance(symbol, str):
            self.settled[symbol] = size


def _contradicted(program: Program) -> Iterator[tuple[str, tuple[str, tuple[Sizes, ...]]]]:
    """Elementwise results whose operands' sizes contradict each other, as they do where counts depend on data.

    The sizes of the first operand stand for them: lowering asks for types, ranks and sizes that do not vary.
    """
    for node in program.nodes:
        operands = [value for value in node.inputs if value is not None]
        output = node.outputs[0]
        if node.op not in BROADCAST or output is None or output.sizes is not None:
            continue
        if any(value.sizes is None or value.dtype is None for value in operands):
            continue
        rank = max(len(value.sizes or ()) for value in operands)
        sizes = [(1,) * SAMPLES] * rank
        for value in reversed(operands):
            for axis, size in enumerate(reversed(value.sizes or ()), 1):
                sizes[-axis] = size if set(size) != {1} else sizes[-axis]
        kind = "bool" if node.op in COMPARISONS else operands[node.op == "Where"].dtype or ""
        yield output.name, (kind, tuple(sizes))


def _origins(program: Program, samples: Samples) -> dict[Sizes, tuple[str, int]]:
    """The first axis of an input for each symbol; none where its number may have been chosen as a sum of others'."""
    varying = {sizes for sizes in samples.symbols.values() if len(set(sizes)) > 1}
    sums = {tuple(map(sum, zip(a, b, strict=True))) for a in varying for b in varying}
    found: dict[Sizes, tuple[str, int]] = {}
    for value in program.inputs:
        for axis, symbol in enumerate(value.shape or ()):
            sizes = samples.symbols.get(symbol) if isinstance(symbol, str) else None
            if sizes in varying - sums:
                found.setdefault(sizes, (value.name, axis))
    return found
