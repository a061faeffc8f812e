"""Plans that no planner would choose, compiled and run: what they break is a rule, the rewriting or a constraint.

A random plan cuts anything it may over any sub-axes, and layers that are alike differently: gathers, local slices,
uneven blocks, nested sub-axes and cut products with dynamic factors all occur. Two kinds are drawn: `solved` is the
optimum of the planner's own program under a random price for each cut; `listed` only avoids what `--plan` refuses.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.one_graph import Array, OneGraph, difference, session
from tests.test_real_graphs import LIMIT, trials
from tpcompile import pipeline
from tpcompile.dims.cut import Mesh
from tpcompile.graph.doors import open_model
from tpcompile.output import write_bundle
from tpcompile.passes.compilation import Compilation
from tpcompile.passes.infer_shapes import InferShapes
from tpcompile.passes.name_dims import NameDims
from tpcompile.plan.cost import Prices
from tpcompile.plan.plan import Plan, make_plan
from tpcompile.plan.problem import Problem, build_problem
from tpcompile.plan.request import Request
from tpcompile.plan.solve import Choice, Solver, feasible
from tpcompile.plan.topology import DEFAULT, find_topology
from tpcompile.plan_summary import summarize

NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
LIMIT_OF_NARROW = 2e-2
KINDS = ("solved", "listed")


@dataclass(frozen=True)
class Draw:
    """One random plan: everything follows from these."""

    tp: int
    seed: int
    kind: str = "solved"
    alike: bool = False
    """Whether repeated layers share a decision, as the planner has it."""
    outputs: str = "whole"


class Subject:
    """A model, analysed once, its inputs and what they give; `errors` compiles it under a random plan and runs that."""

    def __init__(self, model: onnx.ModelProto, trials: Iterable[tuple[str, dict[str, Array]]]) -> None:
        model = at_full_accuracy(model)
        self.model = model
        self.reference = session(model.SerializeToString())
        narrow = any(tensor.data_type in NARROW for tensor in model.graph.initializer)
        self.limit = LIMIT_OF_NARROW if narrow else LIMIT
        self.names = [output.name for output in self.reference.get_outputs()]
        self.trials = list(self._runnable(trials))
        self.source = open_model(model)
        self._analysed: dict[str, Compilation] = {}
        self._allowed: dict[str, float] = {}

    def _runnable(
        self, trials: Iterable[tuple[str, dict[str, Array]]]
    ) -> Iterator[tuple[str, dict[str, Array], dict[str, Array]]]:
        """The inputs that the source itself accepts, with its outputs; the first must be among them."""
        declared = {value.name for value in self.reference.get_inputs()}
        for position, (name, feeds) in enumerate(trials):
            given = {key: value for key, value in feeds.items() if key in declared}
            try:
                found = self.reference.run(self.names, given)
            except Exception:  # onnxruntime raises a dozen types of its own
                if not position:
                    raise
                continue
            yield name, given, dict(zip(self.names, found, strict=True))

    def allowed(self, trial: str) -> float:
        """The error that is held against nobody: the limit, or what the source's own rounding makes of its weights.

        Whole numbers in a graph turn the last bit of a sum into a step; a unit in the last place of each weight shows
        how far such steps carry.
        """
        if trial not in self._allowed:
            given, wanted = next((given, wanted) for name, given, wanted in self.trials if name == trial)
            got = session(moved_by_a_unit(self.model).SerializeToString()).run(self.names, given)
            noise = max(difference(wanted[key], found) for key, found in zip(self.names, got, strict=True))
            self._allowed[trial] = min(LIMIT_OF_NARROW, max(self.limit, 2 * noise))
        return self._allowed[trial]

    def analysed(self, outputs: str) -> Compilation:
        if outputs not in self._analysed:
            work = pipeline.start(self.source, Request(outputs=outputs))
            self._analysed[outputs] = pipeline.run(work, (InferShapes(), NameDims()))
        return self._analysed[outputs]

    def compiled(self, draw: Draw, folder: Path) -> Plan:
        """Write the bundle of a random plan into an empty folder."""
        work = copy.copy(self.analysed(draw.outputs))
        work.request = Request(draw.tp, outputs=draw.outputs)
        problem = build_problem(work.analysis, Mesh(draw.tp), work.cut_doors, max, max, wide=True)
        problem = problem if draw.alike else each_alone(problem)
        choice = CHOOSE[draw.kind](problem, np.random.default_rng(draw.seed))
        work.problem, work.plan, work.wishes = problem, make_plan(problem, choice, "balanced", {}), None
        work.topology = find_topology(DEFAULT)
        pipeline.run(work, pipeline.REWRITING)
        write_bundle(work, folder, summarize(work))
        return work.plan

    def errors(self, draw: Draw) -> dict[str, float]:
        """The largest relative error of each trial under a random plan."""
        with tempfile.TemporaryDirectory() as folder:
            self.compiled(draw, Path(folder))
            ranks, found = OneGraph(Path(folder)), {}
            for name, given, wanted in self.trials:
                got = ranks.run(given)
                found[name] = max(difference(wanted[key], got[key]) for key in self.names)
            return found


def known_trials(model: onnx.ModelProto, feeds: dict[str, Array]) -> Iterator[tuple[str, dict[str, Array]]]:
    """The trials; without those of other ids where no table of ids is found."""
    with contextlib.suppress(AssertionError):
        yield from trials(model, feeds)


def at_full_accuracy(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with products of packed weights in float: in int8 they round what they read, where it is cut or not."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in made.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 0
    return made


def moved_by_a_unit(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with half of each weight's numbers moved by one unit in the last place, up or down."""
    made, random = onnx.ModelProto(), np.random.default_rng(0)
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.data_type in (onnx.TensorProto.FLOAT, *NARROW) and len(tensor.raw_data) > 64:
            held = numpy_helper.to_array(tensor)
            side = np.where(random.random(held.shape) < 0.5, np.inf, -np.inf).astype(held.dtype)
            moved = np.where(random.random(held.shape) < 0.5, np.nextafter(held, side), held)
            tensor.raw_data = moved.astype(held.dtype).tobytes()
    return made


