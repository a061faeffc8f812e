"""Apply the plan: the program of all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tpcompile.graph.program import Node
from tpcompile.passes.compilation import Compilation
from tpcompile.passes.rewrite import Rewriter


@dataclass(frozen=True)
class CutGraph:
    """Needs a plan; leaves the program of all ranks, with collectives where values must be summed or gathered."""

    name: ClassVar[str] = "cut graph"

    def run(self, work: Compilation) -> str:
        names = {cls.leaf: cls.name for cls in work.problem.classes}

        def because(node: Node) -> str:
            cut = [names[leaf] for leaf in rewriter.active.get(node, ()) if leaf in names]
            return f"{node.op} {node.name} runs cut along {', '.join(sorted(cut))}" if cut else ""

        rewriter = Rewriter(
            work.analysis,
            work.plan.cut,
            work.cut_doors,
            work.samples.describe,
            because,
            work.request.reduce_dtype,
            work.plan.gathered,
            work.request.training,
        )
        work.local = rewriter.run()
        return f"{len(work.local.nodes)} nodes, {len(work.local.collectives)} collectives"
