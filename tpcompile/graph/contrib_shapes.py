"""Shape functions of ONNX Runtime's operators on floats."""

from __future__ import annotations

from tpcompile.graph.shape_functions import Described, ShapeQuery, shape_function


@shape_function("com.microsoft", "BiasGelu", "FastGelu", "QuickGelu", "Gelu", "BiasAdd")
def like_first(op: ShapeQuery) -> list[Described]:
    """The first operand's."""
    return [op.like(0)]
