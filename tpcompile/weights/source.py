"""Where a weight's bytes lie: a range of a file, or memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileBytes:
    """`nbytes` bytes from `offset` of the file at `path`, already checked to exist and to be allowed."""

    path: Path
    offset: int
    nbytes: int


@dataclass(frozen=True)
class MemoryBytes:
    """Bytes that came inside the model file; little-endian, row-major, packed as ONNX packs sub-byte types."""

    data: bytes | memoryview

    @property
    def nbytes(self) -> int:
        return len(self.data)


Source = FileBytes | MemoryBytes
