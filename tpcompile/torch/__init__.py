"""PyTorch models in, PyTorch programs out: `parallelize`, `load` what it saved, `merge` trained parts back.

Each is imported when it is first asked for: a rank that runs a program needs no compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpcompile.torch.bundle import load
    from tpcompile.torch.merging import merge
    from tpcompile.torch.programs import Parallelized, parallelize

__all__ = ["Parallelized", "load", "merge", "parallelize"]

_HOMES = {"Parallelized": "programs", "parallelize": "programs", "load": "bundle", "merge": "merging"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
