"""Evaluate small nodes of shape arithmetic in numpy: what a Reshape's target or a Slice's bounds are made of.

No weight is read and no kernel of a runtime is run: only the operators that exporters build shapes with, the common
ones here, the rest by onnx's reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from tpcompile.graph.program import Node
from tpcompile.graph.tensors import ONNX_DTYPES

Array = npt.NDArray[Any]
LARGEST = 4096
"""Elements above which a value is no metadata."""
BROADCAST = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less",
     "LessOrEqual", "Where", "Max", "Min", "Mean", "Sum", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu")
)  # fmt: skip
"""Elementwise operators of several operands."""
_MOVES = frozenset(
    ("Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze")
)

_RARE = frozenset(
    ("ArgMax", "ArgMin", "BitShift", "Clip", "Compress", "EyeLike", "GatherElements", "GatherND", "OneHot", "Pad",
     "ReduceMean", "ScatterElements", "ScatterND", "Sign", "TopK", "Trilu", "Unique")
)  # fmt: skip

_DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "float16",
    11: "float64",
}


class NotEvaluable(Exception):
    """The node is outside of what shape arithmetic needs."""


def evaluate(node: Node, inputs: Sequence[Array | None]) -> list[Array]:
    """The outputs of a node of the standard domain whose inputs are all known.

    Raises:
        NotEvaluable: no rule for the operator, or the result is larger than `LARGEST` elements.
    """
    standard = node.domain in ("", "ai.onnx")
    function = _OPERATORS.get(node.op, _by_reference if node.op in _RARE else None) if standard else None
    if function is None:
        raise NotEvaluable(node.op)
    with np.errstate(all="ignore"):
        try:
            found = function(node, *inputs)
        except (ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, OverflowError) as error:
            raise NotEvaluable(f"{node.op}: {error}") from error
    outputs = [np.asarray(array) for array in (found if isinstance(found, list) else [found])]
    if any(array.size > LARGEST for array in outputs):
        raise NotEvaluable(f"{node.op}: too large")
    return outputs


def _guard_size(count: int) -> None:
    if count > LARGEST:
        raise NotEvaluable(f"{count} elements")


def _cast(node: Node, x: Array) -> Array:
    dtype = _DTYPES.get(node.attribute("to"))
    if dtype is None:
        raise NotEvaluable("Cast")
    return np.asarray(x.astype(dtype))


def _divide(node: Node, a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu":  # ONNX divides integers towards zero
        return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)), a.dtype)
    return np.asarray(a / b)


def _axes(node: Node, given: Array | None) -> list[int] | None:
    if given is not None:
        return [int(axis) for axis in given.reshape(-1)]
    found = node.attribute("axes")
    return None if found is None else list(found)


def _squeeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    found = _axes(node, axes)
    return np.squeeze(x, axis=None if found is None else tuple(found))


def _unsqueeze(node: Node, x: Array, axes: Array | None = None) -> Array:
    found = _axes(node, axes)
    if found is None:
        raise NotEvaluable("Unsqueeze without axes")
    return np.expand_dims(x, tuple(found))


def _slice(node: Node, x: Array, *rest: Array | None) -> Array:
    if rest:
        starts, ends = rest[0], rest[1]
        axes = rest[2] if len(rest) > 2 else None
        steps = rest[3] if len(rest) > 3 else None
    else:
        starts, ends, axes, steps = (
            np.array(node.attribute("starts")),
            np.array(node.attribute("ends")),
            node.attribute("axes"),
            None,
        )
        axes = None if axes is None else np.array(axes)
    if starts is None or ends is None:
        raise NotEvaluable("Slice")
    index: list[slice] = [slice(None)] * x.ndim
    which = range(len(starts)) if axes is None else [int(axis) for axis in axes]
    for k, axis in enumerate(which):
        start, stop, step = int(starts[k]), int(ends[k]), 1 if steps is None else int(steps[k])
        if step < 0:
            index[axis] = slice(start, None if stop < -x.shape[axis] else stop, step)
        else:
            index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def _reshape(node: Node, x: Array, shape: Array) -> Array:
    wanted = [int(s) for s in shape]
    if not node.attribute("allowzero", 0):
        wanted = [x.shape[i] if s == 0 else s for i, s in enumerate(wanted)]
    return x.reshape(wanted)


def _range(node: Node, start: Array, limit: Array, delta: Array) -> Array:
    _guard_size(int(np.ceil((limit - start) / delta).item()))
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _constant_of_shape(node: Node, shape: Array) -> Array:
    value = node.attribute("value")
    _guard_size(int(np.prod(shape, initial=1)))
    filler = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    return np.full([int(s) for s in shape], filler[0], dtype=filler.dtype)


def _expand(node: Node, x: Array, shape: Array) -> Array:
    target = np.broadcast_shapes(x.shape, tuple(int(s) for s in shape))
    _guard_size(int(np.prod(target, initial=1)))
    return np.broadcast_to(x, target)


def _tile(node: Node, x: Array, repeats: Array) -> Array:
    _guard_size(int(x.size * np.prod(repeats)))
    return np.tile(x, [int(r) for r in repeats])


def _reduce(function: Callable[..., Any]) -> Callable[..., Array]:
    def reduced(node: Node, x: Array, axes: Array | None = None) -> Array:
        found = _axes(node, axes)
        if found is None and node.attribute("noop_with_empty_axes", 0):
            return x
        return np.asarray(
            function(x, axis=None if found is None else tuple(found), keepdims=bool(node.attribute("keepdims", 1)))
        ).astype(x.dtype)

    return reduced


def _split(node: Node, x: Array, sizes: Array | None = None) -> list[Array]:
    axis = node.attribute("axis", 0)
    parts = [int(s) for s in sizes] if sizes is not None else node.attribute("split")
    if parts is None:
        count = len(node.outputs)
        each = -(-x.shape[axis] // count)
        parts = [min(each, x.shape[axis] - k * each) for k in range(count)]
    return np.split(x, np.cumsum(parts)[:-1], axis=axis)


def _cumsum(node: Node, x: Array, axis: Array) -> Array:
    if node.attribute("exclusive", 0) or node.attribute("reverse", 0):
        raise NotEvaluable("CumSum")
    return np.cumsum(x, axis=int(axis.item()), dtype=x.dtype)


def _transpose(node: Node, x: Array) -> Array:
    return np.transpose(x, node.attribute("perm"))


def _by_reference(node: Node, *inputs: Array | None) -> list[Array]:
    """Any other operator on small tensors, as onnx defines it."""
    from onnx.reference import ReferenceEvaluator  # takes a while to import, for what few graphs need

    proto = onnx.helper.make_node(
        node.op,
        ["" if array is None else f"i{k}" for k, array in enumerate(inputs)],
        ["" if value is None else f"o{k}" for k, value in enumerate(node.outputs)],
    )
    proto.attribute.extend(node.origin.attribute)
    given = {f"i{k}": array for k, array in enumerate(inputs) if array is not None}
    asked = [f"o{k}" for k, value in enumerate(node.outputs) if value is not None]
    graph = onnx.helper.make_graph(
        [proto],
        node.op,
        [onnx.helper.make_tensor_value_info(k, ONNX_DTYPES[a.dtype.name], a.shape) for k, a in given.items()],
        [onnx.ValueInfoProto(name=name) for name in asked],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", node.version)])
    try:
        found = iter(ReferenceEvaluator(model).run(None, given))
    except Exception as error:  # an implementation in Python: it raises what comes
        raise NotEvaluable(f"{node.op}: {error}") from error
    return [np.zeros(0) if value is None else np.asarray(next(found)) for value in node.outputs]


def varying(node: Node, output: int, found: Sequence[Array]) -> Array | None:
    """Which elements of an evaluated output depend on the inputs' sizes.

    Moved elements keep their mark, elementwise arithmetic joins the marks, everything else is marked whole: a quotient
    or a remainder may agree in both samples by chance.
    """
    marks = [None if value is None else value.varies for value in node.inputs]
    if all(mark is None or not mark.any() for mark in marks):
        return None
    if any(array.shape != found[0].shape for array in found):
        return np.ones(found[0].shape, bool)
    given = [None if value is None or value.known is None else value.known[0] for value in node.inputs]
    plain = [
        np.zeros(array.shape, bool) if mark is None else mark
        for array, mark in zip(given, marks, strict=True)
        if array is not None
    ]
    if (node.op in _MOVES and all(mark is None or not mark.any() for mark in marks[1:])) or node.op == "Concat":
        operands = plain if node.op == "Concat" else [plain[0], *given[1:]]
        return np.asarray(evaluate(node, operands)[output], bool)
    if node.op in BROADCAST:
        return np.asarray(np.logical_or.reduce(np.broadcast_arrays(*plain)))
    return np.ones(found[0].shape, bool)


_OPERATORS: dict[str, Callable[..., Array | list[Array]]] = {
    "Abs": lambda node, x: np.abs(x),
    "Add": lambda node, a, b: a + b,
    "And": lambda node, a, b: a & b,
    "Cast": _cast,
    "Ceil": lambda node, x: np.ceil(x),
    "Concat": lambda node, *xs: np.concatenate(xs, axis=node.attribute("axis")),
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumsum,
    "Div": _divide,
    "Equal": lambda node, a, b: a == b,
    "Exp": lambda node, x: np.exp(x),
    "Expand": _expand,
    "Floor": lambda node, x: np.floor(x),
    "Gather": lambda node, x, i: np.take(x, i, axis=node.attribute("axis", 0)),
    "Greater": lambda node, a, b: a > b,
    "GreaterOrEqual": lambda node, a, b: a >= b,
    "Identity": lambda node, x: x,
    "Less": lambda node, a, b: a < b,
    "LessOrEqual": lambda node, a, b: a <= b,
    "Log": lambda node, x: np.log(x),
    "Max": lambda node, *xs: np.maximum.reduce(np.broadcast_arrays(*xs)),
    "Min": lambda node, *xs: np.minimum.reduce(np.broadcast_arrays(*xs)),
    "Mod": lambda node, a, b: np.fmod(a, b) if node.attribute("fmod", 0) else np.mod(a, b),
    "Mul": lambda node, a, b: a * b,
    "Neg": lambda node, x: -x,
    "NonZero": lambda node, x: np.stack(np.nonzero(x)).astype(np.int64),
    "Not": lambda node, x: ~x,
    "Or": lambda node, a, b: a | b,
    "Pow": lambda node, a, b: np.power(a, b.astype(a.dtype)),
    "Range": _range,
    "Reciprocal": lambda node, x: 1 / x,
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Sqrt": lambda node, x: np.sqrt(x),
    "Squeeze": _squeeze,
    "Sub": lambda node, a, b: a - b,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": lambda node, c, a, b: np.asarray(np.where(c, a, b)),
}
