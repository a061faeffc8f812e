"""What one rank does: run once or decode, and end all ranks where it must, with a word on why."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from tpcompile.errors import Fault, NumbersDiffer, Refused, TpcompileError, refuse
from tpcompile.run import arrays
from tpcompile.run.mpi import World
from tpcompile.run.rank import RankRunner, load
from tpcompile.run.session import LOAD_LIMIT_S
from tpcompile.run.tensors import TYPES, Array

FAILED = 4
CHECK_TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-6}
"""Largest difference that --check allows, relative to the largest value, by bytes of the type."""


def end_all(world: World, error: BaseException) -> int:
    """Say on which rank `error` came up, and end all ranks with its exit code (returned where there is only one)."""
    if isinstance(error, TpcompileError):
        if isinstance(error, Refused) and world.rank != 0:
            time.sleep(1)  # all ranks refuse alike: rank 0 says it for all, and its abort ends this one
        print("\n".join(f"[rank {world.rank}] {line}" for line in str(error).splitlines()), file=sys.stderr, flush=True)
        code = error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        code = 130
    else:
        fault = Fault("TP612", world.place(), f"{type(error).__name__}: {error}", "All ranks end with this one")
        print(f"[rank {world.rank}] {fault}", file=sys.stderr, flush=True)
        code = FAILED
    if world.size > 1:
        world.abort(code)
        os._exit(code)
    return code


def run_rank(arguments: argparse.Namespace, world: World) -> None:
    """Load, run once or decode, and let rank 0 write and compare."""
    bundle = Path(arguments.bundle)
    prepack, limit_s = arguments.prepack, arguments.timeout
    dump = arguments.dump
    if dump is not None and arguments.steps is not None:
        raise refuse("TP615", "--dump", "is for one pass, and --steps asks for several", "Leave one of them out")
    runner = load(
        bundle, timeout_s=limit_s, load_timeout_s=LOAD_LIMIT_S, prepack=prepack, world=world, dump=dump,
        backend=arguments.backend, cuda_graphs=arguments.cuda_graphs,
    )  # fmt: skip
    if world.rank == 0:
        print(f"backend: {runner.backend}", flush=True)
    feeds = _inputs(runner, arguments)
    started = time.perf_counter()
    if arguments.steps is not None:
        outputs = runner.decode(feeds, arguments.steps)
    else:
        outputs = runner.run(list(runner.manifest.outputs), feeds)
    seconds = time.perf_counter() - started
    _finish(runner, arguments, outputs, seconds)


def _inputs(runner: RankRunner, arguments: argparse.Namespace) -> dict[str, Array]:
    """The whole inputs, on all ranks: each reads the file where all have it, else rank 0 reads it for all."""
    manifest, world = runner.manifest, runner.world
    if arguments.inputs is None:
        raise refuse("TP621", "inputs", "no --inputs were given", f"Give an .npz with {', '.join(manifest.inputs)}")
    path = Path(arguments.inputs)
    dtypes = {name: entry.dtype for name, entry in manifest.inputs.items()}
    runner.watchdog.waits("the inputs", loading=True)
    everywhere = all(world.votes(path.exists()))
    runner.watchdog.goes_on()
    if everywhere:
        return arrays.read(path, dtypes)
    feeds = arrays.read(path, dtypes) if world.rank == 0 else {}
    runner.watchdog.waits("the inputs that rank 0 reads", loading=True)
    forms = world.exchange([[name, array.dtype.name, list(array.shape)] for name, array in feeds.items()])[0]
    for name, dtype, shape in forms:
        if world.rank != 0:
            feeds[name] = np.empty(shape, TYPES[dtype][1])
        world.broadcast(feeds[name])
    runner.watchdog.goes_on()
    return feeds


def _finish(runner: RankRunner, arguments: argparse.Namespace, outputs: dict[str, Array], seconds: float) -> None:
    """What rank 0 does with the outputs; the others wait, so that none leaves before a failure is known."""
    world, failure = runner.world, None
    dump = runner.model.dump
    if dump is not None:
        folder = Path(arguments.dump_to or f"{Path(arguments.bundle).resolve()}.dump")
        dump.write(folder, world)
        if world.rank == 0:
            print(f"{len(dump.places)} values of each rank in {folder}")
    if world.rank == 0:
        for name, array in outputs.items():
            print(f"{name}: {array.dtype}{list(array.shape)}")
        print(f"{world.size} rank{'s' if world.size > 1 else ''}, {seconds:.3f} s", flush=True)
        if arguments.outputs is not None:
            arrays.write(Path(arguments.outputs), outputs)
        if arguments.check is not None:
            failure = check(outputs, arrays.read(Path(arguments.check), {}))
    if failure is not None:
        raise failure
    runner.watchdog.waits("the writing of the outputs", loading=True)
    world.comm.Barrier()
    runner.watchdog.goes_on()


def check(outputs: dict[str, Array], reference: dict[str, Array]) -> NumbersDiffer | None:
    """Compare with reference arrays by name, print each difference, and return the failure if there is one."""
    faults = []
    for name in reference.keys() & outputs.keys():
        found, wanted = outputs[name], reference[name]
        if found.shape != wanted.shape:
            faults.append(Fault("TP624", name, f"shape {list(found.shape)} instead of {list(wanted.shape)}", _REMEDY))
            continue
        exact = wanted.dtype.kind in "iub"
        error = _relative_error(found, wanted)
        allowed = 0.0 if exact else CHECK_TOLERANCE.get(wanted.dtype.itemsize, 2e-2)
        print(f"{name}: differs by {error:.1e} (allowed {allowed:.0e})", flush=True)
        if not error <= allowed:
            fact = f"differs by {error:.1e} from the reference, {allowed:.0e} is allowed"
            faults.append(Fault("TP624", name, fact, _REMEDY))
    if not reference.keys() & outputs.keys():
        faults.append(Fault("TP624", "reference", f"holds none of {', '.join(outputs)}", _REMEDY))
    return NumbersDiffer(*faults) if faults else None


_REMEDY = "`tpcompile verify BUNDLE` names the first value that departs"


def _relative_error(found: Array, wanted: Array) -> float:
    """Largest difference over the largest finite value; infinite where one side alone is not finite."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if not a.size:
        return 0.0
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.isfinite(a[~same]).all() or not np.isfinite(b[~same]).all():
        return float("inf")
    scale = np.abs(b[np.isfinite(b)]).max(initial=1e-30)
    return float(np.abs(a - b)[~same].max(initial=0.0) / scale)
