"""Nodes that the compiler makes (they bear standard names) as calls of torch operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from tpcompile.torch.to_aten import RankWriter

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Content:
    """A constant of this rank: a number, a list of numbers, or a tensor, as what reads it needs."""

    array: npt.NDArray[Any]

    @property
    def plain(self) -> Any:
        """A number, or a (nested) list of numbers."""
        return self.array.tolist()


Made = Callable[["RankWriter", list[Any], Mapping[str, Any]], Any]
MADE: dict[str, Made] = {}


def made(*ops: str) -> Callable[[Made], Made]:
    """Register how a standard operator is called."""

    def register(body: Made) -> Made:
        MADE.update(dict.fromkeys(ops, body))
        return body

    return register


def _plain(entry: Any) -> Any:
    return entry.plain if isinstance(entry, Content) else entry


def is_tensor(entry: Any) -> bool:
    """Whether an entry is a tensor of the graph, not a number."""
    return isinstance(entry, torch.fx.Node) and isinstance(entry.meta["val"], torch.Tensor)


@made("Identity")
def _identity(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    return x[0]


@made("Transpose")
def _transpose(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    return w.call(aten.permute.default, w.tensor(x[0]), list(a["perm"]))


@made("Gather")
def _gather(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    return w.call(aten.index_select.default, w.tensor(x[0]), a["axis"], w.tensor(x[1]))


@made("Slice")
def _slice(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    (start,), (stop,) = _plain(x[1]), _plain(x[2])
    if isinstance(x[0], list):
        return x[0][start:stop]
    axis = _plain(x[3])[0] if len(x) > 3 else 0
    return w.call(aten.slice.Tensor, w.tensor(x[0]), axis, start, stop)


@made("Shape")
def _shape(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    tensor = w.tensor(x[0])
    return [
        size if isinstance(size, int) else w.call(aten.sym_size.int, tensor, axis)
        for axis, size in enumerate(tensor.meta["val"].shape)
    ]


@made("Concat")
def _concat(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    if any(isinstance(each, list) for each in x):
        return [entry for each in x for entry in _plain(each)]
    return w.call(aten.cat.default, [w.tensor(each) for each in x], a["axis"])


@made("Reshape")
def _reshape(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    return w.call(aten.reshape.default, w.tensor(x[0]), _plain(x[1]))


@made("Unsqueeze")
def _unsqueeze(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    found = w.tensor(x[0])
    for axis in sorted(_plain(x[1])):
        found = w.call(aten.unsqueeze.default, found, axis)
    return found


@made("Pad")
def _pad(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    widths = _plain(x[1])
    rank = len(widths) // 2
    pairs = [width for axis in reversed(range(rank)) for width in (widths[axis], widths[rank + axis])]
    return w.call(aten.constant_pad_nd.default, w.tensor(x[0]), pairs)


@made("Cast")
def _cast(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    return w.call(aten.to.dtype, w.tensor(x[0]), getattr(torch, a["to"]))


@made("Where")
def _where(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    condition, yes, no = x
    if isinstance(condition, Content):
        if condition.array.ndim:  # entries of a list of sizes
            return [y if c else n for c, y, n in zip(condition.plain, _plain(yes), _plain(no), strict=True)]
        return w.call(torch.ops.tpcompile.once.default, w.tensor(yes), bool(condition.plain))
    if isinstance(no, Content):
        return w.call(aten.where.ScalarOther, w.tensor(condition), w.tensor(yes), no.plain)
    if isinstance(yes, Content):
        return w.call(aten.where.ScalarSelf, w.tensor(condition), yes.plain, w.tensor(no))
    return w.call(aten.where.self, w.tensor(condition), w.tensor(yes), w.tensor(no))


@made("ScaleGradient")
def _scale_gradient(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    return w.call(torch.ops.tpcompile.scale_gradient.default, w.tensor(x[0]), w.tensor(x[1]))


@made("Not")
def _not(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    return w.call(aten.logical_not.default, w.tensor(x[0]))


@made("And")
def _and(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
    return w.call(aten.logical_and.default, w.tensor(x[0]), w.tensor(x[1]))


def _binary(on_tensors: Any, on_numbers: Callable[[Any, Any], Any]) -> Made:
    def body(w: RankWriter, x: list[Any], a: Mapping[str, Any]) -> Any:
        if is_tensor(x[0]):
            return w.call(on_tensors, x[0], _plain(x[1]))
        left, right = _plain(x[0]), _plain(x[1])
        if isinstance(left, list) or isinstance(right, list):
            return [_number(w, on_numbers, p, q) for p, q in zip(*_lists(left, right), strict=True)]
        return _number(w, on_numbers, left, right)

    return body


def _lists(left: Any, right: Any) -> Sequence[list[Any]]:
    length = len(left) if isinstance(left, list) else len(right)
    return [each if isinstance(each, list) else [each] * length for each in (left, right)]


def _number(w: RankWriter, target: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if target in (operator.mul, operator.floordiv) and right == 1 and isinstance(right, int):
        return left
    return w.call(target, left, right)


MADE["Add"] = _binary(aten.add.Tensor, operator.add)
MADE["Sub"] = _binary(aten.sub.Tensor, operator.sub)
MADE["Mul"] = _binary(aten.mul.Tensor, operator.mul)
MADE["Div"] = _binary(aten.div.Tensor, operator.floordiv)
MADE["Less"] = _binary(aten.lt.Scalar, operator.lt)
