"""Comparison with the source model: outputs, and every value of the ranks that can be put together again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tpcompile.verify.branches import walk
from tpcompile.verify.files import Array, Bundle
from tpcompile.verify.simulate import Trace

if TYPE_CHECKING:
    from tpcompile.verify.source_run import SourceRun

FLOOR, CEILING, NOISES = 3e-5, 2e-2, 1.5
"""Relative error that is always allowed; that never is; how many times the source's own noise is allowed between."""
MEAN_STEPS = 2e-2
"""How far a value made of rounded activations may be off on average: in steps, or of its mean magnitude."""
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


def relative_error(want: Array, got: Array) -> float:
    """Largest difference over largest magnitude; the share of differing elements where values are no floats.

    Infinite where shapes or types differ, or where one has an infinity or NaN that the other has not.
    """
    if want.shape != got.shape or want.dtype != got.dtype:
        return math.inf
    if not want.size:
        return 0.0
    if want.dtype.kind in "iubSUO":
        return float(np.mean(want != got))
    a, b = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    return float(np.abs(a[finite] - b[finite]).max(initial=0) / (np.abs(a[finite]).max(initial=0) + 1e-6))


def mean_error(want: Array, got: Array) -> float:
    """How far elements are off on average: in steps where values are whole numbers, else of the mean magnitude.

    One step in a hundred elements is what another order of sums does to rounded activations; a fault moves most of
    them. Infinite where shapes or types differ, or where one has an infinity or NaN that the other has not.
    """
    if not want.size or math.isinf(relative_error(want, got)) or want.dtype.kind in "bSUO":
        return relative_error(want, got)
    a, b = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    scale = 1.0 if want.dtype.kind in "iu" else np.abs(a[finite]).mean() + 1e-6
    return float(np.abs(a[finite] - b[finite]).mean() / scale)


@dataclass(frozen=True)
class Divergence:
    """A value of the ranks that is not the source's: the source node that makes it, the error and what was allowed."""

    value: str
    node: str
    error: float
    limit: float
    declared: bool

    def __str__(self) -> str:
        return f"{self.value} (made by {self.node}): relative error {self.error:.1e}, {self.limit:.1e} allowed"


def whole_output(bundle: Bundle, trace: Trace, name: str) -> Array | str:
    """An output put together by its placement in bundle.json; a text that says why where the parts do not fit."""
    parts, placement = trace.of(name), bundle.placement("outputs", name)
    if not placement:
        differs = [rank for rank, part in enumerate(parts) if relative_error(parts[0], part) > FLOOR]
        return f"is whole by bundle.json, but rank {differs[0]} has another value than rank 0" if differs else parts[0]
    return assembled(parts, placement.axis, placement.ranges)


def assembled(parts: list[Array], axis: int, ranges: Sequence[Sequence[Sequence[int]]]) -> Array | str:
    """Parts that hold `ranges[rank]` of `axis` as one array; a text where they do not fit, cover it, or agree."""
    if len(ranges) != len(parts):
        return f"has ranges for {len(ranges)} ranks, not {len(parts)}"
    held = [np.concatenate([np.arange(start, stop) for start, stop in mine]) for mine in ranges]
    size = 1 + max(int(mine.max(initial=-1)) for mine in held)
    covered = np.zeros(size, bool)
    whole: Array | None = None
    for rank, (part, mine) in enumerate(zip(parts, held, strict=True)):
        if axis >= part.ndim or part.shape[axis] != mine.size:
            return f"has shape {list(part.shape)} on rank {rank}, its ranges on axis {axis} name {mine.size} indices"
        if whole is None:
            whole = np.zeros([size if at == axis else count for at, count in enumerate(part.shape)], part.dtype)
        lead: tuple[Any, ...] = (slice(None),) * axis
        if part.shape[:axis] + part.shape[axis + 1 :] != whole.shape[:axis] + whole.shape[axis + 1 :]:
            return f"has shape {list(part.shape)} on rank {rank}, which does not fit {list(parts[0].shape)} on rank 0"
        copies = covered[mine]
        if copies.any() and relative_error(whole[(*lead, mine[copies])], part[(*lead, copies)]) > FLOOR:
            return f"differs on rank {rank} from another rank that holds the same part of axis {axis}"
        whole[(*lead, mine)] = part
        covered[mine] = True
    if whole is None or not covered.all():
        return f"lacks index {int(np.argmin(covered))} of axis {axis} on every rank"
    return whole


def divergences(
    bundle: Bundle, source: SourceRun, trace: Trace, want: Mapping[str, Array], limits: Mapping[str, float]
) -> Iterator[Divergence]:
    """Values that kept their source's name and are further from it than allowed, in the source's order of nodes.

    Where the rank files say how a value lies (`tpcompile.placements`), that is what is checked; elsewhere the best of
    the ways it could lie is taken: no way is guessed wrong, at the price of seeing less.
    """
    for node in walk(source.model.graph):
        for name in node.output:
            if not name or name not in limits or any(name not in values for values in trace.values):
                continue
            parts, target, limit = trace.of(name), want[name], limits[name]
            error_of = partial(source.error, name)
            declared = [placements.get(name) for placements in bundle.declared]
            if declared[0] is not None:
                try:
                    error = _declared_error(parts, target, declared, error_of)
                except (KeyError, TypeError, ValueError, IndexError):  # a declaration that makes no sense
                    error = math.inf
            else:
                error = min((error_of(target, way) for way in _ways(parts, target)), default=0.0)
            if error > limit:
                yield Divergence(name, f"{node.op_type} {node.name}".strip(), error, limit, declared[0] is not None)


def _declared_error(
    parts: list[Array], want: Array, declared: list[Any], error_of: Callable[[Array, Array], float]
) -> float:
    """The worst error over what the declaration lets us put together; infinite where the parts do not fit it."""
    entry = declared[0]
    if any(other != entry for other in declared):
        return math.inf
    if "partial" in entry:
        group_of = {rank: group for group in entry["partial"] or [range(len(parts))] for rank in group}
        parts = [summed([parts[other] for other in group_of[rank]]) for rank in range(len(parts))]
    if entry.get("axis") is None:
        return max(error_of(want, part) for part in parts)
    whole = assembled(parts, entry["axis"], entry["ranges"])
    return math.inf if isinstance(whole, str) else error_of(want, whole)


def summed(parts: list[Array]) -> Array:
    """The sum of partial values, added up in double precision."""
    if len({part.shape for part in parts}) != 1:
        return np.zeros(0)
    total = parts[0].astype(np.float64)
    for part in parts[1:]:
        total = total + part.astype(np.float64)
    with np.errstate(over="ignore"):
        return total.astype(parts[0].dtype)


def _ways(parts: list[Array], want: Array) -> Iterator[Array]:
    """What the parts could mean together: the same on all ranks, a sum, or pieces of one axis in order of rank."""
    if any(not isinstance(part, np.ndarray) or part.dtype != want.dtype or part.ndim != want.ndim for part in parts):
        return
    if all(part.shape == want.shape for part in parts):
        yield parts[0]
        if want.dtype.kind == "f":
            yield summed(parts)
        return
    for axis in range(want.ndim):
        if sum(part.shape[axis] for part in parts) == want.shape[axis]:
            rest = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
            if len(rest) == 1:
                yield np.concatenate(parts, axis)
