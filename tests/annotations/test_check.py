"""The checker: what is valid, what a runtime must send for it, and every fault by its whole text."""

from __future__ import annotations

import json
import time
from pathlib import Path

import onnx
import pytest

import tpcompile
from tests import zoo
from tests.annotations.by_hand import annotated
from tests.plan.models import TWO_LAYERS, model
from tpcompile import api
from tpcompile.annotations.check import Checked
from tpcompile.cli import main
from tpcompile.errors import Refused

PRODUCT = "(float[batch, 8] x) => (float[batch, 12] y) <float[8, 12] w> { y = MatMul(x, w) }"
PAIR = """(float[batch, 8] x) => (float[batch, 8] y) <float[8, 12] up, float[12, 8] down>
{ a = MatMul(x, up)  b = Relu(a)  y = MatMul(b, down) }"""


def checked(graph: str, said: str, devices: int = 4, opset: int = 20) -> Checked:
    (found,) = api.check_annotations(annotated(graph, said, devices, opset))
    return found


def faults(graph: str, said: str, devices: int = 4, opset: int = 20) -> list[str]:
    return [str(fault) for fault in checked(graph, said, devices, opset).faults]


def sent(found: Checked) -> list[str]:
    return [f"{needed.op} {needed.tensor} over {needed.devices}" for needed in found.needed]


# -- what is valid, and what it takes --------------------------------


@pytest.mark.parametrize(
    ("graph", "said", "needed"),
    [
        (PRODUCT, "y: x; w 1/4; y 1/4", []),
        (PRODUCT, "y: x; w 1/4; y", ["all_gather y over 4"]),
        (PRODUCT, "y: x 1/4; w 0/4; y", ["slice x over 4", "all_reduce y over 4"]),
        (PRODUCT, "y: x 1/4; w 0/4; y 1/4", ["slice x over 4", "reduce_scatter y over 4"]),
        (PRODUCT, "y: x 1/4; w 0/4", ["slice x over 4", "all_reduce y over 4"]),
        (PRODUCT, "y: x 0/4; w; y 0/4", ["slice x over 4"]),
        (PRODUCT, "y: x 0/2 @ [0 1] [2 3]; w 1/2 @ [0 2] [1 3]; y 0/2 1/2", ["slice x over 4"]),
        (PRODUCT, "y: x 1/2 @ [0 1] [2 3]; w 0/2 1/2; y 1/2 @ [0 2] [1 3]", ["slice x over 4", "all_reduce y over 2"]),
        (PAIR, "a: x; up 1/4\n b: a 1/4; b 1/4\n y: b 1/4; down 0/4; y", ["all_reduce y over 4"]),
        (PAIR, "a: x; up 1/4\n y: down 0/4", ["all_reduce y over 4"]),
        (PAIR, "a: up 1/4; a 0/4\n y: b; down", ["all_to_all a over 4", "all_gather b over 4"]),
        (PAIR, "a: up 1/4\n b: a 1/4; b", ["all_gather b over 4"]),
        (
            "(float[6, 1] x, float[1, 8] z) => (float[6, 8] y) { y = Add(x, z) }",
            "y: x 0/2 @ [0 1] [2 3]; z 1/2 @ [0 2] [1 3]; y 0/2 1/2",
            ["slice x over 4", "slice z over 4"],
        ),
        (
            "(int64[batch] ids) => (float[batch, 8] y) <float[20, 8] table> { y = Gather(table, ids) }",
            "y: table 0/4; ids; y",
            ["all_reduce y over 4"],
        ),
        (
            "(float[batch, 8] x) => (float[batch, 2, 4] y) <int64[3] to = {0, 2, 4}> { y = Reshape(x, to) }",
            "y: x 1/4; y 1/2 2/2",
            ["slice x over 4"],
        ),
    ],
    ids=[
        "columns", "columns, gathered", "rows", "rows, scattered", "rows, result not said", "tokens", "both, composed",
        "rows and columns", "pair", "pair, the middle follows", "another axis", "gathered by its node",
        "two broadcast axes", "vocabulary", "reshape",
    ],
)  # fmt: skip
def test_what_is_valid_says_what_a_runtime_sends(graph: str, said: str, needed: list[str]) -> None:
    found = checked(graph, said)
    assert [str(fault) for fault in found.faults] == []
    assert found.valid == found.nodes
    assert sent(found) == needed


