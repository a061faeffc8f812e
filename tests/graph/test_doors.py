"""The kinds of model that come in, and rank models handed back in the same kinds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest

from tests.graph.models import PLAIN, WEIGHT, model, save_outside
from tpcompile.errors import Refused
from tpcompile.graph.doors import open_model, to_kind
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.read import SourceModel
from tpcompile.weights.source import FileBytes, MemoryBytes

LARGE = np.random.default_rng(7).standard_normal((40, 30), dtype=np.float32)


def large() -> onnx.ModelProto:
    """A model with a weight over a kilobyte."""
    proto = model("g (float[B, 40] x) => (float[B, 30] y) { [mm] y = MatMul(x, w) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(LARGE, "w"))
    return proto


def data(source: SourceModel, name: str = "w") -> bytes:
    """The bytes of a weight that the program's own description leads to."""
    weight = to_program(source).values[name].weight
    assert weight is not None
    if isinstance(weight.source, MemoryBytes):
        return bytes(weight.source.data)
    with weight.source.path.open("rb") as stream:
        stream.seek(weight.source.offset)
        found: bytes = stream.read(weight.source.nbytes)
        return found


def refusal(given: object, **arguments: object) -> str:
    with pytest.raises(Refused) as caught:
        open_model(given, **arguments)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_path(tmp_path: Path) -> None:
    path = save_outside(tmp_path)
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    for given in (path, str(path)):
        assert data(open_model(given)) == WEIGHT.tobytes()
    (tmp_path / "w.bin").unlink()
    assert open_model(path, require_data=False).external == {"w": FileBytes(tmp_path / "w.bin", 0, 48)}


def test_links_are_allowed_through_the_door(tmp_path: Path) -> None:
    path = save_outside(tmp_path)
    (tmp_path / "blob").write_bytes(WEIGHT.tobytes())
    (tmp_path / "w.bin").symlink_to("blob")
    assert refusal(path).startswith("TP212 weight w: ")
    assert data(open_model(path, allow_links=True)) == WEIGHT.tobytes()


def test_a_model_proto_is_left_as_it_is() -> None:
    proto = large()
    before = proto.SerializeToString()
    source = open_model(proto)
    assert (source.file, source.folder, source.nbytes) == ("the ModelProto", None, 4800)
    assert data(source) == LARGE.tobytes()
    assert proto.SerializeToString() == before


def test_a_model_proto_that_names_files(tmp_path: Path) -> None:
    proto = onnx.load(save_outside(tmp_path), load_external_data=False)
    expected = (
        "TP231 weight w: its data lies in a file, and a model given as an object does not know in which folder. "
        "Give the path of the model, or load its data first (onnx.load does)"
    )
    assert refusal(proto) == expected


def test_an_onnx_ir_model_keeps_its_tensors_in_place() -> None:
    given = onnx_ir.from_proto(large())
    array = given.graph.initializers["w"].const_value = onnx_ir.tensor(LARGE, name="w")
    source = open_model(given)
    assert (source.file, source.nbytes) == ("the onnx_ir.Model", 4800)
    weight = to_program(source).values["w"].weight
    assert weight is not None
    assert isinstance(weight.source, MemoryBytes)
    assert np.shares_memory(np.frombuffer(weight.source.data, np.float32), LARGE)
    assert given.graph.initializers["w"].const_value is array


def test_small_and_packed_tensors_of_an_onnx_ir_model() -> None:
    proto = model(PLAIN)
    packed = onnx.helper.make_tensor("q", onnx.TensorProto.INT4, [3001], np.arange(3001) % 15 - 7)
    proto.graph.initializer.append(packed)
    proto.graph.node.append(onnx.helper.make_node("Foo", ["y", "q"], ["z"]))
    proto.graph.output[0].name = "z"
    source = open_model(onnx_ir.from_proto(proto))
    assert data(source, "w") == WEIGHT.tobytes()
    assert data(source, "q") == data(open_model(proto), "q")
    assert len(data(source, "q")) == 1501


def test_an_onnx_ir_model_that_names_files(tmp_path: Path) -> None:
    path = save_outside(tmp_path)
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    source = open_model(onnx_ir.load(path))
    assert (source.folder, source.external) == (tmp_path, {"w": FileBytes(tmp_path / "w.bin", 0, 48)})
    (tmp_path / "w.bin").unlink()
    assert refusal(onnx_ir.load(path)).startswith("TP213 weight w: its data file is missing: ")


def test_an_onnx_ir_model_of_several_folders(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] v = {1, 2}, float[2] w = {1, 2}> { a = Add(x, v) y = Add(a, w) }"
    given = onnx_ir.from_proto(model(text))
    for name, value in given.graph.initializers.items():
        value.const_value = onnx_ir.ExternalTensor(
            "f", 0, 8, onnx_ir.DataType.FLOAT, shape=onnx_ir.Shape([2]), name=name, base_dir=tmp_path / name
        )
    expected = (
        f"TP231 the onnx_ir.Model: its weights lie in files of 2 folders: {tmp_path}/v, {tmp_path}/w. "
        "Save the model to one folder and give its path"
    )
    assert refusal(given) == expected


