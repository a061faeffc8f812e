"""Remove what nothing reads: shape arithmetic that was folded, constants that became local."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tpcompile.passes.compilation import Compilation


@dataclass(frozen=True)
class RemoveUnused:
    """Needs the program of all ranks; leaves only nodes, tensors and placements that reach an output."""

    name: ClassVar[str] = "remove unused"

    def run(self, work: Compilation) -> str:
        local = work.local
        needed = {value.name for value in work.program.outputs}
        kept = []
        for node in reversed(local.nodes):
            if needed.isdisjoint(node.outputs):
                continue
            kept.append(node)
            needed.update(node.inputs)
            needed.update(node.renamed.get(name, name) for name in node.captured)
        removed = len(local.nodes) - len(kept)
        local.nodes = kept[::-1]
        alive = {id(node) for node in kept}
        local.weights = [weight for weight in local.weights if weight.name in needed]
        local.constants = [constant for constant in local.constants if constant.name in needed]
        local.collectives = [call for call in local.collectives if id(call.node) in alive]
        made = {name for node in kept for name in node.outputs} | {value.name for value in work.program.inputs}
        local.placed = {name: place for name, place in local.placed.items() if name in made}
        return f"{removed} nodes" if removed else ""
