"""Cut a graph along chosen dims, planner or not, and run all its ranks: the ground that rules are proved on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from tests.one_graph import merge
from tests.rules.reference import WITHOUT_KERNELS
from tests.rules.sample import Array
from tpcompile import pipeline
from tpcompile.dims.analysis import analyze
from tpcompile.dims.cut import Cut, Mesh, SubAxes
from tpcompile.dims.dim import Dim
from tpcompile.graph.doors import open_model
from tpcompile.graph.local import LocalProgram
from tpcompile.graph.to_onnx import inline_bytes, rank_model
from tpcompile.passes.compilation import Compilation
from tpcompile.passes.infer_shapes import InferShapes
from tpcompile.passes.remove_unused import RemoveUnused
from tpcompile.passes.rewrite import Rewriter
from tpcompile.plan.request import Request


@dataclass
class Forced:
    """A program that was cut: what each node ran cut along, and the program of all ranks."""

    work: Compilation
    rewriter: Rewriter
    cut: Cut

    @property
    def local(self) -> LocalProgram:
        return self.work.local

    @property
    def collectives(self) -> list[tuple[str, str]]:
        """(kind, value) of every collective."""
        return [(call.op, call.value.name) for call in self.local.collectives]

    def models(self) -> list[onnx.ModelProto]:
        """One model per rank, weights inside."""
        found = []
        for rank in range(self.cut.mesh.tp):
            stored = {w.name: inline_bytes(w, bytes(w.weight.source.data), rank) for w in self.local.weights}
            found.append(rank_model(self.work.source.proto, self.work.program, self.local, rank, {}, stored))
        return found


def analysed(model: onnx.ModelProto) -> Compilation:
    """A model read, normalized, with shapes and dims."""
    work = pipeline.start(open_model(model), Request())
    InferShapes().run(work)
    work.analysis = analyze(work.program)
    return work


def force(work: Compilation, tp: int, plan: Mapping[Dim, SubAxes]) -> Forced:
    """Cut exactly these leaves over these sub-axes; graph inputs and outputs stay whole."""
    cut = Cut(Mesh(tp), dict(plan))
    rewriter = Rewriter(work.analysis, cut, frozenset(), work.samples.describe, lambda node: "")
    done = Compilation(work.source, work.request, work.program)
    done.local = rewriter.run()
    RemoveUnused().run(done)
    return Forced(done, rewriter, cut)


def run_whole(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """The model's outputs, by onnxruntime, or a reference implementation where that has no kernel."""
    try:
        found = _session(model).run(None, dict(feeds))
    except (NoKernel, RuntimeException, Fail) as refusal:  # some kernels only say so when they are made, or run
        if isinstance(refusal, Fail) and "only support" not in str(refusal):
            raise
        found = ReferenceEvaluator(model, new_ops=list(WITHOUT_KERNELS)).run(None, dict(feeds))
    return [np.asarray(array) for array in found]


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_ranks(models: Sequence[onnx.ModelProto], feeds: Mapping[str, Array]) -> list[list[Array]]:
    """The outputs of every rank."""
    count = len(models[0].graph.output)
    whole, _ = merge(list(models))
    found = run_whole(whole, {f"{rank}/{name}": array for rank in range(len(models)) for name, array in feeds.items()})
    return [found[rank * count : (rank + 1) * count] for rank in range(len(models))]


def differs(want: Sequence[Array], got: Sequence[Array], tolerance: float = 1e-5) -> str:
    """What is wrong with a rank's outputs, "" where nothing is."""
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {k} is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
        a, b = a.astype(np.float64), b.astype(np.float64)
        size = np.abs(a[np.isfinite(a)]).max(initial=0)
        if not np.allclose(a, b, rtol=tolerance, atol=tolerance * (1 + size), equal_nan=True):
            return f"output {k} differs by {np.nanmax(np.abs(a - b))} of {size}"
    return ""
