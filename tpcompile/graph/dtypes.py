"""Element types by their names, those of numpy and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype (ml_dtypes for what numpy lacks) of a standard name ("float32", "bfloat16", "int4", …)."""
    return np.dtype(getattr(ml_dtypes, name, name))
