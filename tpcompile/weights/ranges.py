"""What a rank holds of a tensor: per axis, the index ranges in the order they are stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]
"""Half-open (start, stop)."""
Ranges = tuple[Range, ...]


@dataclass(frozen=True)
class Part:
    """A rank's share of a tensor.

    Attributes:
        axes: one entry per axis: None for the whole axis, or the ranges held, in the order they are stored
            (a fused QKV weight of 8 heads on rank 1 of 2: `((64, 128), (192, 256), (320, 384))`). Neighbours are
            joined at construction, so equal shares compare equal.

    Raises:
        ValueError: at construction, for a range that is empty or starts below zero.
    """

    axes: tuple[Ranges | None, ...]

    def __post_init__(self) -> None:
        joined = tuple(None if entry is None else join(entry) for entry in self.axes)
        object.__setattr__(self, "axes", joined)

    def __str__(self) -> str:
        spelled = (":" if entry is None else "+".join(f"{a}:{b}" for a, b in entry) or "-" for entry in self.axes)
        return "[" + ", ".join(spelled) + "]"


def whole(rank: int) -> Part:
    """The part that is all of a tensor with `rank` axes."""
    return Part((None,) * rank)


def join(ranges: Iterable[Range]) -> Ranges:
    """`ranges` in their order, each joined to the one before where it starts where that one stops."""
    joined: list[Range] = []
    for start, stop in ranges:
        if not 0 <= start < stop:
            raise ValueError(f"a range goes from 0 or more up to a larger stop, got ({start}, {stop})")
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], int(stop))
        else:
            joined.append((int(start), int(stop)))
    return tuple(joined)


def ranges_of(indices: NDArray[Any]) -> Ranges:
    """The ranges that list `indices` (1-D, integers, any order) in the same order, as few as that takes."""
    if not len(indices):
        return ()
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    starts = indices[np.concatenate(([0], breaks))]
    stops = indices[np.concatenate((breaks, [len(indices)])) - 1] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def size_of(ranges: Ranges) -> int:
    """How many indices the ranges hold."""
    return sum(stop - start for start, stop in ranges)


def local_shape(shape: tuple[int, ...], part: Part) -> tuple[int, ...]:
    """The shape of what `part` holds of a tensor of global `shape`.

    Raises:
        ValueError: when the part has another number of axes, or reaches past the end of one.
    """
    if len(part.axes) != len(shape):
        raise ValueError(f"a part of {len(part.axes)} axes {part} does not fit a tensor of shape {list(shape)}")
    for axis, (size, entry) in enumerate(zip(shape, part.axes, strict=True)):
        if entry and max(stop for _, stop in entry) > size:
            raise ValueError(f"part {part} reaches past the end of axis {axis} of a tensor of shape {list(shape)}")
    return tuple(size if entry is None else size_of(entry) for size, entry in zip(shape, part.axes, strict=True))


def cut_axes(shape: tuple[int, ...], part: Part) -> tuple[int, ...]:
    """The axes of which `part` does not hold all in the tensor's own order."""
    return tuple(
        axis
        for axis, (size, entry) in enumerate(zip(shape, part.axes, strict=True))
        if entry is not None and entry != (((0, size),) if size else ())
    )


def is_whole(shape: tuple[int, ...], part: Part) -> bool:
    """Whether `part` is the tensor itself."""
    return not cut_axes(shape, part)


def take(array: NDArray[Any], part: Part) -> NDArray[Any]:
    """A copy of what `part` holds of `array`: the reference that the writer is held against."""
    local_shape(array.shape, part)
    for axis, entry in enumerate(part.axes):
        if entry is not None:
            index = np.concatenate([np.arange(start, stop) for start, stop in entry] or [np.arange(0)])
            array = np.take(array, index, axis=axis)
    return array.copy()
