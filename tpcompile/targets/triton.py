"""Model repositories for Triton Inference Server.

`tensorrt`: one engine per rank, run by Triton's own TensorRT backend in its multi-device mode, which copies the inputs
of rank 0 to all ranks and answers with the outputs of rank 0. `python`: the whole bundle, run by our own ranks, for
what that mode cannot do: inputs and outputs that are cut, and caches that stay on the ranks between requests.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tpcompile.bundle.manifest import FILE_NAME, EngineEntry, IOEntry, Manifest
from tpcompile.bundle.write import BundleFolder, absolute, check_target, told
from tpcompile.errors import Fault, raise_all, refuse
from tpcompile.targets.triton_config import TYPES, Door, config, door

BACKENDS = ("tensorrt", "python")
CONFIG = "config.pbtxt"
PLAN = "model.plan"
VERSION = "1"
IDLE_SECONDS = "600"
"""For how long a sequence may be silent before its caches are given up, unless config.pbtxt is edited."""
TENSORRT = "tensorrt"
MODEL = '''"""Serves the bundle beside this file with ranks of tpcompile, which must be installed where this runs."""

from tpcompile.run.triton import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def write_repository(
    bundle: Path, repository: Path, *, backend: str = TENSORRT, name: str = "", force: bool = False
) -> Path:
    """Write `repository`/`name` (by default the bundle's own name) as a whole or not at all; returns that folder.

    Files of the bundle are linked where the disk allows it, else copied. `force` replaces a model that is there.

    Raises:
        Refused: TP45x the bundle; TP740 to TP745 what the backend cannot serve; TP41x where it cannot be written.
    """
    manifest = Manifest.read(bundle)
    check_backend(manifest, backend)
    target = absolute(repository) / (name or absolute(bundle).name)
    engines = [] if backend == "python" else _engines(manifest, bundle)
    fresh = not repository.exists()
    with told(repository):
        repository.mkdir(exist_ok=True)
    try:
        check_target(target, force, CONFIG)
        with BundleFolder(target, force, CONFIG) as folder:
            (folder / VERSION).mkdir()
            if backend == "python":
                _write_python(manifest, bundle, folder, target.name)
            else:
                _write_tensorrt(manifest, engines, bundle, folder, target.name)
    except BaseException:
        if fresh:
            with contextlib.suppress(OSError):
                repository.rmdir()
        raise
    return target


def check_engine(repository: Path, engine: str | None) -> None:
    """Refuse (TP741) a repository for engines that are not to be built, or that Triton does not load."""
    if engine != TENSORRT:
        fact = f"Triton's TensorRT backend loads engines of tensorrt, and {engine or 'none'} is to be built"
        raise refuse("TP741", f"--triton {repository}", fact, "Add --engine tensorrt, or leave out --triton")


def check_backend(manifest: Manifest, backend: str = TENSORRT) -> None:
    """Refuse what a backend cannot serve, as far as inputs and outputs tell.

    Raises:
        Refused: TP740 inputs or outputs that differ between ranks; TP742 a type that Triton has not; TP745 caches
            without the role tokens.
    """
    if backend == TENSORRT:
        raise_all(_cut_doors(manifest))
    raise_all(
        Fault("TP742", f"{side} {name}", f"is {entry.dtype}, a type that Triton has not", "Cast it within the model")
        for side, entries in (("input", manifest.inputs), ("output", manifest.outputs))
        for name, entry in entries.items()
        if entry.dtype not in TYPES
    )
    if backend == "python" and manifest.state and "tokens" not in manifest.roles:
        raise refuse("TP745", "the role tokens", "the model has caches, but no input is known as its token ids, so "
                     "nothing says when a sequence goes on", "Compile with --role tokens=INPUT")  # fmt: skip


def _cut_doors(manifest: Manifest) -> Iterator[Fault]:
    entries = [*manifest.inputs.items(), *manifest.outputs.items()]
    cut = [name for name, entry in entries if entry.placement is not None]
    if cut:
        caches = " (caches)" if manifest.state else ""
        fact = (
            f"{', '.join(cut[:3])}{f' and {len(cut) - 3} more' if len(cut) > 3 else ''}{caches} differ between ranks, "
            "and Triton's TensorRT backend gives every rank the inputs of rank 0 and answers with its outputs alone"
        )
        remedy = "`tpcompile triton BUNDLE DIR --backend python` has tpcompile's own ranks serve it"
        yield Fault("TP740", "triton", fact, remedy)


def _engines(manifest: Manifest, bundle: Path) -> list[EngineEntry]:
    """Each rank's engine of TensorRT, found whole and fit for Triton's multi-device mode."""
    found = [next((e for e in entry.engines if e.library == TENSORRT), None) for entry in manifest.ranks]
    engines = [engine for engine in found if engine is not None]
    if len(engines) != len(found):
        others = sorted({engine.library for entry in manifest.ranks for engine in entry.engines} - {TENSORRT})
        has = f"only engines of {' and '.join(others)}" if others else "no engines"
        fact = f"the bundle has {has}, and Triton's backend loads those of tensorrt"
        remedy = "Build them with `tpcompile engine BUNDLE --engine tensorrt`, or use --backend python"
        raise refuse("TP741", "triton", fact, remedy)
    faults = []
    for rank, engine in enumerate(engines):
        where = f"rank {rank}: {engine.file}"
        if len(engine.profiles) > 1:
            fact = f"has {len(engine.profiles)} profiles, and Triton's multi-device mode uses one"
            faults.append(Fault("TP743", where, fact, "Build the engines with one profile per input"))
        with (bundle / engine.file).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != engine.sha256:
                fact = "is not the engine that bundle.json describes: its sha256 differs"
                faults.append(Fault("TP744", where, fact, "Build the engines again, or copy the bundle again"))
    versions = {(engine.version, engine.compute_capability) for engine in engines}
    if len(versions) > 1:
        shown = " and ".join(f"{version} for {device}" for version, device in sorted(versions))
        faults.append(Fault("TP744", "engines", f"were built by TensorRT {shown}", "Build all of them together"))
    raise_all(faults)
    return engines


def _write_tensorrt(manifest: Manifest, engines: list[EngineEntry], bundle: Path, folder: Path, name: str) -> None:
    sizes = {name for engine in engines for profile in engine.profiles for name in profile}
    inputs = [
        door(found, entry, holds_sizes=found in sizes and all(isinstance(size, int) and size for size in entry.shape))
        for found, entry in manifest.inputs.items()
    ]
    outputs = [door(found, entry) for found, entry in manifest.outputs.items()]
    kind, parameters = "KIND_GPU", {}
    if len(engines) > 1:
        kind, parameters = (
            "KIND_MODEL",
            {
                "enable_multi_device": "true",
                "multi_device_gpus": ",".join(map(str, range(len(engines)))),
                "multi_device_per_rank_engines": "true",
            },
        )
        for rank, engine in enumerate(engines):
            _link(bundle / engine.file, folder / VERSION / f"{PLAN}.rank{rank}")
        (folder / VERSION / PLAN).symlink_to(f"{PLAN}.rank0")
    else:
        _link(bundle / engines[0].file, folder / VERSION / PLAN)
    (folder / CONFIG).write_text(config(name, TENSORRT, inputs, outputs, kind, parameters), encoding="utf-8")


def _write_python(manifest: Manifest, bundle: Path, folder: Path, name: str) -> None:
    files = {FILE_NAME, manifest.plan}
    for entry in manifest.ranks:
        files |= {entry.model, *(data.file for data in entry.data), *(engine.file for engine in entry.engines)}
    (folder / VERSION / "bundle").mkdir()
    for file in sorted(files):
        _link(bundle / file, folder / VERSION / "bundle" / file)
    (folder / VERSION / "model.py").write_text(MODEL, encoding="utf-8")
    kept = {pair.input for pair in manifest.state} | {pair.output for pair in manifest.state}
    made_up = {manifest.roles.get(role) for role in ("mask", "positions")} if manifest.state else set()
    inputs = [
        door(found, _as_numpy(entry), optional=found in made_up)
        for found, entry in manifest.inputs.items()
        if found not in kept
    ]
    outputs = [door(found, _as_numpy(entry)) for found, entry in manifest.outputs.items() if found not in kept]
    if {"tokens", "logits"} <= manifest.roles.keys() and "tokens" not in manifest.outputs:
        outputs.append(Door("tokens", "TYPE_INT64", (-1, -1)))  # only where a request asks for steps
    parameters = {"sequence_idle_seconds": IDLE_SECONDS} if manifest.state else {}
    (folder / CONFIG).write_text(config(name, "python", inputs, outputs, "KIND_CPU", parameters), encoding="utf-8")


def _as_numpy(entry: IOEntry) -> IOEntry:
    """As the Python backend passes it: numpy has no bfloat16, so float32 stands for it."""
    return replace(entry, dtype="float32") if entry.dtype == "bfloat16" else entry


def _link(source: Path, target: Path) -> None:
    """Put a file in a second place: the same bytes on the disk where that can be, else a copy."""
    with told(target):
        try:
            os.link(source.resolve(), target)
        except OSError:
            shutil.copyfile(source, target)


def add_triton_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `tpcompile triton` takes."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the folder that tpcompile wrote")
    parser.add_argument("repository", type=Path, metavar="DIR", help="the model repository; BUNDLE's own name is added")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default=TENSORRT,
        help="Triton's TensorRT backend with an engine per rank (default), or tpcompile's own ranks, which keep caches",
    )
    parser.add_argument("--name", default="", help="the name of the model (default: that of BUNDLE)")
    parser.add_argument("--force", action="store_true", help="replace a model that is there")


def triton_command(arguments: argparse.Namespace) -> int:
    """Run `tpcompile triton`."""
    written = write_repository(
        arguments.bundle,
        arguments.repository,
        backend=arguments.backend,
        name=arguments.name,
        force=arguments.force,
    )
    print(f"wrote {written}: tritonserver --model-repository {written.parent}")
    return 0
