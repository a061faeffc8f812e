"""Types and shapes of a rank model's values, by the inference that the compiler itself uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import onnx

from tpcompile.graph.contents import held_tensors
from tpcompile.graph.external import find_data
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.program import Value
from tpcompile.graph.read import SourceModel
from tpcompile.graph.shapes import infer_shapes
from tpcompile.targets.collectives import register_schema


@dataclass(frozen=True)
class ValueTypes:
    """What is known of values by name; and symbols that turned out to be numbers."""

    values: dict[str, Value]
    settled: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, model: onnx.ModelProto, folder: Path) -> ValueTypes:
        """Infer the types of a model whose external data lies in `folder`; no weight is read but small constants."""
        register_schema()
        places = find_data(held_tensors(model), folder, allow_links=False, require_data=True)
        program = to_program(SourceModel(model, folder, "rank model", 0, places=places))
        infer_shapes(program)
        return cls(program.values)

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
