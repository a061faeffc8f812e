"""The writing side: files that take whole pages past the page cache, and the stage where pages are put together."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tpcompile.errors import Refused, refuse
from tpcompile.weights.geometry import Columns
from tpcompile.weights.layout import PAGE, round_up
from tpcompile.weights.reader import Bytes, Reader

OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
DIRECT_BYTES = 64 * 1024
"""Smaller writes go through the page cache: past it each would wait for the disk (measured: 0.1 ms)."""


class Sink(Protocol):
    """Takes what a stage has put together."""

    def write(self, pages: Bytes, offset: int) -> None:
        """Write whole pages from page-aligned memory, to be found from `offset` on."""


class OutputFile:
    """A new file of `size` bytes that reads as zeros until written; several threads may write it at once.

    Raises:
        Refused: TP405 when the disk is full, TP406 when the system refuses for another reason; so do all methods.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size
        self._direct: int | None = None
        with self._faults_told():
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._buffered = os.open(path, flags, 0o666)
        try:
            with self._faults_told():
                os.ftruncate(self._buffered, round_up(size))  # writes that do not extend a file may overlap
                self._direct = open_direct(path)
        except BaseException:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def write(self, pages: Bytes, offset: int) -> None:
        """Write from page-aligned memory; past the page cache where size and offset are whole pages, and many."""
        done = 0
        paged = pages.size >= DIRECT_BYTES and not (pages.size % PAGE or offset % PAGE)
        direct = self._direct if paged else None
        with self._faults_told():
            while done < pages.size:
                try:
                    descriptor = self._buffered if direct is None else direct
                    done += os.pwrite(descriptor, pages[done:].data, offset + done)
                except OSError as error:
                    if error.errno != errno.EINVAL or direct is None:
                        raise
                    direct = None  # some file systems say only now that they want it through the page cache

    def finish(self) -> None:
        """Cut the last page to the file's size and wait until all of it is on the disk."""
        with self._faults_told():
            os.ftruncate(self._buffered, self.size)
            os.fsync(self._buffered)

    def close(self) -> None:
        """Close the file, whatever state it is in."""
        os.close(self._buffered)
        if self._direct is not None:
            os.close(self._direct)

    @contextmanager
    def _faults_told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in OUT_OF_SPACE:
                raise no_space(self.path, self.size, shutil.disk_usage(self.path.parent).free) from error
            remedy = "Choose an output on a local disk that you may write to"
            raise refuse("TP406", str(self.path), f"cannot write: {error.strerror}", remedy) from error


def open_direct(path: Path) -> int | None:
    """Open an existing file for writes past the page cache; None where its file system has none."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return None


def no_space(path: Path, needed: int, free: int) -> Refused:
    """The refusal of a disk with less than `needed` bytes left for `path`."""
    fact = f"the disk is full: {needed:,} bytes are needed, {free:,} are free"
    return refuse("TP405", str(path), fact, "Free some space, or choose an output on another disk")


@contextmanager
def output_files(folder: Path, sizes: Mapping[str, int]) -> Iterator[dict[str, OutputFile]]:
    """New files of these sizes; on the way out all are closed, and removed where something was raised."""
    with ExitStack() as stack:
        files: dict[str, OutputFile] = {}
        try:
            for name, size in sizes.items():
                files[name] = OutputFile(folder / name, size)
                stack.callback(files[name].close)
            yield files
        except BaseException:
            for file in files.values():
                file.path.unlink(missing_ok=True)
            raise


class Stage:
    """Puts one part of a tensor together in memory and writes it in whole pages to each place that holds it.

    `memory` is page-aligned and a whole number of pages; `targets` are (file, offset), page-aligned unless packed.
    """

    def __init__(self, memory: Bytes, targets: Sequence[tuple[Sink, int]]) -> None:
        self._memory, self._targets = memory, targets
        self._filled = self._written = 0

    def copy_run(self, reader: Reader, start: int, stop: int) -> None:
        """Append the source's bytes `start` to `stop`, read straight into the stage."""
        while start < stop:
            space = self._space()
            count = min(stop - start, space.size)
            reader.read(space[:count], start)
            self._advance(count)
            start += count

    def append(self, data: Bytes) -> None:
        """Append bytes that are in memory."""
        done = 0
        while done < data.size:
            space = self._space()
            count = min(data.size - done, space.size)
            space[:count] = data[done : done + count]
            self._advance(count)
            done += count

    def gather(self, block: Bytes, row_bytes: int, columns: Sequence[Columns], width: int) -> None:
        """Append `columns` (`width` bytes in all, less than the stage less a page) of every row of `block`."""
        rows, done = block.size // row_bytes, 0
        while done < rows:
            space = self._space(width)
            count = min(rows - done, space.size // width)
            at = 0
            for piece in columns:
                copy_columns(block, done * row_bytes, row_bytes, piece, space, at, width, count)
                at += piece.count * piece.length
            self._advance(count * width)
            done += count

    def finish(self) -> None:
        """Write what is left, the last page filled up with zeros."""
        pages = self._memory[: round_up(self._filled)]
        pages[self._filled :] = 0
        self._write(pages)

    def _space(self, needed: int = 1) -> Bytes:
        if self._memory.size - self._filled < needed:
            pages = self._filled // PAGE * PAGE
            self._write(self._memory[:pages])
            self._memory[: self._filled - pages] = self._memory[pages : self._filled].copy()
            self._filled -= pages
        return self._memory[self._filled :]

    def _advance(self, count: int) -> None:
        self._filled += count

    def _write(self, pages: Bytes) -> None:
        for file, offset in self._targets:
            file.write(pages, offset + self._written)
        self._written += pages.size


def copy_columns(
    block: Bytes, first: int, row_bytes: int, columns: Columns, into: Bytes, at: int, width: int, rows: int
) -> None:
    """Copy `columns` of `rows` rows of `block` (from byte `first`) to byte `at` of rows of `width` bytes in `into`."""
    unit = math.gcd(8, first, row_bytes, columns.start, columns.length, columns.stride, at, width)
    shape = (rows, columns.count, columns.length // unit)
    source: NDArray[np.unsignedinteger] = np.ndarray(
        shape, f"u{unit}", block.data, first + columns.start, (row_bytes, columns.stride, unit)
    )
    target: NDArray[np.unsignedinteger] = np.ndarray(shape, f"u{unit}", into.data, at, (width, columns.length, unit))
    np.copyto(target, source)
