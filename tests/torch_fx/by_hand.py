"""A small model and its rank programs, cut by hand: what a bundle is tested with, apart from the compiler.

The hidden units are cut unevenly and in two blocks per rank, as those of a gated layer are; the head is tied to the
embedding and whole, and so are norm, bias and buffers. Each rank has a constant of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tpcompile.bundle.manifest import IOEntry, Manifest, Mesh, SourceFile
from tpcompile.graph.local import LocalWeight
from tpcompile.graph.program import Weight
from tpcompile.torch import collectives as _collectives  # noqa: F401 - registers the operators
from tpcompile.torch.bundle import RankPrograms
from tpcompile.torch.tensors import name_of, source_of
from tpcompile.weights.ranges import Part, whole

WIDTH, HIDDEN, TOKENS = 6, 10, 11
UNITS = {1: [(0, 10)], 2: [(0, 3), (3, 10)], 3: [(0, 2), (2, 5), (5, 10)]}
"""Per number of ranks the hidden units of each."""
TIED = {"head.weight": "embed.weight"}


class Model(torch.nn.Module):
    """One device's model: embedding, a gated layer, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(TOKENS, WIDTH)
        self.gate_up = torch.nn.Linear(WIDTH, 2 * HIDDEN)
        self.down = torch.nn.Linear(HIDDEN, WIDTH)
        self.norm = torch.nn.Parameter(torch.randn(WIDTH).bfloat16())
        self.register_buffer("scale", torch.randn(WIDTH))
        self.register_buffer("steps", torch.randn(WIDTH), persistent=False)
        self.head = torch.nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embed.weight
        self.extra = 0.0

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.embed(ids) * self.norm
        gate, up = self.gate_up(x).chunk(2, -1)
        x = x + self.down(functional.silu(gate) * up) + self.extra
        return {"logits": self.head(x) * 0.5, "state": x * self.scale + self.steps}


class Rank(torch.nn.Module):
    """A rank's part of it, under the same names."""

    def __init__(self, rank: int, tp: int) -> None:
        super().__init__()
        first, last = UNITS[tp][rank]
        mine, self.label, self.first = last - first, ",".join(map(str, range(tp))), rank == 0
        self.embed = torch.nn.Embedding(TOKENS, WIDTH)
        self.gate_up = torch.nn.Linear(WIDTH, 2 * mine)
        self.down = torch.nn.Linear(mine, WIDTH)
        self.norm = torch.nn.Parameter(torch.zeros(WIDTH).bfloat16())
        self.register_buffer("scale", torch.zeros(WIDTH))
        self.register_buffer("steps", torch.zeros(WIDTH), persistent=False)
        self.own = torch.tensor(float(rank) - 0.5)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        ops = torch.ops.tpcompile
        x = self.embed(ids) * self.norm
        gate, up = self.gate_up(ops.copy(x, self.label)).chunk(2, -1)
        y = functional.linear(functional.silu(gate) * up, self.down.weight) + ops.once(self.down.bias, self.first)
        x = x + ops.all_reduce(y + self.own, self.label)
        return {"logits": functional.linear(x, self.embed.weight) * 0.5, "state": x * self.scale + self.steps}


def model(tp: int) -> Model:
    """The one device's model that `tp` ranks compute; their own constants add up."""
    made = Model()
    made.extra = sum(rank - 0.5 for rank in range(tp))
    return made


def ids(batch: int = 3, length: int = 4) -> Tensor:
    torch.manual_seed(4)
    return torch.randint(0, TOKENS, (batch, length))


def parts(name: str, dims: int, tp: int) -> tuple[Part, ...]:
    """What each rank holds of a tensor of the model."""
    made = []
    for first, last in UNITS[tp]:
        if name.startswith("gate_up"):
            blocks = ((first, last), (HIDDEN + first, HIDDEN + last))
            made.append(Part((blocks, *[None] * (dims - 1))))
        elif name == "down.weight":
            made.append(Part((None, ((first, last),))))
        else:
            made.append(whole(dims))
    return tuple(made)


def programs(tp: int) -> RankPrograms:
    """All that a bundle for `tp` ranks is made of."""
    tensors: dict[str, Any] = dict(Model().state_dict()) | {"steps": Model().steps}
    tensors.pop("head.weight")
    weights = [
        LocalWeight(name, Weight(name, name_of(tensor.dtype), tuple(tensor.shape), source_of(tensor)),
                    parts(name, tensor.dim(), tp))
        for name, tensor in tensors.items()
    ]  # fmt: skip
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=64)
    made = []
    for rank in range(tp):
        shapes = ({0: batch, 1: length},)
        made.append(torch.export.export(Rank(rank, tp).eval(), (ids(),), dynamic_shapes=shapes, strict=False))
    symbols = [str(size) for size in next(iter(reversed(
        [node for node in made[0].graph.nodes if node.op == "placeholder"]))).meta["val"].shape]  # fmt: skip
    manifest = Manifest(
        "0.1.0", SourceFile("Model", 0), Mesh(tp), (), {"ids": IOEntry("int64", tuple(symbols))},
        {"logits": IOEntry("float32", (*symbols, TOKENS)), "state": IOEntry("float32", (*symbols, WIDTH))}, "",
    )  # fmt: skip
    return RankPrograms(made, weights, manifest, "# the plan\n", TIED)
