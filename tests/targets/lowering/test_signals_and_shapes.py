"""Transforms, convolutions with a state, cuts and unit matrices are written in operators that TensorRT knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.rules.sample import Sample
from tests.rules.samples import fused, images, joins, norms, recurrences
from tests.targets.lowering.lowered import build_faults, error_of
from tpcompile.targets.collectives import make_collective, read_collective
from tpcompile.targets.lowering import lower

OPERATORS = ("DFT", "CausalConvWithState", "LinearAttentionGate")
SAMPLES = [
    *(
        sample
        for family in (norms, images, recurrences, fused)
        for sample in family.SAMPLES
        if sample.key[1] in OPERATORS
    ),
    *(sample for sample in joins.SAMPLES if str(sample) == "Slice no axes"),
    *(
        Sample(op, f"(bool[b, s, 4] x) => (bool[] y) <int64[1] axis = {{1}}> {{ y = {op}(x, axis) }}")
        for op in ("ReduceMax", "ReduceMin")
    ),
    *(
        Sample("EyeLike", f"(float[b, s] x) => ({kind}[] y) {{ y = EyeLike<k = {k}{more}>(x) }}", note=f"{kind} {k}")
        for kind, k, more in (("float", 0, ""), ("int64", -1, ", dtype = 7"))
    ),
    *(
        Sample(
            "DFT",
            f"""(float[b, s, 5, {parts}] x) => (float[] y) <int64 axis = {{{axis}}}>
            {{ y = DFT<{more}>(x, "", axis) }}""".replace("<>", ""),
            opset=20,
            note=f"{parts} parts of axis {axis} {more}",
            sizes={"b": 2, "s": 6},
        )
        for parts, axis, more in (
            (1, 1, "onesided = 1"),
            (1, 2, "onesided = 1"),
            (2, 1, "inverse = 1"),
            (2, -2, "inverse = 1"),
            (2, 1, ""),
            (1, 2, ""),
        )
    ),
]


def test_truth_values_are_exchanged_as_numbers(tmp_path: Path) -> None:
    made = make_collective("all_gather", "x", "y", nb_rank=2, name="y")
    value = [helper.make_tensor_value_info(name, TensorProto.BOOL, [4, "s"]) for name in "xy"]
    graph = helper.make_graph([made], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("tpcompile", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    nodes = lower(model, tmp_path, "lowered.bin").model.graph.node
    assert [node.op_type for node in nodes] == ["Cast", "DistCollective", "Cast"]
    assert read_collective(nodes[1]).op == "all_gather"


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_numbers_stay(sample: Sample, tmp_path: Path) -> None:
    assert error_of(sample, tmp_path) < 2e-6


def test_tensorrt_builds_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="engines need tensorrt-rtx: pip install 'tpcompile[rtx]'")
    assert build_faults(SAMPLES, tmp_path) == {}
