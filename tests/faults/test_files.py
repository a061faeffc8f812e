"""Files written twice, models over 2 GB, data of a model that is opened from elsewhere (docs/faults.md, section L)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tpcompile
from tests.faults.ranks import model, stored
from tpcompile.errors import Refused

MLP = """(float[B, 50] x) => (float[B, 7] y) <float[50, 120] w_1, float[120] b_1, float[120, 7] w_2>
{ m = MatMul(x, w_1) a = Add(m, b_1) r = Relu(a) y = MatMul(r, w_2) }"""


def test_l1_compiling_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for force in (False, True):
        bundle = tpcompile.compile(model(MLP), 2, out=tmp_path / "bundle", objective="memory", force=force)
        contents.append({path.name: path.read_bytes() for path in bundle.folder.iterdir()})
    assert contents[0] == contents[1]
    with pytest.raises(Refused):
        tpcompile.compile(model(MLP), 2, out=tmp_path / "bundle", objective="memory")
    assert {path.name: path.read_bytes() for path in (tmp_path / "bundle").iterdir()} == contents[0]


def test_l3_a_model_over_two_gigabytes_is_planned_from_its_path(tmp_path: Path) -> None:
    """3.2 GB of weights in a file with holes: nothing but the graph is read."""
    rows, width = 400_000, 1000
    nbytes = 4 * rows * width
    weights = [TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims) for name, dims in
               (("table", [rows, width]), ("head", [width, rows]))]  # fmt: skip
    for k, tensor in enumerate(weights):
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "m.data"), ("offset", k * nbytes), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["e"]), helper.make_node("MatMul", ["e", "head"], ["logits"])],
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "S"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", "S", rows])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    with (tmp_path / "m.data").open("wb") as data:
        os.truncate(data.fileno(), 2 * nbytes)
        data.write(np.arange(4, dtype=np.float32).tobytes())  # else the head would be the table transposed
    work = tpcompile.plan(tmp_path / "m.onnx", 4)
    cut = {weight: group.blocks for group in work.plan.groups if group.axes for weight in group.weights}
    assert cut == {"table[0]": (100_000,) * 4, "head[1]": (100_000,) * 4}


def test_l4_data_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto, home, away = model(MLP), tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    onnx.save(proto, home / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    monkeypatch.chdir(away)
    bundle = tpcompile.compile(Path("../home/m.onnx"), 2, out=Path("../bundle"), objective="memory")
    monkeypatch.chdir(home)
    for rank, entry in enumerate(bundle.manifest.ranks):
        path = (tmp_path / "bundle" / entry.model).absolute()
        assert np.array_equal(stored(onnx.load(path), "w_1"), stored(proto, "w_1")[:, 60 * rank : 60 * rank + 60])
        held = onnx.load(path, load_external_data=False)
        if not any(node.op_type == "DistCollective" for node in held.graph.node):
            onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert list(away.iterdir()) == []
