"""Which weights can be stored cut and gathered before use, and along which axis they lie then."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tpcompile.dims.analysis import PER_USE
from tpcompile.dims.cut import block
from tpcompile.graph.program import Program, Value, Weight
from tpcompile.plan.asks import Ask
from tpcompile.plan.name_patterns import named_by
from tpcompile.plan.uses import stored_bytes

SENT = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
SENT |= frozenset(("float16", "bfloat16", "float32", "float64"))
"""Types that collectives carry."""

WANT_STORED = frozenset(("MatMulNBits", "MatMulBnb4", "QMoE"))
"""Operators whose kernels repack stored weights when they are loaded. ONNX Runtime's MatMulNBits then multiplies in 8
bits, where it may, and rounds differently without: that was seen. The others are taken to do likewise."""


def stored_axis(weight: Weight, tp: int) -> int:
    """The axis along which ranks hold parts: the first that divides evenly, else the longest."""
    even = [axis for axis, size in enumerate(weight.shape) if size % tp == 0 and size]
    return even[0] if even else max(range(len(weight.shape)), key=lambda axis: weight.shape[axis])


def why_not_gathered(value: Value, program: Program, tp: int) -> str:
    """Why a stored tensor stays whole though it should be gathered; "" where it can be."""
    if value.weight is None:
        return "it is computed"
    if stored_bytes(value) == 0 or max(value.weight.shape, default=0) < tp:
        return f"it has no axis of {tp} or more"
    if value.dtype not in SENT:
        return f"collectives do not carry {value.dtype}"
    reader = next((node for node, _ in value.consumers if node.op in WANT_STORED), None)
    if reader is not None:
        return f"{reader.op} computes otherwise with weights that are not stored in its file"
    if value in program.outputs:
        return "it is an output of the model"
    few = math.prod(value.weight.shape) <= PER_USE
    return f"it has no more than {PER_USE} elements" if few else ""


def local_shape(weight: Weight, tp: int, rank: int) -> tuple[int, ...]:
    """The shape of what a rank stores."""
    axis = stored_axis(weight, tp)
    start, stop = block(weight.shape[axis], tp, rank)
    return (*weight.shape[:axis], stop - start, *weight.shape[axis + 1 :])


def choose_gathered(
    program: Program, tp: int, pins: Sequence[tuple[str, str]], asks: Sequence[Ask]
) -> tuple[frozenset[Value], list[str]]:
    """The weights that pins and a recipe want stored cut and gathered, and a note for each wish that none follows."""
    asked = {use[0]: ask.label for ask in asks if ask.kind == "gather" for use in ask.uses}
    for value in program.weights:
        pinned = [(name, kind) for name, kind in pins if named_by(name, value.name)]
        if pinned:
            asked.pop(value, None)
            asked.update((value, f"pin '{name}=gather'") for name, kind in pinned if kind == "gather")
    reasons = {value: why_not_gathered(value, program, tp) for value in asked} if tp > 1 else {}
    found = frozenset(value for value, reason in reasons.items() if not reason)
    followed = {asked[value] for value in found}
    missed = {asked[value]: f"{value.name}: {reason}" for value, reason in reasons.items()}
    return found, [f"{label} changes nothing ({why})" for label, why in missed.items() if label not in followed]