def test_weights_of_which_nothing_is_said_are_cut_as_needed() -> None:
    found = checked("(float[batch, 8] x) => (float[batch, 12] y) <float[8, 12] w, float[12] bias>"
                    "{ a = MatMul(x, w)  y = Add(a, bias) }", "a: x; w 1/4")  # fmt: skip
    assert (found.faults, list(found.implied), found.unannotated) == ([], ["bias"], 1)


@pytest.mark.parametrize("tp", [3, 4])
@pytest.mark.parametrize("name", zoo.names())
def test_plans_are_valid_and_need_no_less_than_the_plan(name: str, tp: int) -> None:
    """Every node of a written plan; pending sums that a plan adds up before it reduces them are reduced apart."""
    work = api.plan(zoo.model(name), tp)
    written = api.write_annotations(work.source.proto, work.analysis, work.plan.cut, work.cut_doors).model
    (found,) = api.check_annotations(written)
    assert [str(fault) for fault in found.faults] == []
    assert found.valid + found.unchecked.total() == found.nodes


# -- operators -------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "said", "fault"),
    [
        (
            "(float[32, 1024] a, float[32, 1024] b) => (float[32, 1024] y) { y = Add(a, b) }",
            "y: a 0/4; b 1/4",
            "TP172 Add y: axis 0 of a is in 4 shards, and axis 0 of b, the same dimension, is whole. "
            "Annotate both alike at this node",
        ),
        (
            PRODUCT,
            "y: x 1/4; w",
            "TP172 MatMul y: axis 1 of x is in 4 shards, and axis 0 of w, the same dimension, is whole. "
            "Annotate both alike at this node, or say nothing of w",
        ),
        (
            PRODUCT,
            "y: x 1/4; w 0/4 @ 3 2 1 0",
            "TP172 MatMul y: axis 1 of x is in 4 shards, and axis 0 of w, the same dimension, in 4 over the devices in "
            "another order. Annotate both alike at this node, or say nothing of w",
        ),
        (
            PRODUCT,
            "y: x 0/4; w 1/4",
            "TP173 MatMul y: no device has shard 0 of axis 0 of x and shard 1 of axis 1 of w. "
            "Cut one of them over other devices, with copies of its shards for the other's",
        ),
        (
            PRODUCT,
            "y: x 0/2 1/2; w 0/2 1/2 @ 0 2 3 1",
            "TP173 MatMul y: no device has shard 0 of axis 0 of x and shard 1 of axis 1 of w and shard 0 of axis "
            "1 of x. Cut one of them over other devices, with copies of its shards for the other's",
        ),
        (
            PRODUCT,
            "y: x 0/2 @ 0 1; w 1/2 @ 2 3",
            "TP172 MatMul y: device 0 has x and nothing of w. "
            "Name the same devices for all tensors that the node reads",
        ),
        (
            "(float[batch, 8] x) => (float[batch, 8] y) { y = Softmax(x) }",
            "y: x 1/4",
            "TP171 Softmax y: axis 1 of x is in 4 shards: Softmax normalises over it. "
            "Leave it whole at this node: the runtime then gathers it before",
        ),
        (
            "(float[batch, 12] x) => (float[batch, 8] y, float[batch, 4] z) <int64[2] parts = {8, 4}>"
            "{ y, z = Split<axis = 1>(x, parts) }",
            "y: x 1/4",
            "TP171 Split y: x: axis 1 is 8 | 4: the shards go across these parts. "
            "Cut it along one of them, or not here",
        ),
        (
            "(float[batch, 24] x) => (float[batch, 3, 8] y) <int64[3] to = {0, 3, 8}> { y = Reshape(x, to) }",
            "y: x 1/4",
            "TP171 Reshape y: x: axis 1 is 3 × 8: the shards go across these parts. "
            "Cut it along one of them, or not here",
        ),
    ],
    ids=["add", "summed", "order", "composed", "three", "devices", "softmax", "split", "reshape"],
)  # fmt: skip
def test_an_operator_that_cannot_run_on_such_operands(graph: str, said: str, fault: str) -> None:
    assert fault in faults(graph, said)


