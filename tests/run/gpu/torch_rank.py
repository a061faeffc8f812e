"""One rank of a check of tools/gpu_check where cuda.core and NCCL are acted, and torch's GPU is the CPU."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "gpu_check.d")]

from tests.run.gpu import fake_cuda  # noqa: E402 - found by the line above


def main() -> int:
    fake_cuda.install()
    import one_check
    import torch
    import torch_executors
    from torch_segment import SIGNED_OF

    def bits_at(value: Any, device: torch.device) -> torch.Tensor:
        """What torch reads through a GPU's pointer, where "GPU memory" is this process's."""
        memory = (ctypes.c_ubyte * value.bytes).from_address(value.pointer)
        bits = torch.from_numpy(np.ctypeslib.as_array(memory))
        return bits.view(SIGNED_OF[value.bytes // value.count])

    torch.set_num_threads(1)
    torch.cuda.set_device = lambda index: None
    torch.cuda.ExternalStream = lambda handle: SimpleNamespace(synchronize=lambda: None)
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch_executors.DEVICE, torch_executors.bits_at = "cpu", bits_at
    return int(one_check.main())


if __name__ == "__main__":
    sys.exit(main())
