"""Archives for tests: a model whose tensors lie in every way, and archives that were tampered with."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
Edit = Callable[[dict[str, bytes]], None]


class Model(torch.nn.Module):
    """Tied, transposed, sliced, whole and half-precision parameters; buffers of both kinds; a constant."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.embed = torch.nn.Embedding(11, 6)
        self.up = torch.nn.Linear(6, 10)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.turned = torch.nn.Parameter(torch.randn(6, 10).T)
        both = torch.randn(4, 10)
        self.first, self.last = torch.nn.Parameter(both[:1]), torch.nn.Parameter(both[1:])
        self.short = torch.nn.Parameter(torch.randn(10).bfloat16())
        self.register_buffer("scale", torch.randn(6))
        self.register_buffer("steps", torch.arange(-4, 2), persistent=False)
        self.constant = torch.tensor([[True, False], [False, True]])

    def forward(self, ids: Any, extra: Any) -> dict[str, Any]:
        x = self.up(self.embed(ids)).tanh() * self.short + self.first - self.last.sum(0)
        x = x @ self.turned * self.scale + self.steps
        return {"logits": self.head(x), "extra": (extra[0] + self.constant, ids.shape[1] * 2)}


def inputs(batch: int = 3, length: int = 5) -> tuple[Any, ...]:
    torch.manual_seed(8)
    return torch.randint(0, 11, (batch, length)), [torch.randn(2, 2)]


def exported(module: torch.nn.Module | None = None) -> torch.export.ExportedProgram:
    """The model with a free batch and a free, even length."""
    batch, half = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("half", min=2, max=256)
    shapes = ({0: batch, 1: 2 * half}, [None])
    return torch.export.export((module or Model()).eval(), inputs(3, 6), dynamic_shapes=shapes, strict=False)


def saved(path: Path, program: torch.export.ExportedProgram | None = None) -> Path:
    torch.export.save(program or exported(), path)
    return path


def tampered(path: Path, edit: Edit, to: Path | None = None, **settings: Any) -> Path:
    """The archive written again after `edit` changed its members (bytes by name below the top folder)."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        top = names[0].partition("/")[0]
        members = {name.partition("/")[2]: archive.read(name) for name in names}
    edit(members)
    to = to or path.with_name("tampered.pt2")
    with zipfile.ZipFile(to, "w", **settings) as archive:
        for name, content in members.items():
            archive.writestr(f"{top}/{name}", content)
    return to


def in_json(change: Callable[[Any], None], member: str = MODEL) -> Edit:
    """An edit of a member in JSON."""

    def edit(members: dict[str, bytes]) -> None:
        content = json.loads(members[member])
        change(content)
        members[member] = json.dumps(content).encode()

    return edit


def in_text(before: str, after: str, member: str = MODEL) -> Edit:
    """An edit that puts `after` everywhere in the place of `before`, which must be there."""

    def edit(members: dict[str, bytes]) -> None:
        assert before.encode() in members[member], before
        members[member] = members[member].replace(before.encode(), after.encode())

    return edit
