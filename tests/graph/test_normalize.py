"""Normalization, before and after, as ONNX text."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.graph.models import EVERYTHING, HEADER, model, source
from tpcompile.graph.local import LocalNode, LocalProgram
from tpcompile.graph.normalize import NormalGraph, normalize
from tpcompile.graph.read import SourceModel
from tpcompile.graph.to_onnx import GraphFiller


def shown(source: SourceModel) -> str:
    """The normalized graph in short: `[name] outputs = Op(inputs)` per node, then the names of the weights."""
    graph = normalize(source)
    lines = []
    for step in graph.steps:
        call = f"[{step.name}] {', '.join(step.outputs)} = {step.proto.op_type}({', '.join(step.inputs)})"
        lines.append(call + (f" reads {', '.join(step.captured)}" if step.captured else ""))
        assert list(step.proto.input) == step.inputs
        assert list(step.proto.output) == step.outputs
        assert step.proto.name == step.name
    return "\n".join([*lines, f"weights {', '.join(graph.weights)}"])


def after(text: str, header: str = HEADER) -> str:
    """What `text` is normalized to, its source left as it was."""
    read = source(text, header)
    before = read.proto.SerializeToString(deterministic=True)
    result = shown(read)
    assert read.proto.SerializeToString(deterministic=True) == before
    return result


def lines(text: str) -> str:
    return "\n".join(re.sub(r"\s+", " ", line.strip()) for line in text.strip().splitlines())


X = "g (float[2] x) => (float[2] y)"


def test_constants_become_weights() -> None:
    text = f"""{X} {{
      a = Constant <value = float[2] {{1, -2}}> ()
      b = Constant <value_float = 1.5> ()
      c = Constant <value_floats = [1.5, -2.5]> ()
      d = Constant <value_int = 3> ()
      e = Constant <value_ints = [4, -5]> ()
      s = Constant <value_string = "text"> ()
      [n] y = Foo(x, a, b, c, d, e, s)
    }}"""
    assert after(text) == lines("""
      [Constant_1] s = Constant()
      [n] y = Foo(x, a, b, c, d, e, s)
      weights a, b, c, d, e
    """)
    tensors = normalize(source(text)).weights
    arrays = {name: onnx.numpy_helper.to_array(tensor) for name, tensor in tensors.items()}
    assert {name: (array.dtype.name, array.tolist()) for name, array in arrays.items()} == {
        "a": ("float32", [1, -2]),
        "b": ("float32", 1.5),
        "c": ("float32", [1.5, -2.5]),
        "d": ("int64", 3),
        "e": ("int64", [4, -5]),
    }


def test_constant_of_shape_stays() -> None:
    text = "g (int64[1] x) => (float[N] y) { [n] y = ConstantOfShape <value = float[1] {1}> (x) }"
    assert after(text) == "[n] y = ConstantOfShape(x)\nweights "


def test_identities_go_where_names_permit() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z, float[2] v) <float[2] w = {1, -2}> {
      i = Identity(x)  j = Identity(i)  k = Identity(w)
      [a] p = Add(j, k)
      y = Identity(p)
      [tied] q = Add(w, k)
      [keep] z = Identity(x)
      [also] v = Identity(y)
      [dead] u = Relu(q)
    }"""
    assert after(text) == lines("""
      [a] y = Add(x, w)
      [keep] z = Identity(x)
      [also] v = Identity(y)
      weights w
    """)


def test_an_output_that_is_a_weight_or_an_input() -> None:
    text = "g (float[2] x) => (float[2] x, float[2] c, float[2] y) {\
      c = Constant <value = float[2] {1, -2}> () [id] y = Identity(c) }"
    assert after(text) == "[id] y = Identity(c)\nweights c"


def test_dead_nodes_and_unused_weights_go() -> None:
    text = f"{X} <float[2] w = {{1, 2}}, float[2] v = {{1, 2}}> {{ [a] y = Add(x, w) [b] z = Add(y, v) }}"
    assert after(text) == "[a] y = Add(x, w)\nweights w"


def test_nodes_are_sorted_and_sorted_ones_stay() -> None:
    text = f"{X} {{ [c] y = Add(p, q) [b] q = Neg(p) [a] p = Relu(x) }}"
    assert after(text) == "[a] p = Relu(x)\n[b] q = Neg(p)\n[c] y = Add(p, q)\nweights "
    text = f"{X} {{ [a] p = Relu(x) [b] q = Neg(x) [c] r = Abs(p) [d] y = Sum(q, r) }}"
    assert [line[1] for line in after(text).splitlines()[:-1]] == ["a", "b", "c", "d"]


def test_nodes_get_names_of_their_own() -> None:
    text = f"{X} {{ p = Relu(x) [n] q = Relu(p) [n] r = Relu(q) s = Relu(r) [Relu_1] y = Relu(s) }}"
    names = re.findall(r"\[(.*?)\]", after(text))
    assert names == ["Relu_2", "n", "n_1", "Relu_3", "Relu_1"]


