"""One check, on one rank: started once per rank, under mpirun where there are several. Rank 0 writes what was found."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tpcompile.errors import Fault, RankFailed
from tpcompile.run import mpi
from tpcompile.run.one_rank import end_all
from tpcompile.run.rank import RankRunner, load
from tpcompile.run.watchdog import Board, Watchdog

WAIT_S, LOAD_S, STALL_S = 20.0, 60.0, 4.0
REPEATS, REPEATS_S = 15, 1.5
Array = np.ndarray[Any, np.dtype[Any]]
Found = dict[str, Any]


def loaded(bundle: Path, backend: str, world: mpi.World, wait_s: float = WAIT_S) -> RankRunner:
    """The rank, computing with `backend`: one of tpcompile's own, or torch, torch-host, torch-cpu."""
    limits: dict[str, Any] = {"timeout_s": wait_s, "load_timeout_s": LOAD_S, "prepack": False, "world": world}
    if not backend.startswith("torch"):
        return load(bundle, backend=backend, **limits)
    import torch_executors

    made: Callable[..., Any] = {
        "torch": torch_executors.TorchOnGpu,
        "torch-host": torch_executors.HostExchange,
        "torch-cpu": lambda folder, world, watchdog: torch_executors.TorchOnCpu(folder, world),
    }[backend]
    return load(bundle, executor=made, **limits)


def error_of(found: Array, wanted: Array) -> float:
    """The largest difference over the largest value; infinite where a shape or a number is wrong."""
    if found.shape != wanted.shape or not np.isfinite(found.astype(np.float64)).all():
        return float("inf")
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.abs(a - b).max(initial=0.0) / np.abs(b).max(initial=1e-30))


def milliseconds(world: mpi.World, call: Callable[[], Any]) -> float:
    """The middle time of several calls, as many on all ranks, after two that warm up."""

    def seconds() -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    slowest = max(world.exchange(max(seconds() for _ in range(2))))
    repeats = max(1, min(REPEATS, int(REPEATS_S / slowest)))
    return 1000 * statistics.median(seconds() for _ in range(repeats))


def run(runner: RankRunner, reference: dict[str, Array]) -> Found:
    """One pass, whole inputs to whole outputs."""
    feeds = {name[3:]: array for name, array in reference.items() if name.startswith("in.")}
    names = [name[4:] for name in reference if name.startswith("out.")]
    found = runner.run(names, feeds)
    error = max(error_of(found[name], reference[f"out.{name}"]) for name in names)
    return {"error": error, "ms": milliseconds(runner.world, lambda: runner.run(names, feeds)), "per": "pass"}


def decode(runner: RankRunner, reference: dict[str, Array]) -> Found:
    """Sequences in turns, a prompt and then token by token, with their caches on the ranks; then greedy decoding."""
    prompts, prompt = reference["prompts"], int(reference["prompt"])
    name, tokens = str(reference["logits.name"]), runner.manifest.roles["tokens"]
    said: list[list[Array]] = [[] for _ in prompts]
    for low, high in [(0, prompt), *((at, at + 1) for at in range(prompt, prompts.shape[-1]))]:
        for key, ids in enumerate(prompts):
            said[key].append(runner.extend(key, [name], {tokens: ids[:, low:high]})[name])
    error = max(error_of(np.concatenate(parts, 1), reference[f"logits.{k}"]) for k, parts in enumerate(said))
    wanted = reference["tokens"]
    ids = {tokens: prompts[0][:, :prompt]}
    found = runner.decode(ids, wanted.shape[1])["tokens"]
    steps = 16
    ms = milliseconds(runner.world, lambda: runner.decode(ids, steps)) / steps
    same = int((found == wanted).sum())
    return {"error": error, "ms": ms, "per": "step", "note": f"{same} of {wanted.size} greedy tokens as on one device"}


def stall(runner: RankRunner, reference: dict[str, Array]) -> Found:
    """The last rank does not come to its first collective: the others must end the run and say who is missing."""
    if runner.world.rank == runner.world.size - 1:
        time.sleep(10 * STALL_S)
    return run(runner, reference) | {"note": "nobody noticed"}


def nccl(world: mpi.World) -> Found:
    """Collectives on known numbers, without a model: every sum is exact in each of the types."""
    from onnx import TensorProto

    from tpcompile.run.cuda import Gpu
    from tpcompile.run.nccl import Nccl, version
    from tpcompile.run.tensors import NUMPY_OF
    from tpcompile.targets.collectives import Collective

    watchdog = Watchdog(world, WAIT_S, LOAD_S)
    watchdog.board = Board(world)
    gpu = Gpu(world.local_rank, watchdog)
    channel = Nccl(gpu, world, watchdog)
    channel.join([()])
    total = Collective("all_reduce", "x", "y", "sum", world.size, reduce_op="sum")
    for element in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT64):
        mine = (np.arange(64) + 64 * world.rank).astype(NUMPY_OF[element]) / NUMPY_OF[element].type(1)
        mine = mine.astype(NUMPY_OF[element])
        wanted = sum((np.arange(64) + 64 * rank) for rank in range(world.size))
        found = gpu.to_numpy(channel.perform(total, gpu.from_numpy(mine), owned=True)).astype(np.int64)
        if not np.array_equal(found, wanted):
            kind = TensorProto.DataType.Name(element)
            raise RankFailed(Fault("TP658", f"sum of {kind}", f"gave {found[:4]}, not {wanted[:4]}", "See NCCL_DEBUG"))
    joined = Collective("all_gather", "x", "y", "gather", world.size)
    mine = np.full((3, 5), world.rank, np.float32)
    rows = gpu.to_numpy(channel.perform(joined, gpu.from_numpy(mine), owned=False))
    if rows[:, 0].tolist() != [rank for rank in range(world.size) for _ in range(3)]:
        raise RankFailed(Fault("TP658", "gather", f"gave ranks {rows[:, 0].tolist()}", "See NCCL_DEBUG"))

    def sum_of(array: Array) -> float:
        value = gpu.from_numpy(array)

        def call() -> None:
            channel.perform(total, value, owned=True)
            gpu.finish()

        return milliseconds(world, call)

    small, large = sum_of(np.zeros(1024, np.float32)), sum_of(np.zeros(4 * 2**20, np.float32))
    note = f"NCCL {version()}; a sum of 4 KB {1000 * small:.0f} µs, of 16 MB {large:.2f} ms"
    return {"error": 0.0, "ms": small, "per": "4 KB sum", "collectives": 5, "note": note}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("run", "decode", "stall", "nccl"))
    parser.add_argument("into", type=Path)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--backend", default="")
    arguments = parser.parse_args()
    world = mpi.start()
    world.shares_threads = True
    try:
        if arguments.kind == "nccl":
            found = nccl(world)
        else:
            wait_s = STALL_S if arguments.kind == "stall" else WAIT_S
            runner = loaded(arguments.bundle, arguments.backend, world, wait_s)
            with np.load(arguments.reference) as held:
                reference = dict(held)
            call = {"run": run, "decode": decode, "stall": stall}[arguments.kind]
            found = call(runner, reference) | {"collectives": len(runner.manifest.collectives)}
        if world.rank == 0:
            arguments.into.write_text(json.dumps(found))
        world.comm.Barrier()
    except BaseException as error:
        return end_all(world, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
