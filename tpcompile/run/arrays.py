"""Arrays in .npz files: read without pickles, written as a whole or not at all."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tpcompile.errors import refuse
from tpcompile.run.tensors import TYPES, Array


def read(path: Path, dtypes: Mapping[str, str]) -> dict[str, Array]:
    """The arrays of an .npz file; `dtypes` name the types that numpy stores as plain bytes ("bfloat16").

    Raises:
        Refused: TP609 the file is missing, is no .npz, or holds Python objects.
    """
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array, not several with names")
        with stored:
            return {name: _typed(stored[name], dtypes.get(name)) for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise refuse("TP609", str(path), f"cannot be read as .npz ({error})",
                     "Write it with numpy.savez(FILE, name=array, ...)") from None  # fmt: skip


def _typed(array: Array, dtype: str | None) -> Array:
    if array.dtype.kind != "V" or dtype not in TYPES:
        return array
    kind = np.dtype(TYPES[dtype][1])
    return array.view(kind) if kind.itemsize == array.dtype.itemsize else array


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write `arrays` to `path`, which appears only when complete.

    Raises:
        Refused: TP609 the place cannot be written to.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise refuse("TP609", str(path), f"cannot be written ({error})", "Choose another place for --outputs") from None
