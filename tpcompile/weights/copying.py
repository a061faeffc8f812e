"""Copies one tensor's parts to their places: as long runs, as gathered columns, or element by element."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tpcompile.weights.geometry import (
    LONG_BYTES,
    Grid,
    View,
    flat_ranges,
    grid_of,
    mean_run_bytes,
    on_whole_bytes,
    runs_of,
    view_of,
)
from tpcompile.weights.layout import PAGE, WeightJob
from tpcompile.weights.ranges import Part, Range, Ranges, is_whole
from tpcompile.weights.reader import Bytes, Reader, StoppableReader, open_source
from tpcompile.weights.stage import Sink, Stage
from tpcompile.weights.widths import bytes_of, pack, unpack

BLOCK_BYTES = 16 * 1024 * 1024
WINDOW_BYTES = 256 * 1024
REPACKED_AT_ONCE = 1024 * 1024
"""Elements of sub-byte tensors that are cut within a byte are spread out, a byte each, so many at a time."""

Targets = tuple[tuple[Sink, int], ...]


class Workspace:
    """The memory of one thread: a block to read into and pages to write from."""

    def __init__(self) -> None:
        self.block: Bytes = np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), np.uint8)
        self.pages: Bytes = np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), np.uint8)


@dataclass(frozen=True)
class Task:
    """One tensor to copy: each distinct part with the places that hold it. Equal parts are put together once."""

    job: WeightJob
    bits: int
    parts: dict[Part, Targets]

    @property
    def source_bytes(self) -> int:
        return bytes_of(self.bits, self.job.shape)


def copy_tensor(task: Task, workspace: Workspace, forget: bool, stop: threading.Event) -> None:
    """Copy one tensor's parts to their places; raises Stopped soon after `stop` is set.

    With `forget` the source's pages leave the page cache afterwards.
    """
    job, parts = task.job, tuple(task.parts)
    with open_source(job.source, job.name, forget) as opened:
        reader = StoppableReader(opened, stop)
        if not on_whole_bytes(job.shape, parts, task.bits):
            repack(task, reader, workspace)
            return
        view = view_of(job.shape, parts, task.bits)
        gathered: dict[Ranges, list[tuple[Grid, Targets]]] = {}
        for part, targets in task.parts.items():
            grid = grid_of(job.shape, part, view)
            if is_whole(job.shape, part):
                copy_runs(((0, task.source_bytes),), reader, workspace, targets)
            elif mean_run_bytes(grid, view) >= LONG_BYTES or not fits(grid, view, len(parts)):
                copy_runs(runs_of(job.shape, part, view), reader, workspace, targets)
            else:
                gathered.setdefault(grid.rows, []).append((grid, targets))
        for rows, grids in gathered.items():
            copy_columns(rows, grids, view, reader, workspace)


def copy_runs(runs: Ranges, reader: Reader, workspace: Workspace, targets: Targets) -> None:
    """Store the tensor's byte `runs` one after the other; runs below a page are read several at a time."""
    stage = Stage(workspace.pages, targets)
    window: Bytes = workspace.block[:0]
    window_start = 0
    for place, (start, stop) in enumerate(runs):
        if stop - start >= PAGE:
            stage.copy_run(reader, start, stop)
            continue
        if not window_start <= start < stop <= window_start + window.size:
            window_start = start
            window = workspace.block[: reach(runs, place) - start]
            reader.read(window, start)
        stage.append(window[start - window_start : stop - window_start])
    stage.finish()


def reach(runs: Ranges, place: int) -> int:
    """Where a window that begins with the run at `place` ends: the last stop, of ascending runs, that fits."""
    start, end = runs[place]
    for at in range(place + 1, len(runs)):
        following, stop = runs[at]
        if following < end or stop - start > WINDOW_BYTES:
            break
        end = stop
    return end


def fits(grid: Grid, view: View, parts: int) -> bool:
    """Whether a row fits into the block, and a row's columns into the share of the pages that each part gets."""
    return view.row_bytes <= BLOCK_BYTES and grid.width <= pages_per_part(parts) - PAGE


def pages_per_part(parts: int) -> int:
    """Bytes of a workspace's pages that each of `parts` gets: whole pages."""
    return BLOCK_BYTES // parts // PAGE * PAGE


def copy_columns(
    rows: Ranges, grids: Sequence[tuple[Grid, Targets]], view: View, reader: Reader, workspace: Workspace
) -> None:
    """Store the columns of `grids`, which all hold the same `rows`, reading each row once."""
    share = pages_per_part(len(grids))
    stages = [Stage(workspace.pages[index * share :][:share], targets) for index, (_, targets) in enumerate(grids)]
    step = BLOCK_BYTES // view.row_bytes
    for first, last in rows:
        for row in range(first, last, step):
            block = workspace.block[: (min(row + step, last) - row) * view.row_bytes]
            reader.read(block, row * view.row_bytes)
            for stage, (grid, _) in zip(stages, grids, strict=True):
                stage.gather(block, view.row_bytes, grid.columns, grid.width)
    for stage in stages:
        stage.finish()


def repack(task: Task, reader: Reader, workspace: Workspace) -> None:
    """Store parts that begin or end within a byte: unpack the tensor, cut it, pack the parts, a window at a time."""
    per_byte = 8 // task.bits
    for part, targets in task.parts.items():
        stage = Stage(workspace.pages, targets)
        rest: Bytes = np.empty(0, np.uint8)
        for runs in windows(flat_ranges(task.job.shape, part.axes)):
            first, stop = runs[0][0] // per_byte, -(-runs[-1][1] // per_byte)
            packed = workspace.block[: stop - first]
            reader.read(packed, first)
            elements = unpack(packed, task.bits, packed.size * per_byte)
            origin = first * per_byte
            taken = np.concatenate([rest, *(elements[start - origin : end - origin] for start, end in runs)])
            full = taken.size // per_byte * per_byte
            stage.append(pack(taken[:full], task.bits))
            rest = taken[full:]
        stage.append(pack(rest, task.bits))
        stage.finish()


def windows(runs: Ranges) -> Iterator[list[Range]]:
    """Element `runs`, in their order, as lists that span at most `REPACKED_AT_ONCE` elements each."""
    window: list[Range] = []
    for start, stop in runs:
        for at in range(start, stop, REPACKED_AT_ONCE):
            end = min(stop, at + REPACKED_AT_ONCE)
            if window and not (window[-1][1] <= at and end - window[0][0] <= REPACKED_AT_ONCE):
                yield window
                window = []
            window.append((at, end))
    if window:
        yield window
