"""A plan as annotations: what they say, what stays as it was, where the file may lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import numpy_helper
from onnx_ir import _multi_device

import tpcompile
from tests import zoo
from tests.plan.models import TWO_LAYERS, attention, model
from tpcompile import api
from tpcompile.annotations.spec import read_spec
from tpcompile.cli import main
from tpcompile.errors import Refused


def annotated(source: onnx.ModelProto, tp: int, folder: Path, **wishes: Any) -> onnx.ModelProto:
    onnx.save(source, folder / "m.onnx")
    api.plan(folder / "m.onnx", tp, annotate=folder / "a.onnx", **wishes)
    return onnx.load(folder / "a.onnx")


def shown(found: onnx.ModelProto | onnx.GraphProto, tp: int = 4) -> list[str]:
    """Each node with its annotated tensors: `MatMul: x0 whole; up0 axis 1: 36 in 4; a0 axis 2: 36 in 4`."""
    lines = []
    for node in (found.graph if isinstance(found, onnx.ModelProto) else found).node:
        for entry in node.device_configurations:
            if entry.configuration_id == f"tp{tp}":
                said = [f"{spec.tensor_name} {read_spec(spec, None, tp)[0]}" for spec in entry.sharding_spec]
                lines.append(f"{node.op_type}: {'; '.join(said)}")
    return lines


def sound(found: onnx.ModelProto) -> None:
    """onnx and onnx_ir both take it."""
    onnx.checker.check_model(found, full_check=True)
    assert _multi_device._check_device_configurations(onnx_ir.from_proto(found)) == []


def test_every_node_says_how_its_operands_and_results_lie(tmp_path: Path) -> None:
    found = annotated(model(TWO_LAYERS), 4, tmp_path)
    sound(found)
    assert (found.ir_version, [(c.name, c.num_devices) for c in found.configuration]) == (11, [("tp4", 4)])
    assert shown(found) == [
        "Gather: table axis 0: 50 in 4; ids whole; x0 whole",
        "MatMul: x0 whole; up0 axis 1: 36 in 4; a0 axis 2: 36 in 4",
        "Add: a0 axis 2: 36 in 4; bias0 axis 0: 36 in 4; b0 axis 2: 36 in 4",
        "Relu: b0 axis 2: 36 in 4; c0 axis 2: 36 in 4",
        "MatMul: c0 axis 2: 36 in 4; down0 axis 0: 36 in 4; d0 whole",
        "Add: x0 whole; d0 whole; x1 whole",
        "MatMul: x1 whole; up1 axis 1: 36 in 4; a1 axis 2: 36 in 4",
        "Add: a1 axis 2: 36 in 4; bias1 axis 0: 36 in 4; b1 axis 2: 36 in 4",
        "Relu: b1 axis 2: 36 in 4; c1 axis 2: 36 in 4",
        "MatMul: c1 axis 2: 36 in 4; down1 axis 0: 36 in 4; d1 whole",
        "Add: x1 whole; d1 whole; x2 whole",
        "MatMul: x2 whole; head axis 1: 50 in 4; logits whole",
    ]


def test_nothing_else_changes(tmp_path: Path) -> None:
    source = model(TWO_LAYERS)
    found = annotated(source, 4, tmp_path)
    for node in found.graph.node:
        del node.device_configurations[:]
    del found.configuration[:]
    found.ir_version = source.ir_version
    assert found == source


def test_keys_that_some_ranks_have_alike_go_to_groups_of_devices(tmp_path: Path) -> None:
    found = annotated(attention(8, 2), 4, tmp_path)
    sound(found)
    entries = {
        spec.tensor_name: spec for node in found.graph.node for spec in node.device_configurations[0].sharding_spec
    }
    groups = [(group.key, list(group.value)) for group in entries["k"].index_to_device_group_map]
    assert groups == [(-1, [0, 1]), (-2, [2, 3])]
    assert list(entries["q"].device) == [0, 1, 2, 3]


BRANCHES = """(bool wide, float[batch, 8] x) => (float[batch, 8] y)
<float[8, 24] up, float[24, 8] down, float[24] bias>
{ a = MatMul(x, up)
  b = If (wide) <then_branch = one () => (float[batch, 24] t) { t = Relu(a) },
                 else_branch = two () => (float[batch, 24] e) { s = Add(a, bias)  e = Neg(s) }>
  y = MatMul(b, down) }"""

LOOP = """(int64 times, float[batch, 8] x) => (float[batch, 8] y)
<float[8, 24] up, float[24, 8] down, bool go = {1}>
{ b = Loop(times, go, x) <body = once (int64 k, bool c, float[batch, 8] v) => (bool d, float[batch, 8] w)
                          { d = Identity(c)  w = Relu(v) }>
  a = MatMul(b, up)  y = MatMul(a, down) }"""


def bodies(found: onnx.ModelProto) -> list[str]:
    attributes = [attribute for node in found.graph.node for attribute in node.attribute]
    return [line for a in attributes if a.type == onnx.AttributeProto.GRAPH for line in shown(a.g, 2)]


def test_the_branches_of_an_if_are_annotated_as_they_run(tmp_path: Path) -> None:
    found = annotated(model(BRANCHES), 2, tmp_path)
    sound(found)
    assert bodies(found) == [
        "Relu: a axis 1: 24 in 2; t axis 1: 24 in 2",
        "Add: a axis 1: 24 in 2; bias axis 0: 24 in 2; s axis 1: 24 in 2",
        "Neg: s axis 1: 24 in 2; e axis 1: 24 in 2",
    ]


def test_the_body_of_a_loop_is_whole_on_every_device(tmp_path: Path) -> None:
    found = annotated(model(LOOP), 2, tmp_path)
    sound(found)
    assert bodies(found) == ["Identity: c whole; d whole", "Relu: v whole; w whole"]


FUSED = """(float[batch, 8] x) => (float[batch, 8] y)
<float[8, 24] both, float[12, 8] down, float[6, 8] narrow, int64[3] parts = {12, 6, 6}>
{ a = MatMul(x, both)  b, c, d = Split<axis = 1>(a, parts)  e = Relu(b)  f = Mul(c, d)
  g = MatMul(e, down)  h = MatMul(f, narrow)  y = Add(g, h) }"""


def test_what_has_no_words_is_left_out_and_told(tmp_path: Path) -> None:
    onnx.save(model(FUSED), tmp_path / "m.onnx")
    work = api.plan(tmp_path / "m.onnx", 2, annotate=tmp_path / "a.onnx")
    assert work.warnings[-2:] == [
        "a.onnx: 7 nodes and 16 tensors annotated, as configuration 'tp2'",
        "a.onnx: annotations have no words for how 5 tensors are cut, and say nothing of them: both of MatMul a "
        "(it is 12 | 6 | 6, one after the other, each cut for itself) and others",
    ]
    found = onnx.load(tmp_path / "a.onnx")
    sound(found)
    assert shown(found, 2)[0] == "MatMul: x whole"


def test_one_model_may_be_annotated_for_several_numbers_of_devices(tmp_path: Path) -> None:
    once = annotated(model(TWO_LAYERS), 4, tmp_path)
    (tmp_path / "a.onnx").unlink()
    twice = annotated(once, 2, tmp_path, annotations="ignore")
    (tmp_path / "a.onnx").unlink()
    again = annotated(twice, 4, tmp_path)
    assert [found.name for found in again.configuration] == ["tp2", "tp4"]
    assert shown(again) == shown(once)
    assert len(shown(again, 2)) == len(shown(once))


def test_weights_in_other_files_stay_there(tmp_path: Path) -> None:
    source = model(TWO_LAYERS)
    onnx.save(source, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    before = sorted(path.name for path in tmp_path.iterdir())
    api.plan(tmp_path / "m.onnx", 4, annotate=tmp_path / "a.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", *before]
    found = onnx.load(tmp_path / "a.onnx")
    for mine, theirs in zip(found.graph.initializer, model(TWO_LAYERS).graph.initializer, strict=True):
        assert np.array_equal(numpy_helper.to_array(mine), numpy_helper.to_array(theirs))


def test_compile_writes_it_beside_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    code = main([str(tmp_path / "m.onnx"), "--tp", "2", "--annotate", str(tmp_path / "a.onnx")])
    assert (code, (tmp_path / "m.tp2" / "bundle.json").exists()) == (0, True)
    assert len(shown(onnx.load(tmp_path / "a.onnx"), 2)) == 12
    assert "a.onnx: 12 nodes and 34 tensors annotated, as configuration 'tp2'" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize("name", zoo.names())
def test_real_graphs_are_sound_when_annotated(name: str) -> None:
    work = api.plan(zoo.model(name), 3)
    found = api.write_annotations(work.source.proto, work.analysis, work.plan.cut, work.cut_doors)
    assert _multi_device._check_device_configurations(onnx_ir.from_proto(found.model)) == []
    onnx.checker.check_model(found.model)
    assert not found.left_out


def test_the_files_of_ranks_have_none(tmp_path: Path) -> None:
    """They would say of one rank's part how it lies on all."""
    annotated(model(LOOP), 2, tmp_path)
    bundle = tpcompile.compile(tmp_path / "a.onnx", 2, tmp_path / "b")
    for rank in range(2):
        part = bundle.rank_model(rank)
        assert not part.configuration
        assert (shown(part, 2), bodies(part)) == ([], [])
        assert "device_configurations" not in str(part)