def test_the_proposals_first_example_of_what_makes_no_sense() -> None:
    """Two operands of one sum, cut along different axes over the same two devices: both axes are told."""
    graph = "(float[32, 1024] a, float[32, 1024] b) => (float[32, 1024] y) { y = Add(a, b) }"
    found = checked(graph, "y: a 0/2; b 1/2", 2)
    assert [fault.code for fault in found.faults] == ["TP172", "TP172"]
    assert (found.faulty, found.valid) == (1, 0)


def test_what_follows_from_others_may_be_wrong_too() -> None:
    assert faults("(float[batch, 8] x) => (float[batch, 12] y) <float[8, 12] w> { a = MatMul(x, w)  y = Softmax(a) }",
                  "a: x; w 1/4") == [
        "TP171 Softmax y: axis 1 of a is in 4 shards: Softmax normalises over it. "
        "Leave it whole at this node: the runtime then gathers it before"
    ]  # fmt: skip


def test_operators_without_a_rule_are_never_valid() -> None:
    graph = "(float[batch, 8] x) => (float[batch, 8] y) { a = Relu(x)  y = com.example.Strange(a) }"
    source = annotated(graph, "a: x 1/4\n y: a 1/4", opset=20)
    source.opset_import.add(domain="com.example", version=1)
    (found,) = api.check_annotations(source)
    assert (found.valid, dict(found.unchecked)) == (1, {("Strange", "Strange has no rule"): 1})


LOOP = """(int64 times, float[batch, 8] x) => (float[batch, 8] y) <bool go = {1}>
{ b = Loop(times, go, x) <body = once (int64 k, bool c, float[batch, 8] v) => (bool d, float[batch, 8] w)
                          { d = Identity(c)  w = Relu(v) }>
  y = Relu(b) }"""


def test_the_bodies_of_loops_are_not_followed() -> None:
    found = checked(LOOP, "y: b; y")
    assert {op for op, _ in found.unchecked} == {"Loop", "Identity", "Relu"}
    assert found.valid == 1


# -- structure -------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("y: z 0/4", "TP167 MatMul y: it has no tensor 'z'. Use one that it reads or makes: w, x, y"),
        ("y: x 0/4; x 0/4", "TP167 MatMul y: it says twice how 'x' lies. Say it once"),
        ("y: x 0/4 @ 0 1 2 4", "TP168 MatMul y: x: 4 is no device. Use 0 to 3"),
        (
            "y: x 0/2 @ -5 1",
            "TP168 MatMul y: x: -5 is no device. Use 0 to 3, or say in index_to_device_group_map which devices -5 "
            "stands for",
        ),
        (
            "y: x 0/2 @ [0 1] [1 2]",
            "TP168 MatMul y: x: 1 is named twice, so what each holds is not said. Name each device once",
        ),
        (
            "y: x 0/2 @ 0 1 2 3",
            "TP168 MatMul y: x: it has 2 shards for 4 devices. Name a device for each shard, or a group of devices "
            "that have it alike",
        ),
        (
            "y: w 0/4 1/3 @ 0 1 2 3",
            "TP168 MatMul y: w: it has 4 × 3 = 12 shards for 4 devices. Name a device for each shard, or a group of "
            "devices that have it alike",
        ),
        ("y: w 2/4", "TP169 MatMul y: w: there is no axis 2: the tensor has 2. Use -2 to 1"),
        ("y: w -3/4", "TP169 MatMul y: w: there is no axis -3: the tensor has 2. Use -2 to 1"),
        ("y: w 1/2 -1/2", "TP169 MatMul y: w: axis 1 is sharded twice. Say all its shards in one sharded dimension"),
        ("y: w 1/0", "TP170 MatMul y: w: axis 1 is in 0 shards. Say 1 or more"),
        ("y: w 1/-4", "TP170 MatMul y: w: axis 1 is in -4 shards. Say 1 or more"),
        ("y: w 1/13 @ 0 1 2 3", "TP170 MatMul y: w: axis 1 is in 13 shards, and has 12 elements. Use 12 or fewer"),
        (
            f"y: x 0/{2**62} @ 0 1 2 3",
            f"TP168 MatMul y: x: it has {2**40} or more shards for 4 devices. Name a device for each shard, or a group "
            "of devices that have it alike",
        ),
        (
            "y: w 1/4:4×4:1",
            "TP170 MatMul y: w: axis 1 of 12 elements is said to have 4 × 4. Correct the dim_value",
        ),
        ("y: w 1/0:1", "TP170 MatMul y: w: axis 1 has a dim_value of 0. Say 1 or more, or leave it out"),
        ("y: stage -1", "TP166 MatMul y: its pipeline stage is -1. Use 0 or more"),
    ],
)
def test_what_is_wrong_in_itself(said: str, fault: str) -> None:
    assert faults(PRODUCT, said) == [fault]


