"""tpcompile takes a model made for one device and makes it run on N, by tensor parallelism, with the same numbers."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "InferenceSession",
    "NumbersDiffer",
    "RankFailed",
    "Refused",
    "TpcompileError",
    "check_annotations",
    "compile",
    "load",
    "plan",
    "verify",
]

_WHERE = {
    "tpcompile.api": ("Bundle", "check_annotations", "compile", "load", "plan", "verify"),
    "tpcompile.run.session": ("InferenceSession",),
    "tpcompile.errors": ("NumbersDiffer", "RankFailed", "Refused", "TpcompileError"),
}

if TYPE_CHECKING:
    from tpcompile.api import Bundle, check_annotations, compile, load, plan, verify
    from tpcompile.errors import NumbersDiffer, RankFailed, Refused, TpcompileError
    from tpcompile.run.session import InferenceSession


def __getattr__(name: str) -> Any:
    """Load what is asked for, when it is: a rank that only runs needs neither scipy nor onnx_ir."""
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'tpcompile' has no attribute '{name}'")


class _FolderAndCall(ModuleType):
    """A folder of ours that has the name of a public call, and can be called as that."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return __getattr__(self.__name__.rpartition(".")[2])(*arguments, **options)


class _Package(ModuleType):
    """Importing `tpcompile.plan.cost` puts the folder `plan` where the call `tpcompile.plan` was: it must stay one."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            value.__class__ = _FolderAndCall
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
