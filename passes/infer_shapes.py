"""Find the shape of every value, and what shape arithmetic computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.program import Program
from tpcompile.graph.shapes import infer_shapes
from tpcompile.graph.symbolic import symbolic_shapes
from tpcompile.passes.compilation import Compilation
from tpcompile.passes.retie_weights import RetieWeights


@dataclass(frozen=True)
class InferShapes:
    """Fills in sizes and known contents. Unknown shapes are no error: what has one runs whole.

    Where sizes decide an If whatever the inputs, the branch it takes replaces it, and shapes are inferred again.
    """

    name: ClassVar[str] = "infer shapes"

    def run(self, work: Compilation) -> str:
        decisions: dict[str, bool] = {}
        while True:
            report = infer_shapes(work.program, lambda samples: symbolic_shapes(work.source, samples))
            found = {name: taken for name, taken in _decided(work.program) if name not in decisions}
            if not found:
                break
            decisions |= found
            work.program = to_program(work.source, decisions)
            RetieWeights().run(work)
        work.samples = report.samples
        unknown = sum(value.sizes is None for value in work.program.values.values())
        if unknown:
            work.warnings.append(
                f"the shapes of {unknown} values are unknown, so what computes them runs whole on every rank"
            )
        return f"{len(work.program.values)} values" + (f", {unknown} of unknown shape" if unknown else "")


def _decided(program: Program) -> Iterator[tuple[str, bool]]:
    """Ifs whose condition is known and depends on no size of the inputs, by their first output: what it is."""
    for node in program.nodes:
        condition = node.inputs[0] if node.op == "If" and node.inputs else None
        output = node.outputs[0] if node.outputs else None
        if condition is not None and output is not None and condition.known is not None and condition.fixed:
            yield output.name, bool(condition.known[0].reshape(-1)[0])
