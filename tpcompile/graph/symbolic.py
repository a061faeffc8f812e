"""Shapes by onnx-shape-inference, for operators onnx itself does not know (com.microsoft and others).

The package is young, so this file is the only one that speaks to it, and it is only asked for what the walk of
`tpcompile.graph.shapes` leaves unknown.
"""

from __future__ import annotations

import ast
import logging
import operator
from collections.abc import Callable

import onnx

from tpcompile.graph.program import Sizes
from tpcompile.graph.read import SourceModel
from tpcompile.graph.samples import SAMPLES, Samples
from tpcompile.graph.tensors import type_name

Shape = tuple[Sizes, ...]
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def symbolic_shapes(source: SourceModel, samples: Samples) -> dict[str, tuple[str, Shape]]:
    """Type and sizes of every value whose dims are numbers or expressions in the samples' symbols, by name.

    Weights are not read: large ones are replaced by their type and shape first.
    """
    logging.getLogger("onnx_shape_inference").setLevel(logging.CRITICAL)
    hollow = onnx.ModelProto()
    hollow.CopyFrom(source.proto)
    del hollow.graph.value_info[:]
    try:
        import onnx_ir
        from onnx_shape_inference import infer_symbolic_shapes

        model = infer_symbolic_shapes(onnx_ir.from_proto(hollow), warn_on_missing=False)
    except Exception:  # a young package: whatever it raises, the walk's own knowledge is what remains
        return {}
    found: dict[str, tuple[str, Shape]] = {}
    for node in model.graph:
        for value in node.outputs:
            if not value.name or value.shape is None or value.dtype is None:
                continue
            dims = [_sizes(dim, samples) for dim in value.shape]
            if all(dim is not None for dim in dims):
                found[value.name] = (type_name(value.dtype.value), tuple(dim for dim in dims if dim is not None))
    return found


def _sizes(dim: object, samples: Samples) -> Sizes | None:
    if isinstance(dim, int):
        return (dim,) * SAMPLES
    text = str(getattr(dim, "value", None) or "")
    if text in samples.symbols:
        return samples.symbols[text]
    try:
        tree = ast.parse(text, mode="eval").body
        return tuple(
            _evaluate(tree, {name: sizes[k] for name, sizes in samples.symbols.items()}) for k in range(SAMPLES)
        )
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None


def _evaluate(tree: ast.expr, values: dict[str, int]) -> int:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    if isinstance(tree, ast.Name):
        return values[tree.id]
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _OPERATORS[type(tree.op)](_evaluate(tree.left, values), _evaluate(tree.right, values))
    if (
        isinstance(tree, ast.Call)
        and isinstance(tree.func, ast.Name)
        and tree.func.id in ("floor", "max", "min", "Max", "Min")
    ):
        numbers = [_evaluate(argument, values) for argument in tree.args]
        return (
            numbers[0] if tree.func.id == "floor" else max(numbers) if tree.func.id.lower() == "max" else min(numbers)
        )
    raise ValueError(ast.dump(tree))
