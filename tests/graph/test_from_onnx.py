"""An ONNX model as the neutral program."""

from __future__ import annotations

import time

import numpy as np
import onnx
from onnx import AttributeProto

from tests.graph.models import EVERYTHING, HEADER, PLAIN, WEIGHT, model, source
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.program import Program, Value
from tpcompile.graph.read import SourceModel, checked
from tpcompile.weights.source import MemoryBytes


def test_a_plain_model() -> None:
    program = to_program(source(PLAIN))
    (node,) = program.nodes
    x, w, y = (program.values[name] for name in "xwy")
    assert (node.op, node.domain, node.name, node.version) == ("MatMul", "", "mm", 20)
    assert (node.inputs, node.outputs) == ([x, w], [y])
    assert (program.inputs, program.outputs, program.weights) == ([x], [y], [w])
    assert (x.dtype, x.shape) == ("float32", ("B", 4))
    assert (w.dtype, w.shape, y.shape) == ("float32", (4, 3), ("B", 3))
    assert w.weight is not None
    assert isinstance(w.weight.source, MemoryBytes)
    assert bytes(w.weight.source.data) == WEIGHT.tobytes()
    assert (y.producer, y.index, x.producer) == (node, 0, None)
    assert (x.consumers, w.consumers, y.consumers) == ([(node, 0)], [(node, 1)], [])
    assert node.origin.op_type == "MatMul"
    assert program.opsets == {"": 20}


def test_what_a_file_says_of_inner_values_is_not_believed() -> None:
    proto = model("g (float[2] x) => (float[2] y) { m = Relu(x) y = Neg(m) }")
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("m", 1, [77]))
    value = to_program(SourceModel(proto, None, "m", 0)).values["m"]
    assert (value.dtype, value.shape) == (None, None)


def test_axes_are_spelled_as_in_the_source() -> None:
    proto = model(
        'g (float[B, 16, "16", ?] x, float z, float[] r) => (float y) { y = Foo(x, z, r) }'.replace('"16"', "N")
    )
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "16"
    proto.graph.input[0].type.tensor_type.shape.dim.add().dim_value = -1
    proto.graph.input[2].type.tensor_type.ClearField("shape")
    program = to_program(SourceModel(proto, None, "m", 0))
    assert program.values["x"].shape == ("B", 16, "16", None, None)
    assert program.values["r"].shape is None


def test_optional_inputs_and_outputs() -> None:
    program = to_program(source("g (float[2] x) => (float[2] z) { [a] y, , z = Foo(x, , x) }"))
    x = program.values["x"]
    node = program.nodes[0]
    assert [value and value.name for value in node.inputs] == ["x", None, "x"]
    assert [value and value.name for value in node.outputs] == ["y", None, "z"]
    assert x.consumers == [(node, 0), (node, 2)]


def test_domains_and_versions() -> None:
    header = '<ir_version: 10, opset_import: ["ai.onnx" : 20, "com.microsoft" : 1]>'
    text = "g (float[2] x) => (float[2] y) { m = ai.onnx.Relu(x) y = com.microsoft.Gelu(m) }"
    program = to_program(source(text, header))
    assert [(node.op, node.domain, node.version) for node in program.nodes] == [
        ("Relu", "", 20),
        ("Gelu", "com.microsoft", 1),
    ]
    assert program.opsets == {"": 20, "com.microsoft": 1}


def test_attributes_are_plain_values() -> None:
    text = """g (float[2] x) => (float[2] y) {
      y = Foo <i = 3, f = 1.5, s = "text", ints = [1, -2], floats = [1.5, -2.5], strings = ["a", "b"],
               t = float[2] {1, -2}> (x)
    }"""
    proto = model(text)
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("none", [], attr_type=AttributeProto.INTS))
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("blob", b"\xff\xfe"))
    words = onnx.TensorProto(data_type=onnx.TensorProto.STRING, dims=[2], string_data=[b"a", b"\xff"])
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("words", words))
    node = to_program(checked(proto, folder=None, file="m", own_bytes=None)).nodes[0]
    tensor, words_array = node.attribute("t"), node.attribute("words")
    assert (tensor.dtype, tensor.tolist()) == (np.float32, [1, -2])
    assert words_array.tolist() == [b"a", b"\xff"]
    rest = {name: value for name, value in node.attributes.items() if name not in ("t", "words")}
    assert rest == {
        "i": 3,
        "f": 1.5,
        "s": "text",
        "ints": [1, -2],
        "floats": [1.5, -2.5],
        "strings": ["a", "b"],
        "none": [],
        "blob": b"\xff\xfe",
    }
    assert node.attribute("absent", 7) == 7


def test_branches_of_an_if_are_nodes_of_the_program() -> None:
    program = to_program(source(EVERYTHING, ""))
    node = program.nodes[-1]
    assert node.op == "If"
    assert [value.name for value in node.inputs if value is not None] == ["c", "p", "r"]
    assert [value.region for value in node.inputs if value is not None] == [None, *node.regions]
    assert node.attributes == {}


def test_values_that_a_body_captures() -> None:
    text = """g (float[2] x, int64 n, bool c) => (float[2] y) {
      [a] a = Abs(x)
      [loop] y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w)
        <float[2] ww = {1, -2}> { on = Identity(go) s = Add(v, a) w = Mul(s, ww) }>
    }"""
    program = to_program(source(text))
    node = program.nodes[-1]
    assert [value.name for value in node.captured] == ["a", "ww"]
    assert isinstance(node.attribute("body"), onnx.GraphProto)
    assert node.captured[0] is program.values["a"]


def test_an_output_that_is_an_input_or_a_weight() -> None:
    text = "g (float[N] x) => (float[2] x, float[2] c) { c = Constant <value = float[2] {1, -2}> () }"
    program = to_program(source(text))
    assert program.nodes == []
    assert program.outputs == [program.values["x"], program.values["c"]]
    assert program.values["x"].shape == ("N",)
    assert program.values["c"].weight is not None


def layers(count: int) -> onnx.ModelProto:
    """A deep model of 9 nodes a layer."""
    body = []
    for k in range(count):
        body.append(
            f"a{k} = Relu(x{k}) i{k} = Identity(a{k}) c{k} = Constant <value_ints = [0, 0, 4, 5]> ()"
            f" r{k} = Reshape(i{k}, c{k}) t{k} = Transpose <perm = [0, 2, 1, 3]> (r{k}) n{k} = Neg(t{k})"
            f" s{k} = Add(n{k}, n{k}) u{k} = Abs(s{k}) x{k + 1} = Mul(u{k}, u{k})"
        )
    return model(f"g (float[B, S, 4, 5] x0) => (float[] x{count}) {{ {' '.join(body)} }}", HEADER)


def seconds(proto: onnx.ModelProto) -> float:
    start = time.process_time()
    program = to_program(checked(proto, folder=None, file="m", own_bytes=None))
    assert linked(program)
    return time.process_time() - start


def linked(program: Program) -> bool:
    """Whether each use is listed at the value, and each value after its producer."""
    seen: set[Value] = {*program.inputs, *program.weights}
    for node in program.nodes:
        for position, value in enumerate(node.inputs):
            if value is not None and ((node, position) not in value.consumers or value not in seen):
                return False
        seen.update(value for value in node.outputs if value is not None)
    return True


def test_time_grows_with_the_nodes() -> None:
    small, large = layers(200), layers(2000)  # 1,800 and 18,000 nodes
    seconds(small)  # schemas are looked up once
    assert seconds(large) < 20 * min(seconds(small), seconds(small)) + 0.5