def test_weights_that_are_inputs_too() -> None:
    text = "g (float[2] x, float[2] w) => (float[2] y) { [a] y = Add(x, w) }"
    proto = model(text, '<ir_version: 3, opset_import: ["" : 20]>')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, -2], np.float32), "w"))
    graph = normalize(SourceModel(proto, None, "m", 0))
    assert [value.name for value in graph.inputs] == ["x"]
    assert list(graph.weights) == ["w"]


IF = "g (bool c, float[2] x) => (float[2] y)"


def branches(then_branch: str, else_branch: str) -> str:
    return f"<then_branch = t () => (float[2] p) {then_branch}, else_branch = e () => (float[2] q) {else_branch}>"


def test_weights_of_nested_graphs_move_out() -> None:
    body = branches(
        "<float[2] w = {1, -2}> { p = Add(x, w) }",
        "<float[2] w = {3, -4}> { k = Constant <value = float[2] {5, 6}> () m = Add(k, w) q = Add(x, m) }",
    )
    text = f"{IF} {{ [if] y = Fork (c) {body} }}"
    assert after(text) == "[if] y = Fork(c) reads x, w, k, w_1\nweights w, w_1, k"
    node = normalize(source(text)).steps[0].proto
    graphs = {attribute.name: attribute.g for attribute in node.attribute}
    assert not any(graph.initializer for graph in graphs.values())
    assert [list(inner.input) for inner in graphs["else_branch"].node] == [["k", "w_1"], ["x", "m"]]


def test_equal_weights_of_both_branches_stay_one() -> None:
    body = branches("<float[2] w = {1, -2}> { p = Add(x, w) }", "<float[2] w = {1, -2}> { q = Sub(x, w) }")
    assert after(f"{IF} {{ [if] y = Fork (c) {body} }}") == "[if] y = Fork(c) reads x, w\nweights w"


def test_a_branch_that_returns_a_weight_keeps_its_output() -> None:
    body = branches("<float[2] p = {1, -2}> { }", "{ q = Relu(x) }")
    text = f"{IF} {{ [if] y = If (c) {body} }}"
    assert after(text) == "[Relu_1] q = Relu(x)\n[if] y = If(c, p_1, q)\nweights p_1"
    assert same_numbers(source(text), {"c": np.array(True), "x": np.array([1, -2], np.float32)})


@pytest.mark.parametrize(("condition", "op"), [("1", "Add"), ("0", "Sub")])
def test_an_if_that_is_decided(condition: str, op: str) -> None:
    body = branches(
        "<float[2] w = {1, -2}> { m = Add(x, w) p = Relu(m) }",
        "<float[2] w = {1, -2}> { m = Sub(x, w) q = Relu(m) }",
    )
    text = f"{X} {{ k = Constant <value = bool {{{condition}}}> () i = Identity(k) z = If (i) {body} y = Neg(z) }}"
    result = "p" if op == "Add" else "q"
    assert after(text) == lines(f"""
      [{op}_1] m = {op}(x, w)
      [Relu_1] {result} = Relu(m)
      [Neg_1] y = Neg({result})
      weights w
    """)


def test_a_decided_if_gives_way_to_names_in_use() -> None:
    body = branches("{ m = Abs(x) p = Relu(m) }", "{ q = Relu(x) }")
    text = f"{X} {{ k = Constant <value = bool {{1}}> () [a] m = Neg(x) z = If (k) {body} [b] y = Add(z, m) }}"
    assert (
        after(text)
        == lines("""
      [a] m = Neg(x)
      [Abs_1] m_1 = Abs(x)
      [Relu_1] p = Relu(m_1)
      [b] y = Add(p, m)
      weights
    """)
        + " "
    )


