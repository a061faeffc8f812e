"""Take a PyTorch model made for one device and make it run on N: `parallelize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tpcompile.passes.check_local import CheckLocal
from tpcompile.passes.check_plan import CheckPlan
from tpcompile.passes.choose_plan import ChoosePlan
from tpcompile.passes.compilation import Compilation, Pass
from tpcompile.passes.cut_graph import CutGraph
from tpcompile.passes.name_dims import NameDims
from tpcompile.passes.remove_unused import RemoveUnused
from tpcompile.pipeline import run
from tpcompile.plan.make_request import make_request
from tpcompile.plan.plan import Plan
from tpcompile.plan.request import Request
from tpcompile.plan.topology import DEFAULT
from tpcompile.torch.capture import Captured, capture
from tpcompile.torch.from_aten import Reader
from tpcompile.torch.sizes import SymbolSizes
from tpcompile.torch.to_aten import RankWriter, local_tensor

PASSES: tuple[Pass, ...] = (
    NameDims(),  # sizes came with the graph: what may be cut follows from what the dims are
    ChoosePlan(),  # decide everything before anything is changed
    CheckPlan(),  # a plan may be the user's own
    CutGraph(),  # the whole plan at once
    RemoveUnused(),
    CheckLocal(),
)


@dataclass(frozen=True)
class Parallelized:
    """A model cut for `tp` ranks.

    `work` holds the analysis, the plan and the program of all ranks; `warnings` is what is worth telling of them.
    """

    work: Compilation = field(repr=False)

    @property
    def tp(self) -> int:
        return self.work.request.tp

    @property
    def plan(self) -> Plan:
        return self.work.plan

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self.work.warnings)

    def hollow(self, rank: int) -> torch.export.ExportedProgram:
        """The program of one rank without its weights: they are FakeTensors."""
        captured: Captured = self.work.source
        axes = {value.name: dims for value, dims in self.work.analysis.axes.items() if dims is not None}
        return RankWriter(captured, self.work.program, self.work.local, rank, axes).write()

    def rank_program(self, rank: int) -> torch.export.ExportedProgram:
        """The program of one rank with its own parts of the weights."""
        program = self.hollow(rank)
        parameters = program.graph_signature.parameters
        for weight in self.work.local.weights:
            for name in names_of(weight.name, weight.weight.name):
                holder = program.state_dict if name in program.state_dict else program.constants
                found = local_tensor(weight, rank)
                holder[name] = torch.nn.Parameter(found) if name in parameters else found
        return program


def names_of(local: str, source: str) -> tuple[str, ...]:
    """Under which name a rank's program holds a stored tensor."""
    return (local if local == source else "tpcompile_" + local.replace(".", "_"),)


def parallelize(
    model: Any,
    example_inputs: Any = None,
    *,
    tp: int,
    dynamic: Any = None,
    training: bool | None = None,
    recipe: str | Path | None = None,
    plan: str | Path | None = None,
    pins: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    forbids: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    objective: str | None = None,
    outputs: str | None = None,
    sizes: Mapping[str, int] | None = None,
    tp_plan: str | Path | Mapping[str, str] | None = None,
    state: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    reduce_dtype: str | None = None,
    topology: str = DEFAULT,
    memory_per_rank: int | None = None,
    strict: bool = False,
) -> Parallelized:
    """Cut a PyTorch model for `tp` ranks."""
    request = make_request(
        tp, objective, pins, outputs, sizes, plan, state, roles, strict, topology, memory_per_rank, recipe, tp_plan,
        forbids, reduce_dtype, annotations="ignore", training=_trains(model) if training is None else training,
    )  # fmt: skip
    work = start(capture(model, example_inputs, dynamic), request)
    return Parallelized(run(work, PASSES))


def _trains(model: Any) -> bool:
    """Whether a model came in training mode."""
    return isinstance(model, torch.nn.Module) and model.training


def start(captured: Captured, request: Request) -> Compilation:
    """A captured model as it enters the passes."""
    symbols = SymbolSizes(captured.program.graph, captured.names)
    work = Compilation(captured, request, Reader(captured.program, captured.sources, captured.tied, symbols).read())
    work.samples = symbols.samples
    return work
