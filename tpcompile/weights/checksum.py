"""A cheap checksum of a stored tensor: of the pages at its ends. It tells files of two compiles apart, and lost ends.

Reading all of a large bundle would cost as much as loading it; `tpcompile --hash` writes whole digests for that.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

PAGE = 4096
KEY = "tpcompile.checksum"
"""Under this key a rank file's tensors carry it, among their metadata."""


def edge_checksum(path: Path, offset: int, length: int) -> str:
    """CRC-32 of the first and last `PAGE` bytes of a tensor of `length` bytes, as eight hex digits.

    Raises:
        OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        head = os.pread(descriptor, min(PAGE, length), offset)
        tail_at = max(offset + length - PAGE, offset)
        tail = os.pread(descriptor, offset + length - tail_at, tail_at)
    finally:
        os.close(descriptor)
    return f"{zlib.crc32(tail, zlib.crc32(head)):08x}"
