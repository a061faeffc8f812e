"""One rank of tools/bench_torch: right or wrong, what is sent, and how long steps take, for one peer and one model.

    torchrun --nproc-per-node 2 tools/torch_steps.py PEER MODEL forward|training FOLDER

FOLDER holds the checkpoint, and `forward.pt` and `training.pt` with what one device computes, which the peer "one"
writes in a process without torchrun. Rank 0 writes what it found into `found.json` there.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.torch_peers import CASES, PEERS, Subject, whole

WARM_UP, STEPS = 2, 9
NEGLIGIBLE = 1e-3
"""Gradients below this part of the model's largest are compared with it: a key's bias has none but rounding errors."""

WIDTHS = {"float": 4, "long int": 8, "int": 4, "bool": 1, "unsigned char": 1}
"""Bytes of a number, by the profiler's names of types."""

Sent = dict[str, tuple[int, int]]


def error(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest relative error of a tensor, by its largest element, and the tensor's name; of all ranks the worst."""
    largest = max(float(tensor.abs().max()) for tensor in want.values())
    worst = (0.0, "")
    for name, tensor in want.items():
        if name not in got:
            return float("inf"), f"{name} is missing"
        scale = max(float(tensor.abs().max()), NEGLIGIBLE * largest)
        worst = max(worst, (float((got[name] - tensor).abs().max()) / scale, name))
    if dist.is_initialized():
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, worst)
        worst = max(every)
    return worst


def sent(work: Callable[[], Any]) -> tuple[Any, Sent]:
    """What `work` gives, and per collective of gloo how many this rank took part in and the bytes it gave to them.

    Read from the profiler's record of gloo itself, so however a peer calls it, every collective is counted once.
    """
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
        result = work()
    found: Sent = {}
    for event in profile.profiler.kineto_results.events():
        if event.name().startswith("gloo:"):
            name, shapes, dtypes = event.name().removeprefix("gloo:"), event.shapes(), event.dtypes()
            widths = {"float": 4, "long int": 8, "long": 8, "int": 4, "bool": 1, "unsigned char": 1}
            size = sum(
                torch.Size(shape).numel() * widths[dtype] for shape, dtype in zip(shapes, dtypes, strict=True) if dtype
            )
            count, total = found.get(name, (0, 0))
            found[name] = (count + 1, total + size)
    return result, found


def timed(step: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a step: the slower rank's wall time, median and quickest, and the ranks' mean processor time."""
    rows = []
    for index in range(WARM_UP + STEPS):
        if dist.is_initialized():
            dist.barrier()
        wall, processor = time.perf_counter(), time.process_time()
        step()
        if index >= WARM_UP:
            rows.append((time.perf_counter() - wall, time.process_time() - processor))
    every: list[Any] = [rows]
    if dist.is_initialized():
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, rows)
    walls = [max(wall for wall, _ in step) for step in zip(*every, strict=True)]
    processors = [statistics.mean(processor for _, processor in step) for step in zip(*every, strict=True)]
    medians = {"wall": statistics.median(walls), "processor": statistics.median(processors), "quickest": min(walls)}
    return {name: seconds * 1e3 for name, seconds in medians.items()}


def forward(subject: Subject, folder: Path, reference: bool) -> dict[str, Any]:
    subject.logits()
    logits, collectives = sent(subject.logits)
    if reference:
        torch.save({"logits": logits}, folder / "forward.pt")
    worst = error({"logits": logits}, torch.load(folder / "forward.pt"))
    return {"error": worst, "forward": collectives, **timed(subject.logits)}


def training(subject: Subject, folder: Path, reference: bool) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(subject.parameters, lr=1e-4)
    with subject.around():
        loss, forwards = sent(subject.loss)
        _, backwards = sent(loss.backward)
    found = {"loss": whole(loss.detach()), **subject.gradients()}
    if reference:
        torch.save(found, folder / "training.pt")
    want = torch.load(folder / "training.pt")
    del want["loss"]

    def step() -> None:
        optimizer.zero_grad()
        with subject.around():
            subject.loss().backward()
        optimizer.step()

    return {"error": error(found, want), "forward": forwards, "backward": backwards, **timed(step)}


def found(peer: str, model: str, kind: str, folder: Path) -> dict[str, Any]:
    """What is measured of one kind of step; what a peer cannot do is a result too."""
    try:
        started = time.perf_counter()
        subject = PEERS[peer](CASES[model], folder, kind == "training")
        ready = time.perf_counter() - started
        held = [one.to_local() if isinstance(one, DTensor) else one for one in subject.parameters]
        size = sum(one.numel() * one.element_size() for one in held)
        steps = (training if kind == "training" else forward)(subject, folder, peer == "one")
        return {"ready": ready, "weights": size, **steps}
    except Exception as failure:
        return {"fails": f"{type(failure).__name__}: {failure}"}


def main() -> None:
    peer, model, kind, folder = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if peer != "one":
        dist.init_process_group("gloo")
    result = found(peer, model, kind, Path(folder))
    if peer == "one" or dist.get_rank() == 0:
        (Path(folder) / "found.json").write_text(json.dumps(result))
    if peer != "one":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
