"""Shape functions of ONNX Runtime's operators on quantised numbers."""

from __future__ import annotations

from tpcompile.graph.shape_functions import Described, ShapeQuery, shape_function


@shape_function("com.microsoft", "MatMulNBits")
def last_axis_is_n(op: ShapeQuery) -> list[Described]:
    """The last axis has the size that the attribute N says."""
    return [(op.dtype(0), (*op.shape(0)[:-1], op.attribute("N")))]


@shape_function("com.microsoft", "GatherBlockQuantized")
def gathered(op: ShapeQuery) -> list[Described]:
    """As Gather, of the scales' type; bytes of several numbers each become as many."""
    shape = list(op.shape(0))
    if op.dtype(0) == "uint8":
        shape[-1] *= 8 // op.attribute("bits", 4)
    axis = op.attribute("gather_axis", 0) % len(shape)
    return [(op.dtype(2), (*shape[:axis], *op.shape(1), *shape[axis + 1 :]))]
