"""What dropout multiplies with: `torch.ops.tpcompile.noise`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.library.custom_op("tpcompile::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def noise(size: Sequence[int], p: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """0 with probability `p`, else 1 / (1 − p), as torch's own dropout draws it from the generator of the device.

    Ranks that are seeded alike draw alike. It is never computed again for a backward pass: it would be another one.
    """
    return torch.dropout(torch.ones(tuple(size), dtype=dtype, device=device), p, True)


@noise.register_fake
def _(size: Sequence[int], p: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(tuple(size), dtype=dtype, device=device)
