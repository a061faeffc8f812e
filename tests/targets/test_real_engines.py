"""Engines of real rank files, built here: TensorRT for RTX parses and builds without a GPU."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import zoo
from tests.run import handmade
from tpcompile import api
from tpcompile.bundle.manifest import Manifest, ShapeRange
from tpcompile.cli import main
from tpcompile.errors import Refused
from tpcompile.targets.collectives import Collective, make_collective, read_collective
from tpcompile.targets.known_sizes import leave_out_single
from tpcompile.targets.network import Network, Said, listen, plain
from tpcompile.targets.profiles import Candidate

trt: Any = pytest.importorskip("tensorrt_rtx", reason="builds engines: pip install 'tpcompile[rtx]'")


def build(folder: Path, **options: Any) -> api.Bundle:
    made = api.load(folder).build_engines("tensorrt-rtx", **options)
    check(made)
    return made


def check(made: api.Bundle) -> None:
    """Every rank has the engine that bundle.json tells of, with all of its collectives."""
    assert made.manifest == Manifest.read(made.folder)
    for entry in made.manifest.ranks:
        (engine,) = entry.engines
        content = (made.folder / engine.file).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (engine.bytes, engine.sha256)
        assert engine.collectives == len(made.manifest.collectives) > 0
        assert (engine.version, engine.compute_capability) == (trt.__version__, "8.0, 8.6, 8.9, 12.0")
    assert not [path.name for path in made.folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("graph", "tp"), [("llama__dynamo__kv", 2), ("gpt2__legacy__kv", 3), ("vit__dynamo", 4)])
def test_exporters_graphs(graph: str, tp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and built in one go, from another folder than that of the weights."""
    source = zoo.save(graph, tmp_path / "model.onnx")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    check(api.compile(source, tp, os.path.relpath(tmp_path / "out"), engine="tensorrt-rtx"))


def test_a_handmade_decoder_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = handmade.decoder(tmp_path / "b", 2)[0]
    words = ["engine", str(folder), "--engine", "tensorrt-rtx", "--profile", "ids=1x1:1x4:2x8", "--collective-boundary"]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"engines: tensorrt_rtx {trt.__version__} for compute capability 8.0, 8.6, 8.9, 12.0, float32" in shown
    assert "for ids=1x1:1x4:2x8 and" in shown
    made = api.load(folder)
    check(made)
    (profile,) = made.manifest.ranks[1].engines[0].profiles
    assert profile["ids"] == ShapeRange((1, 1), (1, 4), (2, 8))
    assert profile["past_k"].max[:2] == (2, 2)  # two of four heads
    assert main(["inspect", str(folder)]) == 0
    assert f"engines: tensorrt_rtx {trt.__version__}" in capsys.readouterr().out


def test_a_model_with_room_for_few_tokens(tmp_path: Path) -> None:
    """A table of 40 positions, added without a lookup: the engine takes no more, and says so."""
    shape = ["batch", "seq", 8]
    table = onnx.numpy_helper.from_array(np.ones((40, 8), np.float32), "table")
    constants = {"zero": [0], "one": [1], "axis": [0]}
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Slice", ["table", "zero", "n", "axis"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["y"]),
    ]
    weights = [table] + [onnx.numpy_helper.from_array(np.array(v, np.int64), k) for k, v in constants.items()]
    weights += [
        onnx.numpy_helper.from_array(np.ones(dims, np.float32), k) for k, dims in (("w", (8, 24)), ("v", (24, 8)))
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], weights,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    made = api.compile(tmp_path / "m.onnx", 2, tmp_path / "out", engine="tensorrt-rtx")
    check(made)
    assert made.manifest.ranks[0].engines[0].profiles[0]["x"].max == (4, 32, 8)
    assert made.warnings[-1] == (
        "the model has no room for longer inputs: engines take at most x [4, 32, 8] (see --profile)"
    )
    with pytest.raises(Refused) as caught:
        build(tmp_path / "out", profiles={"x": ((1, 1, 8), (1, 64, 8), (1, 64, 8))})
    assert str(caught.value).startswith("TP709 ranks 0, 1: TensorRT builds no engine: ")
    assert str(caught.value).endswith(". Give sizes that the model takes, with --sizes or --profile")
    check(api.load(tmp_path / "out"))


