"""Where values of a run are kept: in memory, or beyond a limit in files that nobody else sees."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping

import numpy as np

from tpcompile.verify.files import Array

SHARES = 4
"""A limit of memory is shared by the values kept, the weights of a part, those moved, and what onnxruntime needs."""
SMALL_BYTES = 1 << 20


class Shelf:
    """Keeps values; what goes beyond a share of `memory_bytes` (None: no limit) is mapped from files without a name.

    A value's memory or file is free again when nobody holds the value.
    """

    def __init__(self, memory_bytes: int | None) -> None:
        self.limit_bytes = None if memory_bytes is None else memory_bytes // SHARES
        self.held_bytes = 0

    def put(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The same values, to be held in the stead of those given."""
        return {name: self._kept(value) for name, value in values.items()}

    def _kept(self, value: Array) -> Array:
        if self.limit_bytes is None or not isinstance(value, np.ndarray) or value.nbytes < SMALL_BYTES:
            return value
        if self.held_bytes + value.nbytes <= self.limit_bytes:
            self.held_bytes += value.nbytes
            weakref.finalize(value, self._released, value.nbytes)
            return value
        with tempfile.TemporaryFile() as file:
            stored = np.memmap(file, value.dtype, "w+", shape=value.shape)
        stored[...] = value
        stored.flush()
        return stored

    def _released(self, nbytes: int) -> None:
        self.held_bytes -= nbytes
