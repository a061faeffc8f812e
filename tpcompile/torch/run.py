"""`torchrun --nproc-per-node N -m tpcompile.torch.run BUNDLE`: run a bundle of rank programs, and say what it does."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.utils._pytree as pytree

from tpcompile.bundle.manifest import FILE_NAME, Manifest, Placement
from tpcompile.errors import Fault, Refused, TpcompileError, refuse
from tpcompile.torch import groups
from tpcompile.torch.bundle import load
from tpcompile.torch.collectives import Sent, counted
from tpcompile.torch.feeds import Feeds
from tpcompile.torch.groups import Groups

FAILED = 4
LIMIT_S = 60.0

Outputs = dict[str, tuple[torch.Tensor, Placement | None]]
"""Tensors by name, each with how it is cut."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process of a run; returns its exit code, having said what went wrong."""
    arguments = parser().parse_args(argv)
    rank = os.environ.get("RANK", "0")
    try:
        run(arguments)
    except TpcompileError as error:
        if rank != "0":
            time.sleep(1)  # all processes refuse alike: the first says it for all, before torchrun ends it
        else:
            print("\n".join(f"tpcompile.torch.run: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return error.exit_code
    except Exception as error:  # what torch, a model or the network raises
        said = (str(error).strip().splitlines() or [""])[0][:300]
        fault = Fault("TP612", f"rank {rank}", f"{type(error).__name__}: {said}".rstrip(": ."),
                      "All processes end with this one")  # fmt: skip
        print(f"tpcompile.torch.run: {fault}", file=sys.stderr, flush=True)
        return FAILED
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    start = "torchrun --nproc-per-node N -m tpcompile.torch.run"
    made = argparse.ArgumentParser(prog=start, description="Run a bundle of torch's rank programs.")
    made.add_argument("bundle", metavar="BUNDLE", help="folder that `tpcompile MODEL --tp N --target torch` wrote")
    given = "an input, whole (may be repeated); those that are not given are drawn alike on all ranks"
    made.add_argument("--input", action="append", default=[], metavar="NAME=FILE.npy", help=given)
    written = "folder for the outputs, NAME.npy; of a cut one each rank writes its part, NAME.rankR.npy"
    made.add_argument("--output", metavar="DIR", help=written)
    made.add_argument("--steps", type=int, default=5, metavar="N", help="passes to time, after a first (default 5)")
    patience = "seconds a process may wait for the others (default %(default)g)"
    made.add_argument("--timeout", type=float, default=LIMIT_S, metavar="S", help=patience)
    return made


def run(arguments: argparse.Namespace) -> None:
    """Load this process's rank, run it, and let the first process tell.

    Raises:
        Refused: TP752 a number of processes that does not fit; TP757 not started by torchrun; TP758 processes with
            different bundles; TP621, TP609, TP756 inputs; what `load` refuses, on any rank.
    """
    folder = Path(arguments.bundle)
    manifest = Manifest.read(folder, ranks=[], of_torch=True)
    tp, size = manifest.world_size, int(os.environ.get("WORLD_SIZE", "0"))
    files = _files(arguments.input)
    if not size:
        remedy = f"Start it as `torchrun --nproc-per-node {tp} -m tpcompile.torch.run {folder}`"
        raise refuse("TP757", str(folder), "this process was not started by torchrun", remedy)
    if arguments.steps < 1:
        raise refuse("TP100", "--steps", f"{arguments.steps} is no number of passes", "Give 1 or more")
    if size % tp:
        raise groups.wrong_world(str(folder), tp, size)
    device = _device()
    patience = datetime.timedelta(seconds=arguments.timeout)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=patience)
    torch.manual_seed(0)
    place = dist.get_rank() % tp
    program = together(lambda: load(folder, place, device), _identity(folder))
    made = groups.use(tp, groups.labels_of(program))
    feeds = Feeds(program, manifest, place)
    args, kwargs = together(lambda: feeds.arguments(files, device))
    with torch.no_grad():
        outputs, seconds, sent = _timed(program.module(), args, kwargs, arguments.steps, device)
    named = together(lambda: _named(outputs, manifest))
    if arguments.output is not None:
        together(lambda: _write(Path(arguments.output), named, place, made.replica))
    if dist.get_rank() == 0:
        _tell(named, made, device, seconds, sent)
    dist.destroy_process_group()  # not after a failure: it would wait for those that are gone


def _files(given: Sequence[str]) -> dict[str, Path]:
    """`--input` by name."""
    found = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or not name or not file:
            raise refuse("TP100", "--input", f"{text!r} is no NAME=FILE.npy", "Give --input ids=ids.npy")
        found[name] = Path(file)
    return found


def _device() -> torch.device:
    """This process's GPU where this machine has one for each of its processes, else the CPU."""
    local, here = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= here:
        torch.cuda.set_device(local)
        return torch.device("cuda", local)
    return torch.device("cpu")


def _identity(folder: Path) -> str:
    """What processes with one bundle have in common."""
    return hashlib.sha256((folder / FILE_NAME).read_bytes()).hexdigest()


def together(make: Callable[[], Any], identity: str = "") -> Any:
    """What `make` gives on this process, once all have made theirs; it must wait for nobody.

    Raises:
        Refused: on all processes the same, where any of them refused; TP758 where they differ in `identity`.
    """
    made, faults = None, []
    try:
        made = make()
    except Refused as error:
        faults = [[fault.code, fault.where, fault.fact, fault.remedy] for fault in error.faults]
    said = [json.loads(text) for text in groups.exchange(json.dumps([identity, faults]))]
    told = dict.fromkeys(Fault(*fault) for _, found in said for fault in found)
    if told:
        raise Refused(*told)
    others = [rank for rank, (other, _) in enumerate(said) if other != said[0][0]]
    if others:
        fact = f"processes {', '.join(map(str, [0, *others]))} have bundles of different compiles"
        raise refuse("TP758", FILE_NAME, fact, "Copy the whole bundle to every machine again")
    return made


def _timed(
    module: torch.nn.Module, args: Any, kwargs: Any, steps: int, device: torch.device
) -> tuple[Any, list[float], list[Sent]]:
    """The outputs of a first pass, the seconds of each of the following ones, and what one of them sends."""
    outputs = module(*args, **kwargs)
    seconds = []
    with counted() as sent:
        for _ in range(steps):
            torch.distributed.barrier()
            started = time.perf_counter()
            module(*args, **kwargs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
    return outputs, seconds, sent[: len(sent) // steps]


def _named(outputs: Any, manifest: Manifest) -> Outputs:
    """The tensors of a result by their path in it ("logits", "output.0"), each with how it is cut."""
    leaves = [(path, leaf) for path, leaf in pytree.tree_leaves_with_path(outputs) if isinstance(leaf, torch.Tensor)]
    places = [entry.placement for entry in manifest.outputs.values()]
    if len(places) != len(leaves):
        raise refuse("TP457", FILE_NAME, f"names {len(places)} outputs, and the program has {len(leaves)}",
                     "Compile the model again")  # fmt: skip
    found: Outputs = {}
    for (path, leaf), place in zip(leaves, places, strict=True):
        steps = [str(getattr(step, "key", getattr(step, "idx", getattr(step, "name", step)))) for step in path]
        name = ".".join(steps)
        found[name if name and not name[0].isdigit() else f"output.{name}".rstrip(".")] = (leaf, place)
    return found


def _write(folder: Path, outputs: Outputs, rank: int, replica: int) -> None:
    """Write the outputs of the first replica: whole ones once, of cut ones each rank its part.

    Raises:
        Refused: TP609 the folder cannot be written to.
    """
    if replica:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (tensor, place) in outputs.items():
            exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor  # numpy has no bfloat16
            plain = name.replace("/", "_")
            if place is not None:
                np.save(folder / f"{plain}.rank{rank}.npy", exact.cpu().numpy())
            elif rank == 0:
                np.save(folder / f"{plain}.npy", exact.cpu().numpy())
    except OSError as error:
        raise refuse("TP609", str(folder), f"cannot be written to: {error.strerror}",
                     "Choose another folder for --output") from error  # fmt: skip


def _tell(outputs: Outputs, made: Groups, device: torch.device, seconds: Sequence[float], sent: Sequence[Sent]) -> None:
    """What the first process prints."""
    replicas = f" in each of {made.dp} replicas" if made.dp > 1 else ""
    on = "GPUs (nccl)" if device.type == "cuda" else "the CPU (gloo)"
    print(f"{made.tp} rank{'s' if made.tp > 1 else ''}{replicas}, on {on}")
    for name, (tensor, place) in outputs.items():
        part = f", the part of rank 0 along axis {place.axis}" if place is not None else ""
        print(f"{name}: {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{part}")
    few = "1 step" if len(seconds) == 1 else f"median of {len(seconds)} steps"
    print(f"{statistics.median(seconds) * 1000:.1f} ms a step ({few}, after a first)")
    count, nbytes = Counter(item.op for item in sent), sum(item.nbytes for item in sent)
    said = ", ".join(f"{number} {op}" for op, number in count.items()) or "none"
    print(f"collectives of a step on rank 0: {said}; {nbytes:,} bytes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