def test_messages_lose_the_places_in_the_librarys_sources() -> None:
    said = {
        "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([myelin_graph.h:1295: attachExceptionMsgToGraph] "
        "MyelinCheckException: utils.cpp:3613: CHECK(i < op->input_size()) failed.  In compile at /_src/c.c:7)":
        "Myelin MyelinCheckException: CHECK(i < op->input_size()) failed",
        "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (IElementWiseLayer /Add_1: broadcast dims "
        "must be conformable In op at /_src/shape/shapeContext.cpp:2699 In analyzeShapes at /_src/g.cpp:2825)":
        "API Usage Error (IElementWiseLayer /Add_1: broadcast dims must be conformable",
        "x" * 400: "x" * 299 + "…",
    }  # fmt: skip
    assert {text: plain(text) for text in said} == said


def parsed(path: Path) -> Network:
    said = Said()
    return Network(trt, listen(trt, said, lambda name, operator: None), said, path, {})


def saved(path: Path, nodes: list[onnx.NodeProto], kind: int = TensorProto.FLOAT) -> Path:
    """A model from x to y, both [4, 8], with a weight w."""
    weight = onnx.numpy_helper.from_array(np.ones((8, 8), helper.tensor_dtype_to_np_dtype(kind)), "w")
    infos = [helper.make_tensor_value_info(name, kind, [4, 8]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [weight])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tpcompile", 1), helper.make_opsetid("custom", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def reduced(name: str = "sum") -> list[onnx.NodeProto]:
    return [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        make_collective("all_reduce", "p", "r", nb_rank=2, reduce_op="sum", name=name),
        helper.make_node("Relu", ["r"], ["y"], name="relu"),
    ]


def test_float16_stays_float16(tmp_path: Path) -> None:
    network = parsed(saved(tmp_path / "m.onnx", reduced(), TensorProto.FLOAT16)).network
    layers = [network.get_layer(at) for at in range(network.num_layers)]
    assert {layer.get_output(0).dtype for layer in layers} == {trt.float16}
    assert network.get_flag(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def test_collectives_are_held_against_the_file(tmp_path: Path) -> None:
    network = parsed(saved(tmp_path / "m.onnx", reduced()))
    held = Collective("all_reduce", "p", "r", "sum", 2, (), "sum")
    network.check_collectives([held])
    remedy = "Report this with the model: such an engine gives wrong numbers"
    found = "the network one over 2 ranks that makes 4 of 4 rows"
    for expected, text in (
        ([replace(held, nb_rank=4)], f"collective sum: the file has all_reduce over 4 ranks, {found}"),
        (
            [replace(held, op="all_gather")],
            f"collective sum: the file has all_gather over 2 ranks, {found}",
        ),
        ([held, replace(held, name="lost")], "collective lost: the file has all_reduce over 2 ranks, the network none"),
        ([], f"collective sum: the file has none, {found}"),
    ):
        with pytest.raises(Refused) as caught:
            network.check_collectives(expected)
        assert str(caught.value) == f"TP708 {text}. {remedy}"


@pytest.mark.parametrize("groups", [(), (2, 5)])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_every_collective_as_it_is_written_is_read(op: str, groups: tuple[int, ...], tmp_path: Path) -> None:
    root = -1 if op != "broadcast" else groups[0] if groups else 0
    reduce_op = "sum" if op in ("all_reduce", "reduce_scatter") else "none"
    node = make_collective(op, "x", "r", nb_rank=2, groups=groups, reduce_op=reduce_op, root=root, name="call")
    network = parsed(saved(tmp_path / "m.onnx", [node, helper.make_node("Relu", ["r"], ["y"])]))
    network.check_collectives([read_collective(node)])


@pytest.mark.parametrize(("groups", "size"), [((), 2), ((0, 1), 0)])
def test_the_size_of_a_group_is_told_exactly_where_there_is_one(
    groups: tuple[int, ...], size: int, tmp_path: Path
) -> None:
    """TensorRT says so too; that a size is wrong but not 0, only we do (TP461)."""
    node = reduced()[1]
    node.attribute.remove(next(entry for entry in node.attribute if entry.name == "groups"))
    node.attribute.append(helper.make_attribute("groups", groups, attr_type=onnx.AttributeProto.INTS))
    next(entry for entry in node.attribute if entry.name == "group_size").i = size
    with pytest.raises(Refused, match=r"TP707 node sum .*Group size must be"):
        parsed(saved(tmp_path / "m.onnx", [reduced()[0], node, reduced()[2]]))


def test_a_collective_over_one_rank_is_left_out(tmp_path: Path) -> None:
    graph = onnx.load(saved(tmp_path / "m.onnx", reduced())).graph
    next(entry for entry in graph.node[1].attribute if entry.name == "nb_rank").i = 1
    leave_out_single(graph)
    assert [node.op_type for node in graph.node] == ["MatMul", "Identity", "Relu"]
    assert (graph.node[1].input, graph.node[1].output) == (["p"], ["r"])


def test_j1_a_boundary_keeps_what_a_collective_reads_and_gives(tmp_path: Path) -> None:
    network = parsed(saved(tmp_path / "m.onnx", reduced()))
    network.keep_collectives_apart()
    layers = [network.network.get_layer(at) for at in range(network.layers)]
    kept = {layer.get_output(0).name for layer in layers if network.network.is_debug_tensor(layer.get_output(0))}
    assert kept == {"p", "r"}
    assert network.build([Candidate((), 8)]).engine is not None


def test_nodes_that_tensorrt_does_not_take_are_told_together(tmp_path: Path) -> None:
    nodes = [helper.make_node("Strange", ["x"], ["a"], name="one", domain="custom"),
             helper.make_node("Strange", ["a"], ["b"], name="two", domain="custom"),
             helper.make_node("Stranger", ["b"], ["y"], name="three", domain="custom")]  # fmt: skip
    with pytest.raises(Refused) as caught:
        parsed(saved(tmp_path / "m.onnx", nodes))
    without = (
        "TensorRT does not take it: it has no such operator. Export the model without this operator or in another form "
        "of it, or run the bundle without an engine (ONNX Runtime, on GPUs too)"
    )
    assert str(caught.value).splitlines() == [
        f"TP707 node one and 1 more (Strange): {without}",
        f"TP707 node three (Stranger): {without}",
    ]


def test_float64_is_not_taken_for_float32(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 10, opset_import: ["": 17]>
    g (double[batch, 8] x) => (double[batch, 8] y) { a = MatMul(x, v)  b = Relu(a)  y = MatMul(b, w) }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    for name, shape in (("v", (8, 32)), ("w", (32, 8))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape), name))
    onnx.save(model, tmp_path / "m.onnx")
    words = [str(tmp_path / "m.onnx"), "--tp", "2", "-o", str(tmp_path / "my b"), "--engine", "tensorrt-rtx"]
    assert main(words) != 0
    why = "TensorRT has no float64, and takes it for float32. Cast it to float32 in the model, or run the bundle"
    told = capsys.readouterr().err
    assert f"TP707 ranks 0, 1, input x: {why} without an engine" in told
    assert f"TP707 ranks 0, 1, output y: {why} without an engine" in told
    assert not (tmp_path / "my b").exists()
    assert main(words[:-2]) == 0
    assert f"tpcompile run '{tmp_path / 'my b'}' --inputs" in capsys.readouterr().out


def test_layers_of_a_collective_come_in_order(tmp_path: Path) -> None:
    """As in the file: ranks whose collectives stand in different orders wait for each other for ever."""
    bundle = api.compile(zoo.save("llama-odd__legacy", tmp_path / "m.onnx"), 2, tmp_path / "out")
    network = parsed(bundle.folder / bundle.manifest.ranks[0].model)
    names = [layer.name for layer in network._collective_layers()]
    model = bundle.rank_model(0)
    assert names == [node.name for node in model.graph.node if node.op_type == "DistCollective"]
    assert Counter(names).most_common(1)[0][1] == 1


def test_a_boundary_around_a_collective_of_an_input(tmp_path: Path) -> None:
    """What the caller gives is a tensor of its own: TensorRT refuses to build where it is marked."""
    nodes = [make_collective("all_reduce", "x", "r", nb_rank=2, reduce_op="sum", name="c"),
             helper.make_node("Relu", ["r"], ["y"])]  # fmt: skip
    network = parsed(saved(tmp_path / "m.onnx", nodes))
    network.keep_collectives_apart()
    assert network.build([Candidate((), 8)]).engine is not None
