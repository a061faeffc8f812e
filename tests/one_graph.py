"""All ranks of a bundle as one ONNX graph, run by onnxruntime: an oracle that shares no code with tpcompile.

Every name of rank r's file gets the prefix `r/`; the k-th collective of all ranks becomes ordinary nodes (Add, Concat,
Identity) that read all ranks' values. What the ranks would say over MPI is then simply a value of the graph. Ifs whose
branches hold collectives become one If, whose branches are those of all ranks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper

Array = npt.NDArray[Any]
REDUCTIONS = {"sum": "Add", "max": "Max", "min": "Min"}


class OneGraph:
    """A compiled bundle, ready to run with global inputs; `collectives` counts what one run says over MPI."""

    def __init__(self, bundle: Path) -> None:
        self.manifest = json.loads((bundle / "bundle.json").read_text())
        models = [onnx.load(bundle / rank["model"]) for rank in self.manifest["ranks"]]
        self.tp = len(models)
        self.weight_bytes = [sum(len(t.raw_data) for t in model.graph.initializer) for model in models]
        whole, self.collectives = merge(models)
        self.session = session(whole.SerializeToString())

    def run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """The global outputs for global inputs; raises where ranks disagree on what several of them hold."""
        local = {
            f"{r}/{name}": np.ascontiguousarray(scatter(feeds[name], entry["placement"], r))
            for name, entry in self.manifest["inputs"].items()
            for r in range(self.tp)
        }
        names = [value.name for value in self.session.get_outputs()]
        read = {value.name for value in self.session.get_inputs()}
        found = self.session.run(names, {key: value for key, value in local.items() if key in read})
        values = dict(zip(names, found, strict=True))
        return {
            name: gather([values[f"{r}/{name}"] for r in range(self.tp)], entry["placement"])
            for name, entry in self.manifest["outputs"].items()
        }


def merge(models: list[onnx.ModelProto]) -> tuple[onnx.ModelProto, Counter[str]]:
    """One model of all ranks' (which are renamed in place), and how many collectives of each kind there were."""
    merged = onnx.GraphProto(name="all ranks")
    collectives: Counter[str] = Counter()
    merged.node.extend(merged_nodes([model.graph for model in models], collectives))
    for r, model in enumerate(models):
        own = model.graph
        for mine, all_ranks in (
            (own.input, merged.input),
            (own.output, merged.output),
            (own.value_info, merged.value_info),
        ):
            for value in mine:
                all_ranks.add().CopyFrom(value)
                all_ranks[-1].name = f"{r}/{value.name}"
        for tensor in model.graph.initializer:
            merged.initializer.add().CopyFrom(tensor)
            merged.initializer[-1].name = f"{r}/{tensor.name}"
    opsets = [opset for opset in models[0].opset_import if opset.domain != "tpcompile"]
    whole = helper.make_model(merged, opset_imports=opsets, functions=models[0].functions)
    whole.ir_version = models[0].ir_version
    return whole, collectives


def merged_nodes(graphs: Sequence[onnx.GraphProto], collectives: Counter[str]) -> list[onnx.NodeProto]:
    """The nodes of all ranks' graphs, which are renamed in place; collectives are counted, in branches too."""
    stages = [split_at_collectives(graph, f"{r}/") for r, graph in enumerate(graphs)]
    assert len({len(stage) for stage in stages}) == 1, "ranks differ in the number of collectives"
    found = []
    for step in zip(*stages, strict=True):
        for nodes, _ in step:
            found += nodes
        calls = [call for _, call in step if call is not None]
        if calls and calls[0].op_type == "If":
            found.append(one_if(calls, collectives))
        elif calls:
            collectives[attributes(calls[0])["collective_operation"]] += 1
            found += perform(calls)
    return found


def one_if(calls: Sequence[onnx.NodeProto], collectives: Counter[str]) -> onnx.NodeProto:
    """All ranks' If as one, under the first rank's condition."""
    outputs = [name for call in calls for name in call.output]
    made = helper.make_node("If", calls[0].input[:1], outputs, calls[0].name)
    for branch in ("then_branch", "else_branch"):
        graphs = [attributes(call)[branch] for call in calls]
        whole = onnx.GraphProto(name=branch, node=merged_nodes(graphs, collectives))
        for r, graph in enumerate(graphs):
            for value in graph.output:
                whole.output.add(name=f"{r}/{value.name}")
        made.attribute.append(helper.make_attribute(branch, whole))
    return made


