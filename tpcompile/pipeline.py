"""The way of a model through the compiler: the passes, in order, each with its reason."""

from __future__ import annotations

import copy
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.read import SourceModel
from tpcompile.passes.check_local import CheckLocal
from tpcompile.passes.check_plan import CheckPlan
from tpcompile.passes.choose_plan import ChoosePlan
from tpcompile.passes.compilation import Compilation, Pass
from tpcompile.passes.cut_graph import CutGraph
from tpcompile.passes.infer_shapes import InferShapes
from tpcompile.passes.name_dims import NameDims
from tpcompile.passes.remove_unused import RemoveUnused
from tpcompile.passes.retie_weights import RetieWeights
from tpcompile.plan.request import Request

ANALYSIS: tuple[Pass, ...] = (
    RetieWeights(),  # one vocabulary is one class: copies that an exporter folded would be cut, and stored, twice
    InferShapes(),  # rules compare sizes: they must be known first
    NameDims(),  # what may be cut follows from what the dims are
)
"""What is the same for every number of ranks."""
CHOICE: tuple[Pass, ...] = (
    ChoosePlan(),  # decide everything before anything is changed
    CheckPlan(),  # a plan may be the user's own
)
PLANNING = ANALYSIS + CHOICE
SHAPES: tuple[Pass, ...] = (InferShapes(),)  # what checking annotations needs
REWRITING: tuple[Pass, ...] = (
    CutGraph(),  # the whole plan at once: versions of a value are shared between its readers
    RemoveUnused(),  # local constants replace shape arithmetic, which nothing reads then
    CheckLocal(),  # our own faults must not reach a file
)

Between = Callable[[str, str, float], None]
"""Called after each pass with its name, what it did, and the seconds it took."""


def start(source: SourceModel, request: Request) -> Compilation:
    """A model as it enters the passes: read and normalized."""
    with collector_paused():
        return Compilation(source, request, to_program(source))


def run(work: Compilation, passes: tuple[Pass, ...], between: Between | None = None) -> Compilation:
    """Run passes over a compilation."""
    with collector_paused():
        for step in passes:
            started = time.perf_counter()
            did = step.run(work)
            if between is not None:
                between(step.name, did, time.perf_counter() - started)
    return work


def replanned(work: Compilation, tp: int) -> Compilation:
    """The plan of a model for another number of ranks: what was found of the model serves again."""
    again = copy.copy(work)
    again.request = replace(work.request, tp=tp)
    again.warnings = work.warnings[: work.model_notes]
    return run(again, CHOICE)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile.

    A pass makes a great many objects and drops few: the collector would walk all of them again and again, which alone
    makes the time of a large graph grow faster than its nodes.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