# -- refusals --------------------------------------------------------


def refusal(tmp_path: Path, out: Path, source: Any = None, **wishes: Any) -> str:
    with pytest.raises(Refused) as told:
        api.plan(tmp_path / "m.onnx" if source is None else source, 2, annotate=out, **wishes)
    return str(told.value)


@pytest.fixture
def external(tmp_path: Path) -> Path:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return tmp_path


def test_it_must_lie_beside_weights_that_it_names(external: Path) -> None:
    (external / "else").mkdir()
    out = external / "else" / "a.onnx"
    assert refusal(external, out) == (
        f"TP160 --annotate {out}: it would name weights that lie beside the model (m.data), and lie elsewhere itself. "
        f"Write it beside the model: --annotate {external / 'a.onnx'}"
    )
    assert not list((external / "else").iterdir())


def test_it_replaces_no_file_of_the_model(external: Path) -> None:
    for name in ("m.onnx", "m.data"):
        assert refusal(external, external / name) == (
            f"TP160 --annotate {external / name}: it is a file of the model itself. Choose another name"
        )


def test_it_replaces_nothing_unasked(external: Path) -> None:
    out = external / "a.onnx"
    out.write_text("mine")
    assert refusal(external, out) == f"TP160 --annotate {out}: it is there already. Remove it, or choose another name"
    assert out.read_text() == "mine"
    tpcompile.compile(external / "m.onnx", 2, annotate=out, force=True)
    assert onnx.load(out, load_external_data=False).configuration[0].name == "tp2"


def test_its_folder_must_be_there(external: Path) -> None:
    out = external / "no" / "a.onnx"
    assert refusal(external, out) == f"TP160 --annotate {out}: there is no such folder. Make it, or choose another"


def test_weights_in_memory_cannot_be_named(tmp_path: Path) -> None:
    large = model("(float[batch, 40] x) => (float[batch, 40] y) <float[40, 40] w> { y = MatMul(x, w) }")
    out = tmp_path / "a.onnx"
    assert refusal(tmp_path, out, onnx_ir.from_proto(large)) == (
        f"TP160 --annotate {out}: the model's weights are in memory, and the annotated file would name them. "
        "Save the model with its weights first, and give its path"
    )


def test_one_file_holds_one_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model(TWO_LAYERS), tmp_path / "m.onnx")
    assert main(["plan", str(tmp_path / "m.onnx"), "--tp", "2,4", "--annotate", "a.onnx"]) == 2
    assert (
        capsys.readouterr().err
        == "TP160 --annotate a.onnx: it holds one plan, and --tp asks for several. Give one --tp\n"
    )
