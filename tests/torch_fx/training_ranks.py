"""One process of a training run, started by torchrun: three steps of AdamW on a rank's part of a model.

    torchrun --nproc-per-node 4 tests/torch_fx/training_ranks.py BUNDLE BATCH.pt OUT [--compile]

The batch is cut among replicas. Each rank of replica 0 writes its state as OUT/rankR.safetensors, and rank 0 what its
collectives were, by operator and phase, per step.
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


def main(bundle: Path, batch: Path, out: Path, compiled: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tp = Manifest.read(bundle, ranks=[], of_torch=True).world_size
    program = load(bundle, dist.get_rank() % tp)
    found = groups.use(tp, groups.labels_of(program))
    module = program.module()
    parameters = list(module.parameters())
    step = torch.compile(module) if compiled else module
    if found.dp > 1:
        step = DistributedDataParallel(step, process_group=found.data_parallel)
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1, eps=EPSILON)
    rows = {name: tensor.chunk(found.dp)[found.replica] for name, tensor in load_file(batch).items()}
    torch.manual_seed(SEED)
    with counted() as sent:
        for _ in range(STEPS):
            optimizer.zero_grad()
            step(**rows).backward()
            optimizer.step()
    if found.replica == 0:
        state = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
        save_file(state, out / f"rank{found.rank}.safetensors")
    if dist.get_rank() == 0:
        calls = Counter(f"{call.phase} {call.op}" for call in sent)
        (out / "calls.json").write_text(json.dumps({what: count / STEPS for what, count in calls.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), "--compile" in sys.argv)
