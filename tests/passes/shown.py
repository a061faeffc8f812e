"""A graph before and after it is cut: ONNX text in, a readable line per node of one rank out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.rules.cuts import named_leaves
from tests.rules.forced import Forced, analysed, differs, force, run_ranks, run_whole
from tests.rules.sample import Sample
from tpcompile.dims.cut import SubAxes


@dataclass
class Rewritten:
    """A graph cut as asked, proved to give the whole model's numbers."""

    forced: Forced

    def rank(self, rank: int) -> list[str]:
        """The rank's nodes: "y = MatMul(x.part, w[3, 10])"; small integers and zeros stand for their names."""
        model = self.forced.models()[rank]
        return shown(model.graph.node, model)

    def branch(self, rank: int, name: str) -> list[str]:
        """The same of a branch of the rank's only If."""
        model = self.forced.models()[rank]
        chosen = next(node for node in model.graph.node if node.op_type == "If")
        graph = next(attribute.g for attribute in chosen.attribute if attribute.name == name)
        return shown(graph.node, model)

    @property
    def collectives(self) -> list[tuple[str, str]]:
        return self.forced.collectives


def rewritten(graph: str, tp: int, cuts: Mapping[str, SubAxes], **more: Any) -> Rewritten:
    """Cut a graph of ONNX text along dims named by a place where they stand: {"w[1]": (0,)}."""
    sample = Sample("", graph, **more)
    model = sample.model()
    feeds = sample.feeds(model)
    work = analysed(model)
    named = named_leaves(work.analysis, work.program.nodes)
    forced = force(work, tp, {named[name]: axes for name, axes in cuts.items()})
    want = run_whole(model, feeds)
    assert [differs(want, got) for got in run_ranks(forced.models(), feeds)] == [""] * tp
    return Rewritten(forced)


def shown(nodes: Iterable[onnx.NodeProto], model: onnx.ModelProto) -> list[str]:
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    return [
        f"{', '.join(node.output)} = {_called(node)}({', '.join(_operand(name, stored) for name in node.input)})"
        for node in nodes
    ]


def _called(node: onnx.NodeProto) -> str:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.type != onnx.AttributeProto.GRAPH}
    if node.op_type == "DistCollective":
        name, groups = given["collective_operation"].decode(), list(given["groups"])
        return f"{name} over {groups}" if groups else name
    inside = ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
    return f"{node.op_type}<{inside}>" if inside else node.op_type


def _operand(name: str, stored: Mapping[str, onnx.TensorProto]) -> str:
    if name not in stored:
        return name
    array = numpy_helper.to_array(stored[name])
    if array.dtype.kind in "iub" and array.size <= 16:
        return str(array.tolist())
    if array.ndim == 0:
        return f"{float(array):.4g}"
    return f"{list(array.shape)} zeros" if not np.any(array) else f"{name}{list(array.shape)}"
