"""Models that are ONNX but unsound, too old, too new, or of kinds we cannot compile: refused with the whole text."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto

from tests.graph.models import HEADER, PLAIN, model
from tpcompile.errors import Refused
from tpcompile.graph.from_onnx import to_program
from tpcompile.graph.read import checked
from tpcompile.targets.collectives import make_collective

AGAIN = "Export or save the model again, and check it with onnx.checker"
NUMBERS = "Numbers and bool can be compiled: cut off that part of the model (onnx.utils.extract_model) or cast it"
SAVE_AGAIN = "Export or save the model again"
NEWER = "Export it again with opset 17 or newer"


def refusal(proto: onnx.ModelProto) -> str:
    with pytest.raises(Refused) as caught:
        checked(proto, folder=None, file="m.onnx", own_bytes=None)
    return str(caught.value)


def plain(opset: int = 20, ir: int = 10) -> onnx.ModelProto:
    return model(PLAIN, f'<ir_version: {ir}, opset_import: ["" : {opset}]>')


def test_old_opsets() -> None:
    assert refusal(plain(9)) == "TP205 m.onnx: opset 9 is older than 11. Export again with opset 17 or newer"
    checked(plain(11), folder=None, file="m.onnx", own_bytes=None)
    expected = f"TP205 m.onnx: is of IR version 2, older than 3. {NEWER}"
    assert refusal(plain(ir=2)) == expected


def test_new_opsets() -> None:
    newest = onnx.defs.onnx_opset_version()
    checked(plain(newest, onnx.IR_VERSION), folder=None, file="m.onnx", own_bytes=None)
    expected = (
        f"TP206 m.onnx: opset 999 is newer than {newest}, the newest of the installed onnx {onnx.__version__}. "
        f"Install a newer onnx, or export with opset {newest} or older"
    )
    assert refusal(plain(999)) == expected
    expected = (
        f"TP206 m.onnx: is of IR version 99, newer than {onnx.IR_VERSION}, the newest of the installed onnx "
        f"{onnx.__version__}. Install a newer onnx, or export with an older one"
    )
    assert refusal(plain(ir=99)) == expected


def test_no_opset() -> None:
    proto = plain()
    proto.ClearField("opset_import")
    fact = "imports no version of the ONNX operators (opset); it may break off here"
    assert refusal(proto) == f"TP205 m.onnx: {fact}. {NEWER}"


def test_an_old_function() -> None:
    text = """g (float[2] x) => (float[2] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 9]> f (u) => (v) { v = Relu(u) }"""
    proto = model(text, '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>')
    expected = "TP205 function local.f: opset 9 is older than 11. Export again with opset 17 or newer"
    assert refusal(proto) == expected


def test_training_outputs_and_sparse_weights_all_at_once() -> None:
    proto = plain()
    proto.training_info.add()
    proto.graph.ClearField("output")
    proto.graph.sparse_initializer.add().values.name = "s"
    assert refusal(proto).splitlines() == [
        "TP207 m.onnx: holds training steps (training_info). Export it for inference, or clear the field training_info",
        "TP208 m.onnx: its graph has no outputs. Export it again; it may break off here",
        "TP210 m.onnx: stores 1 weights as sparse tensors (first: s). "
        "Save them as dense tensors (numpy, then onnx.numpy_helper.from_array)",
    ]


def test_a_ranks_own_file_is_no_source() -> None:
    proto = plain()
    proto.graph.node.append(make_collective("all_reduce", "y", "z", nb_rank=2, reduce_op="sum", name="c"))
    assert refusal(proto) == (
        "TP222 m.onnx: holds DistCollective nodes: it is one rank's part of a model that was compiled already. "
        "Give the model that it was compiled from"
    )


def test_element_types() -> None:
    proto = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {1, 2}> { y = Foo(x, w, v) }")
    proto.graph.initializer[0].data_type = TensorProto.STRING
    proto.graph.initializer[1].data_type = TensorProto.COMPLEX64
    assert refusal(proto).splitlines() == [
        f"TP209 weight w: has elements of type string. {NUMBERS}",
        f"TP209 weight v: has elements of type complex64. {NUMBERS}",
    ]
    proto = plain()
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.COMPLEX128
    assert refusal(proto).splitlines() == [
        f"TP209 input x: has elements of type string. {NUMBERS}",
        f"TP209 output y: has elements of type complex128. {NUMBERS}",
    ]
    proto = plain()
    proto.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
    proto.graph.output[0].type.ClearField("value")
    assert refusal(proto) == f"TP209 input x: is a sequence, not a tensor. {NUMBERS}"
    proto = plain()
    proto.graph.initializer[0].data_type = 77
    assert refusal(proto) == f"TP209 weight w: has elements of type element type 77. {NUMBERS}"
    proto = plain()
    proto.graph.input[0].type.ClearField("value")
    assert refusal(proto) == f"TP209 input x: has elements of type undefined. {NUMBERS}"


@pytest.mark.parametrize("dims", [[-4, 3], [4, -3], [2**31, 2**31], [2**62, 2**62, 2**62]])
def test_impossible_shapes(dims: list[int]) -> None:
    proto = plain()
    proto.graph.initializer[0].dims[:] = dims
    assert refusal(proto) == f"TP215 weight w: has the impossible shape {dims}. {SAVE_AGAIN}"


def test_data_of_the_wrong_length() -> None:
    proto = plain()
    weight = proto.graph.initializer[0]
    weight.dims[:] = [5, 3]
    assert refusal(proto) == f"TP214 weight w: holds 12 elements, and float32 [5, 3] takes 15. {SAVE_AGAIN}"
    weight.ClearField("float_data")
    assert refusal(proto) == f"TP214 weight w: holds 0 elements, and float32 [5, 3] takes 15. {SAVE_AGAIN}"
    weight.raw_data = b"\0" * 48
    assert refusal(proto) == f"TP214 weight w: holds 48 bytes, and float32 [5, 3] takes 60. {SAVE_AGAIN}"
    weight.data_type = TensorProto.INT4
    weight.raw_data = b"\0" * 7
    assert refusal(proto) == f"TP214 weight w: holds 7 bytes, and int4 [5, 3] takes 8. {SAVE_AGAIN}"
    weight.segment.begin = 0
    assert refusal(proto) == "TP214 weight w: is one segment of a tensor. Save it as a whole tensor"


def test_tensors_in_nested_graphs_are_checked() -> None:
    text = """g (bool c, float[2] x) => (float[2] y) {
      [if] y = If (c) <then_branch = a () => (float[2] p) <float[2] w = {1, 2}> { p = Add(x, w) },
                       else_branch = b () => (float[2] q) { k = Constant <value = float[2] {1, 2}> () q = Add(x, k) }>
    }"""
    proto = model(text)
    then_branch, else_branch = (attribute.g for attribute in proto.graph.node[0].attribute)
    then_branch.initializer[0].dims[:] = [3]
    else_branch.node[0].attribute[0].t.dims[:] = [1]
    assert refusal(proto).splitlines() == [
        f"TP214 node if, weight w: holds 2 elements, and float32 [3] takes 3. {SAVE_AGAIN}",
        f"TP214 node if, node 0 (Constant): holds 2 elements, and float32 [1] takes 1. {SAVE_AGAIN}",
    ]


def test_only_the_first_twenty_faults_are_listed() -> None:
    nodes = " ".join(f"[n{k}] a{k} = Relu(gone)" for k in range(50))
    lines = refusal(model(f"g (float[2] x) => (float[2] a0) {{ {nodes} }}")).splitlines()
    assert len(lines) == 21
    assert lines[0] == f"TP216 node n0: reads 'gone', which nothing makes. {AGAIN}"
    assert lines[-1] == f"TP216 there are 30 more such faults. {AGAIN}"


GRAPHS = {
    "nothing makes it": (
        "g (float[2] x) => (float[2] y) { [a] y = Add(x, nowhere) }",
        f"TP216 node a: reads 'nowhere', which nothing makes. {AGAIN}",
    ),
    "nothing makes the output": (
        "g (float[2] x) => (float[2] z) { [a] y = Relu(x) }",
        f"TP216 output z: nothing makes it. {AGAIN}",
    ),
    "in a nested graph": (
        "g (bool c, float[2] x) => (float[2] y) { [if] y = If (c) <"
        "then_branch = a () => (float[2] p) { p = Add(x, q) }, else_branch = b () => (float[2] q) { q = Relu(x) }> }",
        f"TP216 node if, node 0 (Add): reads 'q', which nothing makes. {AGAIN}",
    ),
    "made twice": (
        "g (float[2] x) => (float[2] y) { [a] y = Relu(x) [b] y = Neg(x) }",
        f"TP217 value y: is made twice: node a and node b. {AGAIN}",
    ),
    "made twice by an input": (
        "g (float[2] x) => (float[2] y) { [a] y = Relu(x) [b] x = Neg(y) }",
        f"TP217 value x: is made twice: input and node b. {AGAIN}",
    ),
    "an output twice": (
        "g (float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }",
        f"TP217 value y: stands twice among the outputs. {AGAIN}",
    ),
    "a cycle": (
        "g (float[2] x) => (float[2] y) { [a] p = Add(x, r) [b] q = Relu(p) [c] r = Neg(q) [d] y = Relu(x) }",
        f"TP218 nodes read each other's outputs in a circle: b → c → a → b. {AGAIN}",
    ),
    "a node that reads itself": (
        "g (float[2] x) => (float[2] y) { [a] y = Add(x, y) }",
        f"TP218 nodes read each other's outputs in a circle: a → a. {AGAIN}",
    ),
    "a cycle through a nested graph": (
        "g (bool c, float[2] x) => (float[2] y) { [if] y = If (c) <"
        "then_branch = a () => (float[2] p) { p = Relu(z) }, else_branch = b () => (float[2] q) { q = Relu(x) }>"
        " [n] z = Neg(y) }",
        f"TP218 nodes read each other's outputs in a circle: n → if → n. {AGAIN}",
    ),
    "too few inputs": (
        "g (float[2] x) => (float[2] y) { [a] y = Add(x) }",
        f"TP219 node a: Add has 1 inputs, and takes 2. {AGAIN}",
    ),
    "too many inputs": (
        "g (float[2] x) => (float[2] y) { [a] y = Clip(x, x, x, x) }",
        f"TP219 node a: Clip has 4 inputs, and takes 1 to 3. {AGAIN}",
    ),
    "no inputs": (
        "g (float[2] x) => (float[2] y) { [a] y = Concat <axis = 0> () }",
        f"TP219 node a: Concat has 0 inputs, and takes at least 1. {AGAIN}",
    ),
    "too many outputs": (
        "g (float[2] x) => (float[2] y) { [a] y, z = Relu(x) }",
        f"TP219 node a: Relu has 2 outputs, and takes 1. {AGAIN}",
    ),
    "an attribute missing": (
        "g (float[2] x) => (float[2] y) { [a] y = Concat (x, x) }",
        f"TP219 node a: Concat lacks its attribute axis. {AGAIN}",
    ),
    "an attribute of another type": (
        "g (float[2] x) => (float[2] y) { [a] y = Concat <axis = [0]> (x, x) }",
        f"TP219 node a: Concat has an attribute axis of type INTS instead of INT. {AGAIN}",
    ),
    "branches that differ": (
        "g (bool c, float[2] x) => (float[2] y) { [if] y = If (c) <"
        "then_branch = a () => (float[2] p) { p = Relu(x) }, else_branch = b () => () { q = Relu(x) }> }",
        f"TP219 node if: If has 1 outputs, and a branch of it 0. {AGAIN}",
    ),
    "an unknown domain": (
        "g (float[2] x) => (float[2] y) { [a] y = other.Foo (x) }",
        f"TP219 node a: Foo is of the domain 'other', of which the model imports no version. {AGAIN}",
    ),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_unsound_graphs(case: str) -> None:
    text, expected = GRAPHS[case]
    assert refusal(model(text)) == expected


def test_a_required_input_left_out() -> None:
    proto = model("g (float[2] x) => (float[2] y) { [a] y = Add(x, x) }")
    proto.graph.node[0].input[0] = ""
    assert refusal(proto) == f"TP219 node a: Add lacks its input 0. {AGAIN}"


def test_names_missing_or_twice() -> None:
    proto = plain()
    proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
    assert refusal(proto) == f"TP217 value w: is made twice: weight and weight. {AGAIN}"
    proto = plain()
    proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
    proto.graph.initializer[1].name = ""
    assert refusal(proto) == f"TP217 a weight has no name. {AGAIN}"
    proto = plain()
    proto.graph.input.add().type.CopyFrom(proto.graph.input[0].type)
    assert refusal(proto) == f"TP217 an input has no name. {AGAIN}"


def test_malformed_attributes() -> None:
    proto = plain()
    attribute = proto.graph.node[0].attribute.add(name="a")
    assert refusal(proto) == f"TP219 node mm: its attribute a has no type. {AGAIN}"
    attribute.type = onnx.AttributeProto.INT
    proto.graph.node[0].attribute.add().CopyFrom(attribute)
    assert refusal(proto) == f"TP219 node mm: has the attribute a twice. {AGAIN}"
    proto.graph.node[0].attribute[1].name = ""
    assert refusal(proto) == f"TP219 node mm: an attribute has no name, or none that is UTF-8 text. {AGAIN}"
    del proto.graph.node[0].attribute[1]
    attribute = proto.graph.node[0].attribute[0]
    attribute.ref_attr_name = "b"
    fact = "its attribute a refers to a function's, and it is in none"
    assert refusal(proto) == f"TP219 node mm: {fact}. {AGAIN}"
    proto.graph.node[0].ClearField("attribute")
    proto.graph.node[0].op_type = ""
    assert refusal(proto) == f"TP219 node mm: names no operator. {AGAIN}"


def damaged(proto: onnx.ModelProto, old: bytes, new: bytes) -> onnx.ModelProto:
    """The model with bytes of its file replaced: how a name comes to be no text."""
    content = proto.SerializeToString()
    assert content.count(old) == 1 and len(old) == len(new)
    changed = onnx.ModelProto()
    changed.ParseFromString(content.replace(old, new))
    return changed


def test_names_that_are_no_text() -> None:
    one = model("g (float[Batch] xin) => (float[2] y) { [node] mid = Relu(xin) y = Operator(mid, mid) }")
    proto = damaged(one, b"Operator", b"\xff\xfeerator")
    assert refusal(proto) == f"TP219 node 1: its name or operator is not UTF-8 text. {AGAIN}"
    proto = damaged(one, b"Batch", b"\xfeatch")
    assert refusal(proto) == f"TP219 value xin: the name of an axis is not UTF-8 text. {AGAIN}"
    proto = damaged(model("g (float[2] x) => (float[2] y) { y = Relu(x) abc = Neg(x) }"), b"abc", b"\xffbc")
    assert refusal(proto) == f"TP219 the name b'\\xffbc' is not UTF-8 text. {AGAIN}"
    proto = damaged(model("g (float[2] x) => (float[2] y) { [a] y = Add(x, abc) }"), b"abc", b"\xffbc")
    assert refusal(proto) == f"TP219 node a: the name of an input is not UTF-8 text. {AGAIN}"


def nested(depth: int) -> onnx.ModelProto:
    body = "z = Relu(x)"
    for level in range(depth):
        body = (
            f"z = If (c) <then_branch = t{level} () => (float[2] z) {{ {body} }},"
            f" else_branch = e{level} () => (float[2] z) {{ z = Neg(x) }}>"
        )
    return model(f"g (bool c, float[2] x) => (float[2] z) {{ {body} }}")


def test_deep_nesting() -> None:
    checked(nested(20), folder=None, file="m.onnx", own_bytes=None)
    text = refusal(nested(31))
    assert text.startswith("TP220 node 0 (If), node 0 (If)")
    assert text.endswith(": graphs are nested more than 30 deep. Export the model again without such nesting")


WITHOUT = "Export the model again without that function"


def with_functions(body: str, functions: str) -> onnx.ModelProto:
    return model(f"g (float[2] x) => (float[2] y) {{ {body} }} {functions}", HEADER.replace("20]", '20, "l" : 1]'))


def function(name: str, body: str) -> str:
    return f'<domain: "l", opset_import: ["" : 20, "l" : 1]> {name} (u) => (v) {{ {body} }}'


def test_functions_that_call_themselves() -> None:
    proto = with_functions("y = l.f(x)", function("f", "v = l.g(u)") + function("g", "v = l.f(u)"))
    assert refusal(proto) == f"TP221 function l.f: calls itself, or functions are nested too deep. {WITHOUT}"


def test_functions_that_blow_up() -> None:
    functions = function("f0", "v = Relu(u)")
    for k in range(1, 40):
        functions += function(f"f{k}", f"t = l.f{k - 1}(u) v = l.f{k - 1}(t)")
    proto = with_functions("y = l.f39(x)", functions)
    assert refusal(proto) == f"TP221 its functions come to {2**39} nodes (at most 1000000). {WITHOUT}"


def test_functions_with_faults() -> None:
    proto = with_functions("y = l.f(x)", function("f", "[a] v = Add(u, w)"))
    assert refusal(proto) == f"TP216 function l.f, node a: reads 'w', which nothing makes. {AGAIN}"
    proto = with_functions("y = l.f(x)", function("f", "v = Relu(u)") * 2)
    assert refusal(proto) == f"TP217 a function is defined twice. {WITHOUT}"


def test_functions_that_onnx_cannot_inline() -> None:
    proto = with_functions("y = l.f(x, x, x)", function("f", "v = Relu(u)"))
    with pytest.raises(Refused) as caught:
        to_program(checked(proto, folder=None, file="m.onnx", own_bytes=None))
    assert str(caught.value).startswith("TP2")