def session(model: bytes | str) -> onnxruntime.InferenceSession:
    """A quiet session that fuses nothing, so that both sides are computed alike."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def split_at_collectives(
    graph: onnx.GraphProto, prefix: str
) -> list[tuple[list[onnx.NodeProto], onnx.NodeProto | None]]:
    """The nodes up to each collective, or If that holds some, with it; last the nodes after all of them.

    Names get the prefix, those inside an If with collectives later.
    """
    stages: list[tuple[list[onnx.NodeProto], onnx.NodeProto | None]] = []
    before: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "DistCollective" or holds_collectives(node):
            for names in (node.input, node.output):
                names[:] = [prefix + name if name else "" for name in names]
            stages.append((before, node))
            before = []
        else:
            prefixed(node, prefix)
            before.append(node)
    return [*stages, (before, None)]


def holds_collectives(node: onnx.NodeProto) -> bool:
    """Whether a graph within the node has a collective."""
    inner = [n for attribute in node.attribute for graph in [attribute.g, *attribute.graphs] for n in graph.node]
    return any(n.op_type == "DistCollective" or holds_collectives(n) for n in inner)


def prefixed(node: onnx.NodeProto, prefix: str) -> None:
    """Rename every value a node touches, those inside its subgraphs too (no collective may stand there)."""
    node.name = prefix + node.name if node.name else ""
    node.input[:] = [prefix + name if name else "" for name in node.input]
    node.output[:] = [prefix + name if name else "" for name in node.output]
    for attribute in node.attribute:
        for graph in [attribute.g, *attribute.graphs]:
            for value in [*graph.input, *graph.output, *graph.initializer, *graph.value_info]:
                value.name = prefix + value.name
            for inner in graph.node:
                assert inner.op_type != "DistCollective", f"{node.name} holds a collective"
                prefixed(inner, prefix)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in found.items()}


def perform(calls: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The ordinary nodes that do what all ranks' k-th collective does."""
    says = [attributes(call) for call in calls]
    assert len({(s["collective_operation"], s["reduce_op"]) for s in says}) == 1, f"ranks differ: {says}"
    groups = [tuple(s["groups"]) or tuple(range(len(calls))) for s in says]
    nodes: list[onnx.NodeProto] = []
    for group in sorted(set(groups)):
        assert all(groups[rank] == group for rank in group), f"ranks disagree on their group: {groups}"
        assert all(says[rank]["nb_rank"] == len(group) for rank in group), f"nb_rank: {says}"
        inputs = [calls[rank].input[0] for rank in group]
        outputs = [calls[rank].output[0] for rank in group]
        nodes += within(says[group[0]], inputs, outputs, group)
    return nodes


def within(says: dict[str, Any], inputs: list[str], outputs: list[str], group: tuple[int, ...]) -> list[onnx.NodeProto]:
    """One group's part of a collective; gathers and scatters work on axis 0, in equal parts."""
    whole = outputs[0] + "/all"
    copies = [helper.make_node("Identity", [whole], [name]) for name in outputs]
    match says["collective_operation"]:
        case "all_reduce":
            reduced = [*inputs[:1], *(f"{whole}/{count}" for count in range(2, len(inputs))), whole]
            steps = zip(reduced, inputs[1:], reduced[1:], strict=False)  # a Sum of whole numbers has no kernel
            return [*(helper.make_node(REDUCTIONS[says["reduce_op"]], [a, b], [c]) for a, b, c in steps), *copies]
        case "all_gather":
            return [helper.make_node("Concat", inputs, [whole], axis=0), *copies]
        case "broadcast":
            return [helper.make_node("Identity", [inputs[group.index(says["root"])]], [whole]), *copies]
        case other:
            raise AssertionError(f"this oracle does not know {other}")


def scatter(array: Array, placement: dict[str, Any] | None, rank: int) -> Array:
    """The part of a global input that `rank` gets."""
    if placement is None:
        return array
    held = [np.arange(low, high) for low, high in placement["ranges"][rank]]
    return np.take(array, np.concatenate(held), axis=placement["axis"])


def gather(parts: list[Array], placement: dict[str, Any] | None) -> Array:
    """The global output of the ranks' parts; raises where two ranks hold the same index and differ."""
    if placement is None:
        for part in parts[1:]:
            np.testing.assert_allclose(part, parts[0], rtol=1e-4, atol=1e-5, err_msg="a whole output differs")
        return parts[0]
    axis, ranges = placement["axis"], placement["ranges"]
    shape = list(parts[0].shape)
    shape[axis] = max(high for held in ranges for _, high in held)
    whole, filled = np.zeros(shape, parts[0].dtype), np.zeros(shape[axis], bool)
    along = np.moveaxis(whole, axis, 0)
    for part, held in zip(parts, ranges, strict=True):
        index = np.concatenate([np.arange(low, high) for low, high in held])
        mine = np.moveaxis(part, axis, 0)
        again = filled[index]
        np.testing.assert_allclose(mine[again], along[index[again]], rtol=1e-4, atol=1e-5, err_msg="copies differ")
        along[index], filled[index] = mine, True
    assert filled.all(), "no rank holds some indices"
    return whole


def difference(want: Array, got: Array) -> float:
    """The largest error over the largest wanted value; infinite where shape, type or the finite places differ."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return float("inf")
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)) or not np.array_equal(
        want[~finite], got[~finite], equal_nan=want.dtype.kind == "f"
    ):
        return float("inf")
    a, b = want[finite].astype(np.float64), got[finite].astype(np.float64)
    return float(np.abs(a - b).max(initial=0.0) / (np.abs(a).max(initial=0.0) + 1e-6))
