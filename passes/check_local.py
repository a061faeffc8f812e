"""Hold the program of all ranks against what every rank file must be, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tpcompile.graph.local import COLLECTIVE
from tpcompile.passes.compilation import Compilation


class Broken(Exception):
    """The compiler made a program that cannot run: our own fault, found before it is written."""


@dataclass(frozen=True)
class CheckLocal:
    """Needs the finished program: every value is made once and before it is read, every collective is read."""

    name: ClassVar[str] = "check ranks"

    def run(self, work: Compilation) -> str:
        local = work.local
        made = {value.name for value in work.program.inputs}
        made |= {weight.name for weight in local.weights} | {constant.name for constant in local.constants}
        read = {value.name for value in work.program.outputs}
        for node in local.nodes:
            missing = [name for name in node.inputs if name and name not in made]
            if missing:
                raise Broken(f"{node.op} {node.name} reads {missing} before it is made")
            twice = [name for name in node.outputs if name and name in made]
            if twice:
                raise Broken(f"{node.op} {node.name} makes {twice} again")
            made.update(node.outputs)
            read.update(node.inputs)
        absent = [value.name for value in work.program.outputs if value.name not in made]
        if absent:
            raise Broken(f"outputs {absent} are not made")
        unread = [node.outputs[0] for node in local.nodes if node.op == COLLECTIVE and node.outputs[0] not in read]
        if unread and not any(node.renamed for node in local.nodes):
            raise Broken(f"collectives {unread} are not read")
        return ""
