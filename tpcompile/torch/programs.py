"""Take a PyTorch model made for one device and make it run on N: `parallelize`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tpcompile import __version__, pipeline
from tpcompile.bundle.manifest import (
    TORCH,
    CollectiveEntry,
    IOEntry,
    Manifest,
    Mesh,
    Placement,
    SourceFile,
    StatePair,
)
from tpcompile.graph.local import LocalWeight
from tpcompile.graph.program import Value
from tpcompile.passes.compilation import Compilation, Pass
from tpcompile.passes.name_dims import NameDims
from tpcompile.plan.make_request import make_request
from tpcompile.plan.plan import Plan
from tpcompile.plan.planfile import plan_toml
from tpcompile.plan.request import Request
from tpcompile.plan.topology import DEFAULT
from tpcompile.plan_summary import summarize
from tpcompile.torch.bundle import RankPrograms, save
from tpcompile.torch.capture import Captured, capture
from tpcompile.torch.from_aten import Reader
from tpcompile.torch.sizes import SymbolSizes
from tpcompile.torch.tensors import fill
from tpcompile.torch.to_aten import RankWriter, local_tensor, stored_name
from tpcompile.weights.ranges import whole

PLANNING: tuple[Pass, ...] = (
    NameDims(),  # sizes came with the graph: what may be cut follows from what the dims are
    *pipeline.CHOICE,
)


@dataclass(frozen=True)
class Parallelized:
    """A model cut for `tp` ranks.

    `work` holds the analysis, the plan and the program of all ranks; `warnings` is what is worth telling of them.
    """

    work: Compilation = field(repr=False)
    _alike: dict[Any, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

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
        work, training = self.work, self.work.request.training
        return RankWriter(captured, work.program, work.local, rank, axes, training, self._alike).write()

    def rank_program(self, rank: int) -> torch.export.ExportedProgram:
        """The program of one rank with its own parts of the weights, in memory of its own.

        `.module()` gives a GraphModule; it runs in the process of that rank, after `groups.use`.
        """
        program = self.hollow(rank)
        mine = {stored_name(weight): local_tensor(weight, rank) for weight in self.work.local.weights}
        fill(program, program.constants | mine)
        return program

    def save(
        self, folder: str | Path, *, force: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Write the bundle: per rank a `.pt2` and a safetensors file. Weights are streamed from where they lie.

        Raises:
            Refused: TP401 to TP406 weights that cannot be read or written, TP411 to TP415 the place.
        """
        captured: Captured = self.work.source
        ranks = [self.hollow(rank) for rank in range(self.tp)]
        weights = [replace(weight, name=stored_name(weight)) for weight in self.work.local.weights]
        plan = plan_toml(self.plan, summarize(self.work))
        save(RankPrograms(ranks, weights, self.manifest(), plan, captured.tied), folder, force, progress)

    def manifest(self) -> Manifest:
        """What bundle.json says, but for its files."""
        work = self.work
        written = {made for _, made in work.program.written}

        def entry(value: Value) -> IOEntry:
            place = work.local.doors.get(value.name)
            shape = tuple("" if size is None else size for size in value.shape or ())
            lies = None if place is None else Placement(place.axis, place.ranges)
            return IOEntry(value.dtype or "float32", shape, lies)

        return Manifest(
            tpcompile=__version__,
            source=SourceFile(work.source.file, work.source.nbytes),
            mesh=Mesh(work.request.tp),
            ranks=(),
            inputs={value.name: entry(value) for value in work.program.inputs},
            outputs={value.name: entry(value) for value in work.program.outputs if value not in written},
            plan="",
            state=tuple(StatePair(pair.input.name, pair.output.name, pair.axis, pair.kind) for pair in work.state),
            roles=work.roles,
            collectives=tuple(
                CollectiveEntry(index, SENT_AS.get(call.op, call.op), call.value.name, call.dtype, call.groups,
                                call.nbytes, call.because)
                for index, call in enumerate(call for call in work.local.collectives if call.op != "copy")
            ),
            dialect=TORCH,
        )  # fmt: skip


SENT_AS = {"cross_entropy": "all_reduce"}
"""What bundle.json calls operators that send something of their own kind."""


def planned(
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
) -> Compilation:
    """What `parallelize` would do with a model: the arguments are the same."""
    request = make_request(
        tp, objective, pins, outputs, sizes, plan, state, roles, strict, topology, memory_per_rank, recipe, tp_plan,
        forbids, reduce_dtype, annotations="ignore", training=_trains(model) if training is None else training,
    )  # fmt: skip
    return pipeline.run(start(capture(model, example_inputs, dynamic), request), PLANNING)


def parallelize(model: Any, example_inputs: Any = None, *, tp: int, **wishes: Any) -> Parallelized:
    """Cut a PyTorch model for `tp` ranks.

    Args:
        model: a `torch.nn.Module` or GraphModule (with `example_inputs`) in the mode it is to run in, a
            `torch.export.ExportedProgram`, or the path of a `.pt2`.
        example_inputs: for a Module: a tuple (by position), a mapping (by name), or one tensor.
        tp: degree of tensor parallelism: the number of ranks.
        dynamic: for a Module: torch's `dynamic_shapes`, as in `{"input_ids": {0: "batch", 1: "seq"}}`.
        training: whether gradients are to be right (by default for a Module in training mode): what ranks have whole
            and use for their parts is copied by an operator that sums its gradient over the ranks.
        recipe, plan, pins, forbids, objective, outputs, sizes, tp_plan, state, roles, reduce_dtype, topology,
        memory_per_rank, strict: as `tpcompile.compile` takes them.

    Raises:
        Refused: the model or a wish cannot be served.
    """
    return rewritten(planned(model, example_inputs, tp=tp, **wishes))


def rewritten(work: Compilation) -> Parallelized:
    """What a plan makes of its model."""
    work = pipeline.run(work, pipeline.REWRITING)
    work.local.weights += unused(work)
    return Parallelized(work)


def unused(work: Compilation) -> list[LocalWeight]:
    """Parameters and buffers that checkpoints hold and the graph does not read: every rank keeps them as they are."""
    captured: Captured = work.source
    read = {weight.weight.name for weight in work.local.weights}
    held = captured.program.state_dict.keys() - captured.tied.keys() - read
    found = [value.weight for value in work.program.weights if value.weight is not None and value.weight.name in held]
    return [LocalWeight(each.name, each, (whole(len(each.shape)),) * work.local.ranks) for each in found]


def _trains(model: Any) -> bool:
    """Whether a model came in training mode."""
    return isinstance(model, torch.nn.Module) and model.training


def start(captured: Captured, request: Request) -> Compilation:
    """A captured model as it enters the passes."""
    symbols = SymbolSizes(captured.program.graph, captured.names)
    work = Compilation(captured, request, Reader(captured.program, captured.sources, captured.tied, symbols).read())
    work.samples = symbols.samples
    return work
