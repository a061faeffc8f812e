"""The two Python modules that build engines, and in what they differ: one API, so one path for both.

What stands here about `tensorrt_rtx` was run; what stands about `tensorrt` was written against its published API.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tpcompile.errors import refuse


@dataclass(frozen=True)
class Library:
    """A module that builds engines.

    Attributes:
        option: what `--engine` calls it.
        module: its import name, which bundle.json keeps and engine files carry.
        install: the command that installs it.
        capabilities: what an engine is for where nothing else is said; "" where it is for the GPU of this machine,
            which building needs then.
        has_timing_cache: whether a build remembers which kernels were fast: tactics of one rank serve the next.
            Builds that share one must not run at one time.
    """

    option: str
    module: str
    install: str
    capabilities: str
    has_timing_cache: bool

    @property
    def needs_gpu(self) -> bool:
        """Whether engines are built on the GPU that they are for."""
        return not self.capabilities


LIBRARIES = (
    # Ahead of time and for several architectures; calls on its timing cache do nothing but look for a GPU.
    Library("tensorrt-rtx", "tensorrt_rtx", "pip install 'tpcompile[rtx]'", "8.0, 8.6, 8.9, 12.0", False),
    # Times kernels on the GPU that the engine is for.
    Library("tensorrt", "tensorrt", "pip install 'tensorrt>=10.16'", "", True),
)
PREVIEWS = ("MULTIDEVICE_RUNTIME_10_16",)
"""Preview features that collectives need, in the versions that have them; later ones need none."""


def find_library(option: str) -> Library:
    """The library that `--engine` names, installed and with what it needs.

    Raises:
        Refused: TP704 there is no such library, or it is not installed; TP705 it needs a GPU and there is none.
    """
    found = next((library for library in LIBRARIES if library.option == option), None)
    if found is None:
        names = " or ".join(library.option for library in LIBRARIES)
        raise refuse("TP704", f"--engine {option}", "there is no such library", f"Use {names}")
    if find_spec(found.module) is None:
        raise refuse(
            "TP704",
            f"--engine {option}",
            f"the Python module {found.module} is not installed",
            f"Run `{found.install}`",
        )
    if found.needs_gpu and gpu_capability() is None:
        fact = f"{found.module} times its kernels on the GPU that an engine is for, and this machine shows none"
        remedy = "Build where the engines will run, or use --engine tensorrt-rtx, which builds without a GPU"
        raise refuse("TP705", f"--engine {option}", fact, remedy)
    return found


def gpu_capability() -> str | None:
    """The compute capability of the first GPU that CUDA shows here ("9.0"), None where there is none or no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, numbers = ctypes.c_int(), []
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
        number = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device):
            return None
        numbers.append(number.value)
    return ".".join(map(str, numbers))


def require_collectives(trt: Any) -> None:
    """Refuse (TP704) a version of the library that knows no collectives: it would leave them out or fail later."""
    if not hasattr(trt.LayerType, "DIST_COLLECTIVE"):
        fact = f"version {trt.__version__} knows no collectives"
        remedy = "Install tensorrt 10.16 or newer, or tensorrt-rtx 1.7 or newer"
        raise refuse("TP704", trt.__name__, fact, remedy)


def network_flags(trt: Any) -> int:
    """Strongly typed: float16 stays float16 and float32 float32. Newer versions know nothing else."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def configure(trt: Any, config: Any) -> None:
    """Settings that every engine is built with."""
    if hasattr(trt.BuilderFlag, "TF32"):
        config.clear_flag(trt.BuilderFlag.TF32)  # it would round what float32 products read to 10 bits
    for name in PREVIEWS:
        feature = getattr(trt.PreviewFeature, name, None)
        if feature is not None:
            config.set_preview_feature(feature, True)
