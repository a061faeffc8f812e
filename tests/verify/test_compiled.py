"""Bundles that the compiler wrote from real exporter graphs: accepted as they are, refused after damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tpcompile
from tests import zoo
from tests.verify.bundles import bypass, edit_manifest, edit_rank, made_by, store, stored
from tpcompile.targets.collectives import is_collective
from tpcompile.verify.command import verify_bundle


def compiled(tmp_path: Path, graph: str, tp: int) -> tuple[Path, onnx.ModelProto]:
    model = zoo.model(graph)
    tpcompile.compile(model, tp, tmp_path / "out")
    return tmp_path / "out", model


@pytest.mark.parametrize(
    ("graph", "tp"),
    [("albert__dynamo", 4), ("falcon40b__dynamo__kv", 4), ("qwen2__optimum__kv", 4), ("gpt-neox__optimum", 3)],
)
def test_every_operation_of_a_compiled_graph_is_followed(tmp_path: Path, graph: str, tp: int) -> None:
    report = verify_bundle(*compiled(tmp_path, graph, tp))
    assert [str(fault) for fault in report.faults] == []
    assert [warning for check in report.checks for warning in check.warnings] == []


def test_damage_to_a_compiled_graph(tmp_path: Path) -> None:
    """One damage after the other to a decoder: each adds its own fault."""
    bundle, model = compiled(tmp_path, "llama__dynamo__kv", 2)

    def wrong_offset(rank_model: onnx.ModelProto) -> None:
        name = next(t.name for t in rank_model.graph.initializer if t.name.endswith(".offset"))
        store(rank_model, name, stored(rank_model, name) - 3)

    edit_rank(bundle, 1, wrong_offset)
    report = verify_bundle(bundle, model)
    assert [fault.code for fault in report.checks[2].faults][:1] == ["TP528"]
    assert "TP531" in [fault.code for fault in report.faults]

    def forget_reduce(rank_model: onnx.ModelProto) -> None:
        reduces = [n for n in rank_model.graph.node if is_collective(n)]
        output = reduces[1].output[0]
        assert made_by(rank_model, output).input[0] == output.removesuffix(".sum")
        bypass(rank_model, output)

    for rank in range(2):
        edit_rank(bundle, rank, forget_reduce)
    report = verify_bundle(bundle, model)
    assert {"TP522", "TP525"} <= {fault.code for fault in report.faults}


def test_cache_ranges_swapped_in_the_manifest(tmp_path: Path) -> None:
    """Rank 0 is fed the heads of rank 1: shapes fit, the keys are those of other heads."""
    bundle, model = compiled(tmp_path, "llama__dynamo__kv", 2)

    def change(manifest: dict[str, Any]) -> None:
        pair = manifest["state"][0]
        manifest["inputs"][pair["input"]]["placement"]["ranges"].reverse()
        manifest["outputs"][pair["output"]]["placement"]["ranges"].reverse()

    edit_manifest(bundle, change)
    report = verify_bundle(bundle, model)
    assert "TP526" in [fault.code for fault in report.checks[2].faults]
    assert "TP531" in [fault.code for fault in report.checks[3].faults]


def test_sequences_of_tensors_are_followed(tmp_path: Path) -> None:
    """A sequence behind a sum over ranks: it has no type that a session's input could be given before it is read."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[b, 6] x) => (float[b, 5] y) <float[6, 12] up, float[12, 5] down>
        { e = SequenceEmpty()  a = MatMul(x, up)  r = Relu(a)  d = MatMul(r, down)  t = Tanh(d)
        f = SequenceInsert(e, t)  s = SequenceInsert(f, d)  y = ConcatFromSequence <axis = 0> (s) }"""
    )
    random = np.random.default_rng(1)
    for name, shape in (("up", (6, 12)), ("down", (12, 5))):
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    del model.graph.value_info[:]
    bundle = tpcompile.compile(model, 2, tmp_path / "out")
    assert [call.op for call in bundle.manifest.collectives] == ["all_reduce"]
    report = verify_bundle(tmp_path / "out", model)
    assert [str(fault) for fault in report.faults] == []
    assert report.ok and report.trials