def test_groups_that_are_said_twice_or_empty_or_not_used() -> None:
    source = annotated(PRODUCT, "y: x 0/2 @ [0 1] [2 3]")
    groups = source.graph.node[0].device_configurations[0].sharding_spec[0].index_to_device_group_map
    groups.add(key=-2, value=[2, 3])
    groups.add(key=-3)
    (found,) = api.check_annotations(source)
    assert [str(fault) for fault in found.faults] == [
        "TP168 MatMul y: x: group -2 is said twice. Say it once",
        "TP168 MatMul y: x: group -3 has no devices. Say which devices have that shard",
        "TP168 MatMul y: x: group -3 has no shard. Put its key into the list of devices, or leave it out",
    ]


def test_stages_go_forward() -> None:
    assert faults(PAIR, "a: stage 1\n b: stage 1\n y: stage 0") == [
        "TP166 MatMul y: it is of pipeline stage 0, and reads b of stage 1 (Relu b). Use 1 or more"
    ]
    assert faults(PAIR, "a: stage 0\n b: stage 0\n y: stage 1") == []


def test_configurations_that_nodes_speak_of() -> None:
    source = annotated(PRODUCT, "y: x 0/4")
    node = source.graph.node[0]
    node.device_configurations.add(configuration_id="other")
    node.device_configurations.add()
    node.device_configurations.add(configuration_id="hand")
    (found,) = api.check_annotations(source)
    assert [str(fault) for fault in found.faults] == [
        "TP166 MatMul y: the model has no configuration 'other'. Use 'hand'",
        "TP166 MatMul y: an annotation does not say of which configuration it is. Say its configuration_id",
        "TP166 MatMul y: it has 2 annotations of configuration 'hand'. Make them one",
    ]


def refusal(source: onnx.ModelProto) -> list[str]:
    with pytest.raises(Refused) as told:
        api.check_annotations(source)
    return str(told.value).splitlines()


def test_unsound_configurations() -> None:
    source = annotated(PRODUCT, "y: x 0/4")
    source.ir_version = 10
    source.configuration.add(name="hand", num_devices=0)
    source.configuration.add(num_devices=2, device=["one"])
    source.configuration.add(name="many", num_devices=2**31 - 1)
    assert refusal(source) == [
        "TP165 the ModelProto: it is of IR version 10, which has no annotations. Set ir_version to 11",
        "TP165 the ModelProto: configuration 'hand': it has 0 devices. Say how many devices it has, 1 or more",
        "TP165 the ModelProto: configuration 2: it has no name. Give it one: nodes speak of it by name",
        "TP165 the ModelProto: configuration 2: it has 2 devices and names 1. Name all of them, or none",
        "TP165 the ModelProto: configuration 'many': it has 2147483647 devices, and no more than 65536 are checked. "
        "Check a configuration of fewer",
        "TP165 the ModelProto: configuration 'hand': there are 2 of that name. Give each a name of its own",
    ]


