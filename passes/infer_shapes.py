"""Find the shape of every value, and what shape arithmetic computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tpcompile.graph.shapes import infer_shapes
from tpcompile.graph.symbolic import symbolic_shapes
from tpcompile.passes.compilation import Compilation


@dataclass(frozen=True)
class InferShapes:
    """Fills in sizes and known contents. Unknown shapes are no error: what has one runs whole."""

    name: ClassVar[str] = "infer shapes"

    def run(self, work: Compilation) -> str:
        report = infer_shapes(work.program, lambda samples: symbolic_shapes(work.source, samples))
        work.samples = report.samples
        unknown = sum(value.sizes is None for value in work.program.values.values())
        if unknown:
            work.warnings.append(
                f"the shapes of {unknown} values are unknown, so what computes them runs whole on every rank"
            )
        return f"{len(work.program.values)} values" + (f", {unknown} of unknown shape" if unknown else "")
