"""Two ranks load a bundle that lies in BUNDLE, run it and train it; each writes its trained state into STATES."""

from __future__ import annotations

import os
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist

from tests.torch_fx import by_hand, on_ranks
from tpcompile.torch import groups
from tpcompile.torch.bundle import load
from tpcompile.torch.groups import labels_of

BUNDLE, STATES = Path(os.environ["BUNDLE"]), Path(os.environ["STATES"])


def check_the_numbers_of_one_device() -> None:
    program = load(BUNDLE, dist.get_rank())
    groups.use(2, labels_of(program))
    found = program.module()(by_hand.ids())
    for name, wanted in by_hand.model(2)(by_hand.ids()).items():
        torch.testing.assert_close(found[name], wanted)


def check_training_steps_of_one_device() -> None:
    """Two steps of AdamW; a part's gradient is the part of the gradient, so the parts of the states agree as well."""
    module, one = load(BUNDLE, dist.get_rank()).module(), by_hand.model(2)
    for each in (module, one):
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.05)
        for step in range(2):
            loss = each(by_hand.ids(3, 4 + step))["logits"].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    state = {name: tensor.detach() for name, tensor in module.state_dict().items()}
    safetensors.torch.save_file(state, STATES / f"{dist.get_rank()}.safetensors")
    if dist.get_rank() == 0:
        torch.save(one.state_dict(), STATES / "one.pt")


if __name__ == "__main__":
    on_ranks.main(globals())