def each_alone(problem: Problem) -> Problem:
    """The same problem with one group per class; constraints on a group hold for each pair of its classes."""
    position = {cls.leaf: k for k, cls in enumerate(problem.classes)}
    members = [[position[cls.leaf] for cls in group] for group in problem.groups]
    classes = [dataclasses.replace(cls, group=k) for k, cls in enumerate(problem.classes)]
    return dataclasses.replace(
        problem,
        classes=classes,
        groups=[[cls] for cls in classes],
        group_of=position,
        exclusive={(min(i, j), max(i, j)) for a, b in problem.exclusive for i in members[a] for j in members[b]},
        together=set(),
        forbidden={k: why for group, why in problem.forbidden.items() for k in members[group]},
    )


def solved(problem: Problem, random: np.random.Generator) -> Choice:
    """The cheapest plan where each cut has a random price, often below zero, and nothing else costs."""
    solver = Solver(problem, Prices.of("balanced", 0.0, problem.mesh.tp))
    solver.cost = [0.0] * len(solver.cost)
    for (_, axes), column in solver.x.items():
        if axes:
            solver.cost[column] = random.uniform(-1.0, 0.5)
    found = solver.solve()
    assert found is not None
    return found[0]


def listed(problem: Problem, random: np.random.Generator) -> Choice:
    """Cuts added in random order wherever a plan file may state them."""
    choice: Choice = {}
    for group in random.permutation(len(problem.groups)).tolist():
        if group in problem.forbidden or random.random() < 0.15:
            continue
        parts = problem.groups[group][0].most_parts
        free = [axis for axis in problem.mesh.all_axes if random.random() < 0.8]
        while free:
            tried = choice | {group: tuple(free)}
            if problem.mesh.degree(tuple(free)) <= parts and not feasible(problem, problem.mesh, tried):
                choice = tried
                break
            free.pop(int(random.integers(len(free))))
    return choice


CHOOSE = {"solved": solved, "listed": listed}
