"""The calls that a user has: every kind of model in, every kind out, nothing read that is not needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest

import tpcompile
from tests.one_graph import session
from tests.plan.models import LIMIT, TWO_LAYERS, error_of, feeds, model
from tpcompile import pipeline
from tpcompile.errors import Refused


def graphsurgeon() -> Any:
    return pytest.importorskip("onnx_graphsurgeon")


def saved(folder: Path) -> Path:
    onnx.save(model(TWO_LAYERS), folder / "m.onnx")
    return folder / "m.onnx"


KINDS: dict[str, Callable[[Path], Any]] = {
    "path": saved,
    "text": lambda folder: str(saved(folder)),
    "proto": lambda folder: model(TWO_LAYERS),
    "ir": lambda folder: onnx_ir.serde.deserialize_model(model(TWO_LAYERS)),
    "gs": lambda folder: graphsurgeon().import_onnx(model(TWO_LAYERS)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_taken(kind: str, tmp_path: Path) -> None:
    given = KINDS[kind](tmp_path)
    bundle = tpcompile.compile(given, 2, tmp_path / "b", verify=True)
    assert bundle.report is not None and bundle.report.ok
    assert error_of(model(TWO_LAYERS), tmp_path / "b") <= LIMIT
    assert [group.name for group in tpcompile.plan(given, 2).plan.groups if group.axes] == [
        "up0[1]",
        "head[1]",
        "table[0]",
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_in_every_kind(rank: int, tmp_path: Path) -> None:
    bundle = tpcompile.compile(model(TWO_LAYERS), 2, tmp_path / "b")
    proto, ir, graph = (bundle.rank_model(rank, kind) for kind in ("onnx", "ir", "gs"))
    assert isinstance(proto, onnx.ModelProto) and isinstance(ir, onnx_ir.Model)
    assert isinstance(graph, graphsurgeon().Graph)
    ops = [node.op_type for node in proto.graph.node]
    assert [node.op_type for node in ir.graph] == ops
    assert sorted(node.op for node in graph.nodes) == sorted(ops)
    assert ops.count("DistCollective") == 4
    with pytest.raises(Refused) as caught:
        bundle.rank_model(2)
    assert str(caught.value) == "TP108 rank 2: the bundle has ranks 0 to 1. Ask for one of them"
    with pytest.raises(Refused) as caught:
        bundle.rank_model(rank, "keras")
    assert str(caught.value) == 'TP230 \'keras\' is no kind of model to hand out. Use "onnx", "ir" or "gs"'


def test_where_the_bundle_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tpcompile.compile(saved(tmp_path), 2).folder == tmp_path / "m.tp2"
    assert tpcompile.compile(model(TWO_LAYERS), 3).folder == Path("model.tp3")
    assert (tmp_path / "model.tp3" / "bundle.json").is_file()
    with pytest.raises(Refused) as caught:
        tpcompile.compile(model(TWO_LAYERS), 3)
    assert str(caught.value) == (
        f"TP411 {tmp_path / 'model.tp3'}: exists already. Choose another output, or replace it with --force"
    )


def test_load_verify_and_run(tmp_path: Path) -> None:
    source = model(TWO_LAYERS)
    tpcompile.compile(source, 2, tmp_path / "b")
    bundle = tpcompile.load(tmp_path / "b")
    assert (bundle.manifest.mesh.tp, bundle.plan, bundle.report) == (2, None, None)
    assert tpcompile.verify(bundle, source).ok and tpcompile.verify(tmp_path / "b", source, feeds(source)).ok
    given = feeds(source)
    wanted = session(source.SerializeToString()).run(["logits"], given)[0]
    with tpcompile.InferenceSession(tmp_path / "b") as running:
        assert [value.name for value in running.get_inputs()] == ["ids"]
        np.testing.assert_allclose(running.run(None, given)[0], wanted, rtol=1e-4, atol=1e-4)
    with bundle.session() as running:
        np.testing.assert_allclose(running.run(["logits"], given)[0], wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(Refused) as caught:
        tpcompile.load(tmp_path)
    assert str(caught.value) == (
        f"TP451 {tmp_path}: no bundle.json in this folder. Give the folder that `tpcompile MODEL --tp N` wrote"
    )


def test_one_rank_is_the_baseline(tmp_path: Path) -> None:
    bundle = tpcompile.compile(model(TWO_LAYERS), 1, tmp_path / "b", strict=True)
    assert (bundle.manifest.collectives, bundle.warnings) == ((), ())
    assert error_of(model(TWO_LAYERS), tmp_path / "b") <= LIMIT


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    tpcompile.compile(model(TWO_LAYERS), 2, tmp_path / "b", progress=lambda *step: told.append(step))
    steps = [step.name for step in pipeline.PLANNING + pipeline.REWRITING]
    assert [what for what, _, _ in told][: len(steps)] == steps
    assert all(0 <= done <= total for _, done, total in told)


def test_planning_reads_no_weights(tmp_path: Path) -> None:
    """The data file is not there; a file of other bytes in its place is not opened either."""
    path = tmp_path / "m.onnx"
    onnx.save(model(TWO_LAYERS), path, save_as_external_data=True, location="w.bin", size_threshold=300)
    with_data = tpcompile.plan(path, 2).plan
    (tmp_path / "w.bin").unlink()
    assert tpcompile.plan(path, 2).plan.groups == with_data.groups
    with pytest.raises(Refused) as caught:
        tpcompile.compile(path, 2)
    assert str(caught.value) == (
        f"TP213 weight table and 5 more: its data file is missing: {tmp_path / 'w.bin'}. "
        "Put the file there: it belongs to the model"
    )
    assert [found.name for found in tmp_path.iterdir()] == ["m.onnx"]


def test_the_source_is_not_touched(tmp_path: Path) -> None:
    path = saved(tmp_path)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    tpcompile.compile(path, 4, tmp_path / "b")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    given = model(TWO_LAYERS)
    kept = given.SerializeToString(deterministic=True)
    tpcompile.compile(given, 4, tmp_path / "c")
    assert given.SerializeToString(deterministic=True) == kept


def test_pins_as_mapping_or_pairs(tmp_path: Path) -> None:
    mapping = tpcompile.plan(model(TWO_LAYERS), 2, pins={"head": "row"}).plan
    pairs = tpcompile.plan(model(TWO_LAYERS), 2, pins=[("head", "row")]).plan
    assert mapping.groups == pairs.groups


def test_at_most_a_dozen_public_names() -> None:
    assert len(tpcompile.__all__) <= 12
    assert all(getattr(tpcompile, name) for name in tpcompile.__all__)
    with pytest.raises(AttributeError, match="module 'tpcompile' has no attribute 'unknown'"):
        _ = tpcompile.unknown  # type: ignore[attr-defined]


def test_calls_that_share_their_name_with_a_folder_stay_calls() -> None:
    """In a fresh interpreter, before and after the folders `plan` and `verify` are imported."""
    code = (
        "import tpcompile; first = tpcompile.plan; import tpcompile.plan.cost, tpcompile.verify.command as command; "
        "from tpcompile.plan.cost import Prices; assert tpcompile.plan.cost.Prices is Prices; "
        "assert callable(first) and callable(tpcompile.plan) and callable(tpcompile.verify) and command; "
        "tpcompile.plan('no.onnx', 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == (
        "tpcompile.errors.Refused: TP201 no.onnx: there is no such file. Give the path of an .onnx file"
    )


def test_a_size_that_only_operators_tell_is_in_the_bundle(tmp_path: Path) -> None:
    """Some exporters leave the size of a head open in caches; who starts with empty ones must know it."""
    source = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        g (float[b, s, 8] x, float[b, 2, past_sequence_length, d] past_key,
           float[b, 2, past_sequence_length, d] past_value, int32[b] last, int32 all)
        => (float[b, s, 8] y, float[b, 2, t, d] present_key, float[b, 2, t, d] present_value)
        { q = MatMul(x, w)
          y, present_key, present_value = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2>
            (q, x, x, past_key, past_value, last, all) }"""
    )
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "w"))
    assert tpcompile.compile(source, 2, tmp_path / "b").manifest.sizes == {"d": 4}
