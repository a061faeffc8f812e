"""DistCollective: its schema infers types and shapes, and a node that contradicts itself is refused."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import helper

from tpcompile.errors import Refused
from tpcompile.targets.collectives import Collective, make_collective, read_collective, register_schema


def model(node: onnx.NodeProto, shape: list[int | str], out: list[int | str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node, helper.make_node("Identity", ["y"], ["z"])], "g",
        [helper.make_tensor_value_info("x", 1, shape)], [helper.make_tensor_value_info("z", 1, out)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("tpcompile", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ("op", "options", "out"),
    [
        ("all_reduce", {"reduce_op": "sum"}, [6, "b"]),
        ("broadcast", {"root": 1}, [6, "b"]),
        ("all_to_all", {}, [6, "b"]),
        ("all_gather", {}, [18, "b"]),
        ("reduce_scatter", {"reduce_op": "max"}, [2, "b"]),
    ],
)
def test_checker_and_inference_know_the_op(op: str, options: dict[str, Any], out: list[int | str]) -> None:
    register_schema()
    register_schema()
    made = model(make_collective(op, "x", "y", nb_rank=3, name="c", **options), [6, "b"], out)
    onnx.checker.check_model(made, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(made, strict_mode=True, check_type=True)
    found = {value.name: value for value in inferred.graph.value_info}["y"].type.tensor_type
    assert [dim.dim_param or dim.dim_value for dim in found.shape.dim] == out
    assert found.elem_type == 1


def test_a_symbolic_first_axis_becomes_unknown() -> None:
    register_schema()
    made = model(make_collective("all_gather", "x", "y", nb_rank=3, name="c"), ["a", 5], ["c", 5])
    inferred = onnx.shape_inference.infer_shapes(made, strict_mode=True)
    dims = inferred.graph.value_info[0].type.tensor_type.shape.dim
    assert dims[0].dim_param != "a" and not dims[0].HasField("dim_value")
    assert dims[1].dim_value == 5


def test_groups_are_typed_ints_even_when_empty() -> None:
    node = make_collective("all_gather", "x", "y", nb_rank=2, name="c")
    found = {a.name: a for a in node.attribute}
    assert set(found) == {"collective_operation", "reduce_op", "root", "nb_rank", "groups", "group_size"}
    assert found["groups"].type == onnx.AttributeProto.INTS
    assert found["group_size"].i == 0


def test_read_gives_back_what_was_made() -> None:
    node = make_collective("broadcast", "x", "y", nb_rank=2, groups=(3, 1), root=1, name="c")
    assert read_collective(node) == Collective("broadcast", "x", "y", "c", 2, (3, 1), "none", 1)
    assert str(read_collective(node)) == "broadcast of 'x'"


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"op": "gather"}, "unknown operation 'gather'"),
        ({"op": "all_reduce"}, "all_reduce needs a reduce_op of sum, prod, max, min, avg, found 'none'"),
        ({"op": "all_gather", "reduce_op": "sum"}, "all_gather reduces nothing, but reduce_op is 'sum'"),
        ({"op": "all_gather", "root": 0}, "root is 0, and only broadcast has one"),
        ({"op": "broadcast"}, "root -1 is not in the group"),
        ({"op": "broadcast", "root": 0, "groups": (1, 2)}, "root 0 is not in the group"),
        ({"op": "all_gather", "groups": (0, 0)}, "groups [0, 0] is no list of 2 different ranks"),
        ({"op": "all_gather", "groups": (0, 1, 2)}, "groups [0, 1, 2] is no list of 2 different ranks"),
    ],
)  # fmt: skip
def test_contradictions(options: dict[str, Any], fact: str) -> None:
    op = options.pop("op")
    with pytest.raises(Refused) as caught:
        make_collective(op, "x", "y", nb_rank=2, name="c", **options)
    assert str(caught.value) == f"TP461 collective c: {fact}. Compile the model again"


def test_malformed_nodes() -> None:
    node = helper.make_node("DistCollective", ["x", "w"], ["y"], name="c", nb_rank=2.5, extra=1)
    with pytest.raises(Refused) as caught:
        read_collective(node)
    assert str(caught.value) == (
        "TP461 collective c: is ai.onnx.DistCollective, not tpcompile.DistCollective; has 2 inputs and 1 "
        "outputs, not one "
        "of each; lacks the attribute collective_operation; lacks the attribute reduce_op; lacks the attribute root; "
        "attribute nb_rank is not of type INT; lacks the attribute groups; lacks the attribute group_size; has "
        "the unknown "
        "attribute extra. Compile the model again"
    )


def test_a_wrong_group_size() -> None:
    node = make_collective("all_gather", "x", "y", nb_rank=2, groups=(0, 1), name="c")
    next(a for a in node.attribute if a.name == "group_size").i = 0
    with pytest.raises(Refused, match="TP461 collective c: group_size is 0 for 2 ranks in groups"):
        read_collective(node)