def test_a_decided_if_that_hands_on_and_makes_an_output() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) {
      k = Constant <value = bool {1}> ()
      y, z = If (k) <then_branch = t () => (float[2] p, float[2] r) { p = Relu(x) r = Identity(x) },
                     else_branch = e () => (float[2] q, float[2] s) { q = Relu(x) s = Neg(x) }>
    }"""
    assert after(text) == "[Relu_1] y = Relu(x)\n[Identity_1] z = Identity(x)\nweights "


def test_branches_stand_before_their_if_under_names_of_their_own() -> None:
    inner = branches("{ i = Neg(x) p = Add(i, j) }", "{ r = Neg(j) q = Exp(r) }")
    text = f"{IF} {{ [a] i = Abs(x) [b] j = Sqrt(i) [if] y = If (c) {inner} [z] r = Relu(y) }}".replace(
        "float[2] y)", "float[2] y, float[2] r)"
    )
    assert (
        after(text)
        == lines("""
      [a] i = Abs(x)
      [b] j = Sqrt(i)
      [Neg_1] i_1 = Neg(x)
      [Add_1] p = Add(i_1, j)
      [Neg_2] r_1 = Neg(j)
      [Exp_1] q = Exp(r_1)
      [if] y = If(c, p, q)
      [z] r = Relu(y)
      weights
    """)
        + " "
    )
    found = normalize(source(text)).steps
    then_branch, else_branch = found[6].regions
    assert [step.region for step in found] == [None, None, *[then_branch] * 2, *[else_branch] * 2, None, None]


def test_an_if_within_an_if() -> None:
    inner = "{ m = Neg(x) q = If (c) <then_branch = i () => (float[2] u) { u = Exp(m) }, "
    inner += "else_branch = o () => (float[2] v) { v = Identity(m) }> }"
    text = f"{IF} {{ [if] y = If (c) {branches(inner.replace('q =', 'p ='), '{ q = Sin(x) }')} }}"
    assert (
        after(text)
        == lines("""
      [Neg_1] m = Neg(x)
      [Exp_1] u = Exp(m)
      [If_1] p = If(c, u, m)
      [Sin_1] q = Sin(x)
      [if] y = If(c, p, q)
      weights
    """)
        + " "
    )
    steps = normalize(source(text)).steps
    assert steps[1].region is not None
    assert steps[1].region.parent is steps[2].region is steps[4].regions[0]
    for c in (True, False):
        assert same_numbers(source(text), {"c": np.array(c), "x": np.array([1, -2], np.float32)})


def test_renamed_values_are_renamed_in_nested_graphs() -> None:
    body = branches("{ p = Relu(i) }", "{ q = Neg(j) }")
    text = f"{IF} {{ [a] i = Abs(x) j = Identity(i) [if] y = Fork (c) {body} }}"
    assert after(text) == "[a] i = Abs(x)\n[if] y = Fork(c) reads i\nweights "


def test_an_identity_stays_where_a_nested_graph_hides_the_name() -> None:
    # Inside the branch `i` is another value: `j` cannot be called `i` there.
    body = branches("{ i = Neg(x) p = Add(i, j) }", "{ q = Neg(j) }")
    text = f"{IF} {{ [a] i = Abs(x) [id] j = Identity(i) [if] y = Fork (c) {body} }}"
    assert after(text) == "[a] i = Abs(x)\n[id] j = Identity(i)\n[if] y = Fork(c) reads x, j\nweights "


def test_functions_are_inlined() -> None:
    assert after(EVERYTHING, "") == lines("""
      [n1] m = MatMul(x, w)
      [n2] a = Add(m, k)
      [Mul_1] h__1 = Mul(a, t)
      [Mul_2] y = Mul(h__1, e__1)
      [Add_1] p = Add(a, cc)
      [r] r = Mul(a, ww)
      [if] z = If(c, p, r)
      weights w, k, t, e__1, cc, ww
    """)


def as_model(graph: NormalGraph, ir_version: int) -> onnx.ModelProto:
    """The normalized graph as a model of its own."""
    proto = onnx.GraphProto(name="g", input=graph.inputs, output=graph.outputs)
    local = LocalProgram(1)
    for step in graph.steps:
        local.nodes.append(
            LocalNode(step.proto.op_type, step.proto.domain, step.name, step.inputs, step.outputs, origin=step.proto)
        )
        local.nodes[-1].region, local.nodes[-1].regions = step.region, step.regions
    GraphFiller(local, 0, proto, set()).fill(proto, None)
    for name, tensor in graph.weights.items():
        proto.initializer.add().CopyFrom(tensor)
        proto.initializer[-1].name = name
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in graph.opsets.items()]
    return onnx.helper.make_model(proto, opset_imports=opsets, ir_version=ir_version)


def same_numbers(read: SourceModel, feeds: dict[str, np.ndarray]) -> bool:
    """Whether ONNX Runtime gets the same outputs from the source and from its normalized form."""
    normal = as_model(normalize(read), read.proto.ir_version)
    results = []
    for proto in (read.proto, normal):
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        results.append(session.run(None, feeds))
    return all(np.array_equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("c", [True, False])
def test_numbers_stay(c: bool) -> None:
    x = np.random.default_rng(3).standard_normal((5, 4), dtype=np.float32)
    assert same_numbers(source(EVERYTHING, ""), {"x": x, "c": np.array(c)})


def test_metadata_of_nodes_with_nested_graphs_stays() -> None:
    proto = model(f"{IF} {{ [if] y = Fork (c) {branches('{ p = Relu(x) }', '{ q = Neg(x) }')} }}")
    proto.graph.node[0].metadata_props.add(key="k", value="v")
    step = normalize(SourceModel(proto, None, "m", 0)).steps[0]
    assert [(entry.key, entry.value) for entry in step.proto.metadata_props] == [("k", "v")]
