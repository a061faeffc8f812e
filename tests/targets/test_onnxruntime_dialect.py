"""`--dialect onnxruntime`: ONNX Runtime's own collectives in the files, and every tool reads them as it reads ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tpcompile
from tests import zoo
from tests.plan.models import TWO_LAYERS, model
from tpcompile.cli import main
from tpcompile.errors import Refused
from tpcompile.targets.collectives import Collective, is_collective, make_collective, read_collective, register_schema
from tpcompile.targets.onnxruntime_dialect import translate
from tpcompile.verify.command import verify_bundle
from tpcompile.verify.simulate import perform

TYPES = {getattr(TensorProto, name): name for name in ("FLOAT", "FLOAT16", "DOUBLE", "INT64", "BOOL")}
"""What ONNX Runtime's schemas of AllGather and AllToAll name; AllReduce takes the first three."""


def around(node: onnx.NodeProto, kind: int, opset: int = 21) -> onnx.ModelProto:
    """A rank's model that is one collective from x to y."""
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, ["b", 4])],
        [helper.make_tensor_value_info("y", kind, ["c", "d"])],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("tpcompile", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def shown(made: onnx.ModelProto) -> str:
    return " ".join(node.op_type for node in made.graph.node)


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize(
    ("op", "kind", "options", "nodes"),
    [
        ("all_reduce", TensorProto.FLOAT, {"reduce_op": "sum"}, "AllReduce"),
        ("all_reduce", TensorProto.FLOAT16, {"reduce_op": "sum"}, "AllReduce"),
        ("all_reduce", TensorProto.BFLOAT16, {"reduce_op": "sum"}, "Cast AllReduce Cast"),
        ("all_reduce", TensorProto.INT32, {"reduce_op": "sum"}, "Cast AllReduce Cast"),
        ("all_reduce", TensorProto.INT64, {"reduce_op": "sum"}, "Unsqueeze AllGather ReduceSum"),
        ("all_reduce", TensorProto.FLOAT, {"reduce_op": "max"}, "Unsqueeze AllGather ReduceMax"),
        ("all_reduce", TensorProto.INT32, {"reduce_op": "min"}, "Cast Unsqueeze AllGather ReduceMin Cast"),
        ("all_reduce", TensorProto.FLOAT, {"reduce_op": "avg"}, "Unsqueeze AllGather ReduceMean"),
        ("all_reduce", TensorProto.FLOAT, {"reduce_op": "prod"}, "Unsqueeze AllGather ReduceProd"),
        ("all_gather", TensorProto.FLOAT, {}, "AllGather"),
        ("all_gather", TensorProto.BOOL, {}, "AllGather"),
        ("all_gather", TensorProto.INT64, {}, "AllGather"),
        ("all_gather", TensorProto.UINT8, {}, "Cast AllGather Cast"),
        ("all_gather", TensorProto.INT32, {}, "Cast AllGather Cast"),
        ("all_to_all", TensorProto.FLOAT, {}, "AllToAll"),
        ("broadcast", TensorProto.FLOAT, {"root": 2}, "Unsqueeze AllGather Gather"),
    ],
)
def test_each_collective_gives_what_ours_gives(
    op: str, kind: int, options: dict[str, Any], nodes: str, opset: int
) -> None:
    """Three ranks run the composed nodes with onnx's own reference; what travels has a type that the schemas name."""
    if kind == TensorProto.BFLOAT16:
        opset = max(opset, 13)  # the first whose Cast knows the type
    tp, ours = 3, make_collective(op, "x", "y", nb_rank=3, name="c", **options)
    made = around(ours, kind, opset)
    sent = translate(made, tp)["y"]
    assert shown(made) == nodes
    onnx.checker.check_model(made, full_check=True)
    joint = next(node for node in made.graph.node if node.domain == "com.microsoft")
    told = {info.name: info.type.tensor_type.elem_type for info in (*made.graph.value_info, *made.graph.output)}
    assert told[joint.output[0]] in [kind for kind in TYPES if joint.op_type != "AllReduce" or kind < 2 or kind > 9]
    assert read_collective(joint).op == sent.op
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    draw = np.random.default_rng(3)
    xs = [(draw.standard_normal((6, 4)) * 20).astype(np.float32).astype(dtype) for _ in range(tp)]
    if dtype.kind == "u":
        xs = [np.abs(x) for x in xs]
    want = perform([ours] * tp, xs)
    got = run_ranks(made, xs)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        tolerance = 0 if dtype.kind in "iub" or op != "all_reduce" else 2e-2 if dtype.itemsize == 2 else 1e-6
        np.testing.assert_allclose(mine.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance)


def run_ranks(made: onnx.ModelProto, xs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The nodes one after the other on all ranks, with collectives in numpy."""
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    values: list[dict[str, Any]] = [{"x": x} | stored for x in xs]
    opsets = [opset for opset in made.opset_import if opset.domain == ""]
    for node in made.graph.node:
        if is_collective(node):
            results = perform([node] * len(xs), [mine[node.input[0]] for mine in values])
        else:
            single = helper.make_model(
                helper.make_graph(
                    [node], "one",
                    [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[0][n].dtype), None)
                     for n in node.input],
                    [helper.make_tensor_value_info(node.output[0], 0, None)],
                ), opset_imports=opsets, ir_version=10,
            )  # fmt: skip
            reference = ReferenceEvaluator(single)
            results = [reference.run(None, {name: mine[name] for name in node.input})[0] for mine in values]
        for mine, result in zip(values, results, strict=True):
            mine[node.output[0]] = np.asarray(result)
    return [mine["y"] for mine in values]


@pytest.mark.parametrize(
    ("op", "kind", "options", "fact"),
    [
        ("all_reduce", TensorProto.FLOAT, {"reduce_op": "sum", "groups": (0, 2)},
         "is all_reduce(sum) of 'x' in the group [0, 2] of 4 ranks"),
        ("reduce_scatter", TensorProto.FLOAT, {"reduce_op": "sum"}, "is reduce_scatter(sum) of 'x'"),
        ("all_gather", TensorProto.UINT64, {}, "is all_gather of 'x', of type uint64"),
    ],
)  # fmt: skip
def test_what_has_no_translation_is_named(op: str, kind: int, options: dict[str, Any], fact: str) -> None:
    size = 2 if "groups" in options else 4
    with pytest.raises(Refused) as caught:
        translate(around(make_collective(op, "x", "y", nb_rank=size, name="layer.0/sum", **options), kind), 4)
    assert str(caught.value) == (
        f"TP730 collective layer.0/sum: {fact}, which ONNX Runtime's collectives cannot do. "
        "Leave out --dialect onnxruntime: DistCollective has it"
    )


def test_the_files_hold_their_operators_and_nothing_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = tpcompile.compile(model(TWO_LAYERS), 2, tmp_path / "b", dialect="onnxruntime", verify=True)
    assert bundle.manifest.dialect == tpcompile.load(tmp_path / "b").manifest.dialect == "onnxruntime"
    made = bundle.rank_model(1)
    ops = [(node.domain, node.op_type) for node in made.graph.node if node.domain]
    assert ops == [("com.microsoft", "AllReduce")] * 3 + [("com.microsoft", "AllGather")]
    assert [(opset.domain, opset.version) for opset in made.opset_import][1:] == [("com.microsoft", 1)]
    assert [call.op for call in bundle.manifest.collectives] == ["all_reduce"] * 3 + ["all_gather"]
    assert main(["inspect", str(tmp_path / "b")]) == 0
    assert "in the dialect onnxruntime" in " ".join(capsys.readouterr().out.split())
    gather = next(node for node in made.graph.node if node.op_type == "AllGather")
    assert {a.name: a.i for a in gather.attribute} == {"axis": 0, "group_size": 2}


@pytest.mark.parametrize("dialect", ["tensorrt", "onnxruntime"])
def test_the_checker_passes_on_both(dialect: str, tmp_path: Path) -> None:
    register_schema()
    tpcompile.compile(model(TWO_LAYERS), 2, tmp_path / "b", dialect=dialect)
    for rank in range(2):
        onnx.checker.check_model(tmp_path / "b" / f"model_tp2_rank{rank}.onnx", full_check=True)


@pytest.mark.parametrize(
    ("graph", "tp"),
    [("bert__dynamo", 2), ("llama__dynamo__kv", 2), ("llama-odd__legacy", 3), ("gpt-neox__optimum", 4)],
)
def test_real_graphs_verify_in_this_dialect(graph: str, tp: int, tmp_path: Path) -> None:
    source = zoo.model(graph)
    tpcompile.compile(source, tp, tmp_path / "out", dialect="onnxruntime")
    report = verify_bundle(tmp_path / "out", source)
    assert [str(fault) for fault in report.faults] == []
    assert [warning for check in report.checks for warning in check.warnings] == []


SHARED_RANGE = """<ir_version: 10, opset_import: ["" : 21]>
g (float[b, 8] x) => (float[b, 6] y) <float[8, 24] up, int8[24, 6] down, int8 zero = {0}, float scale = {0.03}>
{ h = MatMul(x, up)  r = Tanh(h)  q, s, z = DynamicQuantizeLinear(r)  p = MatMulInteger(q, down, z, zero)
  f = Cast<to = 1>(p)  t = Mul(f, s)  y = Mul(t, scale) }"""


def quantised() -> onnx.ModelProto:
    made = onnx.parser.parse_model(SHARED_RANGE)
    draw = np.random.default_rng(5)
    made.graph.initializer.append(onnx.numpy_helper.from_array(draw.standard_normal((8, 24), np.float32), "up"))
    down = draw.integers(-90, 90, (24, 6)).astype(np.int8)
    made.graph.initializer.append(onnx.numpy_helper.from_array(down, "down"))
    return made


def test_a_shared_range_and_a_sum_of_integers(tmp_path: Path) -> None:
    """The largest element over all ranks, and int32 partial sums: neither is a thing ONNX Runtime's AllReduce does."""
    bundle = tpcompile.compile(quantised(), 2, tmp_path / "b", dialect="onnxruntime", pins={"up": "column"})
    calls = [(call.op, call.dtype, call.bytes) for call in bundle.manifest.collectives]
    assert calls == [("all_gather", "float32", "16"), ("all_reduce", "float64", "b*48")]
    report = verify_bundle(tmp_path / "b", quantised())
    assert [str(fault) for fault in report.faults] == []
    assert [warning for check in report.checks for warning in check.warnings] == []


def test_reducing_what_was_gathered_by_another_operation_is_a_fault(tmp_path: Path) -> None:
    from tests.verify.bundles import edit_rank

    tpcompile.compile(quantised(), 2, tmp_path / "b", dialect="onnxruntime", pins={"up": "column"})

    def least(rank_model: onnx.ModelProto) -> None:
        next(n for n in rank_model.graph.node if n.input[0].endswith("allgather")).op_type = "ReduceMin"

    for rank in range(2):
        edit_rank(tmp_path / "b", rank, least)
    assert "TP523" in [fault.code for fault in verify_bundle(tmp_path / "b", quantised()).faults]


def test_ranks_run_them_on_cpus(tmp_path: Path) -> None:
    source = model(TWO_LAYERS)
    tpcompile.compile(source, 2, tmp_path / "ours")
    tpcompile.compile(source, 2, tmp_path / "theirs", dialect="onnxruntime")
    feeds = {"ids": np.array([[3, 1, 4, 1, 5], [2, 6, 5, 3, 5]], np.int64)}
    results = []
    for name in ("ours", "theirs"):
        with tpcompile.InferenceSession(tmp_path / name) as session:
            results.append(session.run(None, feeds))
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_reading_back() -> None:
    node = helper.make_node("AllGather", ["x"], ["y"], name="c", domain="com.microsoft", group_size=4, axis=0)
    assert read_collective(node) == Collective("all_gather", "x", "y", "c", 4)
    node = helper.make_node("AllReduce", ["x"], ["y"], name="c", domain="com.microsoft")
    assert read_collective(node) == Collective("all_reduce", "x", "y", "c", 0, reduce_op="sum")
    node = helper.make_node("AllGather", ["x", "z"], ["y"], name="c", domain="com.microsoft", group_size=0)
    with pytest.raises(Refused) as caught:
        read_collective(node)
    assert str(caught.value) == (
        "TP461 collective c: has 2 inputs and 1 outputs, not one of each; group_size is 0; lacks the attribute axis. "
        "Compile the model again"
    )


def test_a_rank_s_file_is_no_source(tmp_path: Path) -> None:
    tpcompile.compile(model(TWO_LAYERS), 2, tmp_path / "b", dialect="onnxruntime")
    with pytest.raises(Refused, match=r"TP222 model_tp2_rank0.onnx: holds AllReduce nodes"):
        tpcompile.compile(tmp_path / "b" / "model_tp2_rank0.onnx", 2, tmp_path / "c")
