"""Reading a weight's bytes where they lie, without loading or mapping them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tpcompile.errors import Refused, refuse
from tpcompile.weights.source import FileBytes, MemoryBytes, Source

Bytes = NDArray[np.uint8]


class Reader(Protocol):
    """Gives a tensor's bytes piece by piece."""

    def read(self, into: Bytes, start: int) -> None:
        """Fill `into` with the tensor's bytes from `start`."""


class MemoryReader:
    """Reads bytes that came inside the model file."""

    def __init__(self, source: MemoryBytes) -> None:
        self._data: Bytes = np.frombuffer(source.data, np.uint8)

    def read(self, into: Bytes, start: int) -> None:
        """Fill `into` with the tensor's bytes from `start`."""
        into[:] = self._data[start : start + into.size]


class FileReader:
    """Reads a range of an open file; several threads may read one file at once."""

    def __init__(self, source: FileBytes, name: str, descriptor: int) -> None:
        self._source, self._name, self._descriptor = source, name, descriptor

    def read(self, into: Bytes, start: int) -> None:
        """Fill `into` with the tensor's bytes from `start`; raises Refused (TP402) where the file ends before."""
        done = 0
        while done < into.size:
            got = os.preadv(self._descriptor, [into[done:].data], self._source.offset + start + done)
            if not got:
                raise ends_early(self._source, self._name, os.fstat(self._descriptor).st_size)
            done += got


class Stopped(Exception):
    """Raised in a worker when another one, or the user, has ended the work."""


class StoppableReader:
    """A reader that raises Stopped once `stop` is set: every step of a copy begins with a read."""

    def __init__(self, reader: Reader, stop: threading.Event) -> None:
        self._reader, self._stop = reader, stop

    def read(self, into: Bytes, start: int) -> None:
        """Fill `into` with the tensor's bytes from `start`."""
        if self._stop.is_set():
            raise Stopped
        self._reader.read(into, start)


@contextmanager
def open_source(source: Source, name: str, forget: bool = False) -> Iterator[Reader]:
    """A reader of tensor `name`. With `forget` the file's pages leave the page cache afterwards.

    Raises:
        Refused: TP402 where the file cannot be read.
    """
    if isinstance(source, MemoryBytes):
        yield MemoryReader(source)
        return
    try:
        descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise unreadable(source.path, name, error) from error
    try:
        yield FileReader(source, name, descriptor)
        if forget:
            os.posix_fadvise(descriptor, source.offset, source.nbytes, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def ends_early(source: FileBytes, name: str, size: int) -> Refused:
    """The refusal of a file that has fewer bytes than the model says."""
    fact = f"the file has {size:,} bytes, but the model says that bytes {source.offset:,} to "
    fact += f"{source.offset + source.nbytes:,} hold weight {name!r}"
    return refuse("TP402", str(source.path), fact, "The file was cut short or is still being copied: fetch it again")


def unreadable(path: Path, name: str, error: OSError) -> Refused:
    """The refusal of a file that the system will not let us read."""
    fact = f"weight {name!r} cannot be read: {error.strerror}"
    return refuse("TP402", str(path), fact, "Put the model's data files back beside it and make them readable")


def size_of_file(path: Path, name: str, known: dict[Path, Any]) -> int:
    """The file's bytes, asked once per path through `known`; raises Refused (TP402) where there is no such file."""
    if path not in known:
        try:
            known[path] = os.stat(path).st_size
        except OSError as error:
            raise unreadable(path, name, error) from error
    return int(known[path])
