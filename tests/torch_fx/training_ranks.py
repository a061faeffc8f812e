"""One process of a training run, started by torchrun: three steps of AdamW on a rank's part of a model.

    torchrun --nproc-per-node 4 tests/torch_fx/training_ranks.py FOLDER...

Each folder holds `bundle`, `batch.safetensors`, and perhaps a file `compile`. The batch is cut among replicas. Each
rank of replica 0 writes its state as rankR.safetensors, and rank 0 what its collectives were, by operator and phase,
per step.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel

from tpcompile.bundle.manifest import Manifest
from tpcompile.torch import groups, load
from tpcompile.torch.collectives import counted

STEPS, RATE, SEED = 3, 1e-2, 11
EPSILON = 1e-4
"""Larger than usual: where a gradient is zero, Adam makes a whole step of its rounding."""


def train(folder: Path) -> None:
    tp = Manifest.read(folder / "bundle", ranks=[], of_torch=True).world_size
    program = load(folder / "bundle", dist.get_rank() % tp)
    found = groups.use(tp, groups.labels_of(program))
    module = program.module()
    parameters = list(module.parameters())
    step = torch.compile(module) if (folder / "compile").exists() else module
    if found.dp > 1:
        step = DistributedDataParallel(step, process_group=found.data_parallel)
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1, eps=EPSILON)
    rows = {
        name: tensor.chunk(found.dp)[found.replica] for name, tensor in load_file(folder / "batch.safetensors").items()
    }
    torch.manual_seed(SEED)
    with counted() as sent:
        for _ in range(STEPS):
            optimizer.zero_grad()
            step(**rows).backward()
            optimizer.step()
    if found.replica == 0:
        state = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
        save_file(state, folder / f"rank{found.rank}.safetensors")
    if dist.get_rank() == 0:
        calls = Counter(f"{call.phase} {call.op}" for call in sent)
        (folder / "calls.json").write_text(json.dumps({what: count / STEPS for what, count in calls.items()}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in sys.argv[1:]:
        train(Path(name))
    dist.destroy_process_group()