def test_an_unsound_onnx_ir_model() -> None:
    given = onnx_ir.from_proto(model("g (float[2] x) => (float[2] y) { [n] y = Add(x, nowhere) }"))
    text = refusal(given)
    assert text.startswith("TP231 the onnx_ir.Model: onnx_ir cannot write it: ValueError: Value '%\"nowhere\"<?,?>'")
    assert text.endswith(". Check it with onnx_ir.passes.common.CheckerPass, or give a path")


def test_a_graphsurgeon_graph(tmp_path: Path) -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    source = open_model(gs.import_onnx(large()))
    assert source.file == "the onnx_graphsurgeon.Graph"
    assert data(source) == LARGE.tobytes()
    outside = gs.import_onnx(onnx.load(save_outside(tmp_path), load_external_data=False))
    assert refusal(outside).startswith("TP231 weight w: its data lies in a file, ")


def test_a_graphsurgeon_graph_whose_weights_were_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    path = save_outside(tmp_path, offset=0, length=48)
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    monkeypatch.chdir(tmp_path)
    graph = gs.import_onnx(onnx.load(path, load_external_data=False))
    graph.tensors()["w"].values = graph.tensors()["w"].values * 2
    assert data(open_model(graph)) == (WEIGHT * 2).tobytes()


def test_a_graphsurgeon_graph_that_cannot_be_exported() -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    graph = gs.import_onnx(model(PLAIN))
    graph.nodes[0].attrs["empty"] = []
    expected = (
        "TP231 the onnx_graphsurgeon.Graph: onnx_graphsurgeon cannot export it: ValueError: "
        "Could not infer attribute `empty` type from empty iterator. Give the model's path or its onnx.ModelProto"
    )
    assert refusal(graph) == expected


ACCEPTED = (
    "Give the path of an .onnx file, an onnx.ModelProto, an onnx_ir.Model, an onnx_graphsurgeon.Graph, "
    "a torch.nn.Module with example_inputs, or a torch.export.ExportedProgram"
)


@pytest.mark.parametrize(
    ("given", "name"),
    [(3, "int"), (None, "NoneType"), (b"x", "bytes"), (onnx.GraphProto(), "onnx.onnx_ml_pb2.GraphProto")],
)
def test_other_objects(given: object, name: str) -> None:
    assert refusal(given) == f"TP230 an object of type {name} is no model that tpcompile knows. {ACCEPTED}"


def test_torch_arguments_with_an_onnx_model() -> None:
    expected = (
        "TP230 example_inputs and dynamic given with an object of type onnx.onnx_ml_pb2.ModelProto. "
        "These say how to export a torch.nn.Module: leave them out here"
    )
    assert refusal(model(PLAIN), example_inputs=(1,), dynamic={}) == expected


def test_no_library_is_imported_for_a_path(tmp_path: Path) -> None:
    path = save_outside(tmp_path)
    code = (
        "import sys; from tpcompile.graph.doors import open_model; open_model(sys.argv[1], require_data=False);"
        "print({'torch', 'onnx_ir', 'onnx_graphsurgeon', 'onnxruntime'} & set(sys.modules))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")


def rank(folder: Path) -> onnx.ModelProto:
    """A rank's model with its weight in a file of the folder, and a collective with an empty list."""
    proto = large()
    proto.graph.node[0].output[0] = "part"
    node = onnx.helper.make_node("DistCollective", ["part"], ["y"], domain="tpcompile", nb_rank=2)
    node.attribute.append(onnx.helper.make_attribute("groups", [], attr_type=onnx.AttributeProto.INTS))
    proto.graph.node.append(node)
    proto.opset_import.append(onnx.helper.make_opsetid("tpcompile", 1))
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return onnx.load(folder / "m.onnx", load_external_data=False)


def test_back_as_a_proto(tmp_path: Path) -> None:
    proto = rank(tmp_path)
    assert to_kind(proto, "onnx", tmp_path) is proto


def test_back_as_an_onnx_ir_model(tmp_path: Path) -> None:
    given = to_kind(rank(tmp_path), "ir", tmp_path)
    assert isinstance(given, onnx_ir.Model)
    assert np.array_equal(given.graph.initializers["w"].const_value.numpy(), LARGE)  # type: ignore[union-attr]


def test_back_as_a_graphsurgeon_graph_that_can_be_exported(tmp_path: Path) -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    graph = to_kind(rank(tmp_path), "gs", tmp_path)
    assert np.array_equal(graph.tensors()["w"].values, LARGE)
    collective = gs.export_onnx(graph).graph.node[1]
    groups = next(attribute for attribute in collective.attribute if attribute.name == "groups")
    assert (groups.type, list(groups.ints), groups.ref_attr_name) == (onnx.AttributeProto.INTS, [], "")


def test_back_as_something_else(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        to_kind(model(PLAIN), "tf", tmp_path)  # type: ignore[arg-type]
    assert str(caught.value) == 'TP230 \'tf\' is no kind of model to hand out. Use "onnx", "ir" or "gs"'


def test_back_as_a_graph_without_graphsurgeon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_graphsurgeon", None)
    with pytest.raises(Refused) as caught:
        to_kind(model(PLAIN), "gs", tmp_path)
    assert str(caught.value) == "TP232 onnx_graphsurgeon is not installed. Run `pip install 'tpcompile[gs]'`"