def test_a_model_without_annotations() -> None:
    assert refusal(model(TWO_LAYERS)) == [
        "TP174 the ModelProto: it has no annotations. "
        "Annotate it, as `tpcompile plan MODEL --tp N --annotate FILE` does"
    ]


# -- hostile ---------------------------------------------------------


def test_thousands_of_devices_and_of_shards_are_no_trouble() -> None:
    """65536 devices at 200 nodes, and annotations as long as that."""
    relus = "  ".join(f"a{k + 1} = Relu(a{k})" for k in range(200))
    source = annotated(f"(float[65536, 2] a0) => (float[65536, 2] a200) {{ {relus} }}", "", 65536)
    for node in source.graph.node:
        spec = node.device_configurations.add(configuration_id="hand").sharding_spec.add(tensor_name=node.input[0])
        spec.device.extend(range(65536))
        spec.sharded_dim.add(axis=0).simple_sharding.add(num_shards=65536)
    started = time.perf_counter()
    (found,) = api.check_annotations(source)
    assert (found.valid, found.faults) == (200, [])
    assert time.perf_counter() - started < 30


def test_long_products_of_huge_numbers_are_no_trouble() -> None:
    source = annotated(PRODUCT, "y: x")
    spec = source.graph.node[0].device_configurations[0].sharding_spec[0]
    dim = spec.sharded_dim.add(axis=0)
    for _ in range(20000):
        dim.simple_sharding.add(num_shards=2**62, dim_value=2**62)
    for axis in range(-20000, -2):
        spec.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=2**62)
    started = time.perf_counter()
    (found,) = api.check_annotations(source)
    assert time.perf_counter() - started < 10
    assert str(found.faults[0]) == ("TP170 MatMul y: x: axis 0 is said to be a product of 20000 sizes. Say 64 or fewer")


# -- the command -----------------------------------------------------


def test_the_command_says_what_is_wrong_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(annotated(PAIR, "a: x; up 1/4\n b: a 1/4; b\n y: b 1/4; down 1/4"), tmp_path / "m.onnx")
    assert main(["check-annotations", str(tmp_path / "m.onnx")]) == 2
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("m.onnx, configuration 'hand' of 4 devices code where what what would work TP172 MatMul y")
    assert (
        "3 nodes: 2 valid, 1 faulty, 0 not checked a runtime has to add 1 all_gather over 4 devices b at Relu b" in told
    )


def test_the_command_ends_with_0_where_all_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(annotated(PAIR, "a: x; up 1/4\n b: a 1/4; b 1/4\n y: b 1/4; down 0/4; y"), tmp_path / "m.onnx")
    assert main(["check-annotations", str(tmp_path / "m.onnx"), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in ("configuration", "devices", "nodes", "annotated", "valid", "faulty")} == {
        "configuration": "hand", "devices": 4, "nodes": 3, "annotated": 3, "valid": 3, "faulty": 0,
    }  # fmt: skip
    assert found["collectives"] == {"all_reduce": 1}
    assert found["needed"] == [
        {"op": "all_reduce", "node": "MatMul y", "tensor": "y", "devices": 4, "because": "summed over a cut dimension"}
    ]


def test_weights_need_not_be_there(tmp_path: Path) -> None:
    onnx.save(annotated(PAIR, "a: x; up 1/4"), tmp_path / "m.onnx", save_as_external_data=True, location="m.data",
              size_threshold=0)  # fmt: skip
    (tmp_path / "m.data").unlink()
    (found,) = api.check_annotations(tmp_path / "m.onnx")
    assert found.faults == []


def test_it_is_part_of_the_api() -> None:
    assert tpcompile.check_annotations is api.check_annotations
