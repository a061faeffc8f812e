"""What collectives carry and where they stand (docs/faults.md, sections F, H, J and K)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.faults.ranks import Ranks, model


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_h7_indices_are_those_of_the_part_that_is_left(tp: int, tmp_path: Path) -> None:
    """The keys of a fused value are taken by number: a number of the whole axis would point at another rank's."""
    text = """(float[B, 5] x) => (float[B, 7] y) <float[5, 24] w, float[12, 7] v, int64[3] apart = {0, 2, 12},
 int64 one = {1}>
{ m = MatMul(x, w) r = Reshape(m, apart) k = Gather <axis = 1> (r, one) t = Tanh(k) y = MatMul(t, v) }"""
    ranks = Ranks(model(text), tp, tmp_path, objective="balanced", pins={"v": "row"})
    assert ranks.collectives == {"all_reduce": 1}


CARRIED = {
    "bool": "y = Greater(m, zero)",
    "int64": "r = Round(m) y = Cast <to = 7> (r)",
    "int32": "r = Round(m) y = Cast <to = 6> (r)",
    "int16": "r = Round(m) y = Cast <to = 5> (r)",
    "float16": "y = Cast <to = 10> (m)",
}


@pytest.mark.parametrize("dtype", CARRIED)
@pytest.mark.parametrize("tp", [2, 3])
def test_j5_what_is_gathered_keeps_its_type_as_the_last_node_too(dtype: str, tp: int, tmp_path: Path) -> None:
    text = f"""(float[B, 5] x) => ({dtype}[B, 13] y) <float[5, 13] w, float zero = {{0}}>
{{ m = MatMul(x, w) {CARRIED[dtype]} }}"""
    ranks = Ranks(model(text), tp, tmp_path, objective="balanced", pins={"w": "column"})
    (call,) = ranks.manifest()["collectives"]
    assert (call["op"], call["dtype"]) == ("all_gather", dtype)


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize(("asked", "sent"), [("float32", "float32"), ("model", "float16")])
def test_j5_a_sum_of_half_precision_is_of_the_type_asked_for(
    asked: str, sent: str, tp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """(float16[B, 5] x) => (float16[B, 7] y) <float16[5, 12] w, float16[12, 7] v>
{ m = MatMul(x, w) t = Relu(m) y = MatMul(t, v) }"""
    monkeypatch.setattr("tests.faults.ranks.LIMIT", 5e-3)
    ranks = Ranks(model(text), tp, tmp_path, objective="balanced", pins={"v": "row"}, reduce_dtype=asked)
    assert [(call["op"], call["dtype"]) for call in ranks.manifest()["collectives"]] == [("all_reduce", sent)]


BRANCHES = """(float[B, 5] x, CONDITION) => (float[B, 7] y) <float[5, 12] w, float[12, 7] v, float[12, 7] u,
 float zero = {0}>
{ m = MatMul(x, w) t = Tanh(m) DECIDED
 y = If(c) <then_branch = a () => (float[B, 7] p) { n = Neg(t) p = MatMul(n, v) },
            else_branch = e () => (float[B, 7] q) { q = MatMul(t, u) }> }"""


def branches(proto: onnx.ModelProto, kind: str) -> list[int]:
    """How many nodes of a kind each branch of the model's If has."""
    chosen = next(node for node in proto.graph.node if node.op_type == "If")
    return [sum(node.op_type == kind for node in attribute.g.node) for attribute in chosen.attribute]


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("tp", [2, 3, 4])
def test_k5_a_collective_stands_in_a_branch_that_all_ranks_take(tp: int, taken: bool, tmp_path: Path) -> None:
    """The condition is an input, whole on every rank: no rank can wait for one that took the other branch."""
    proto = model(BRANCHES.replace("CONDITION", "bool c").replace("DECIDED", ""))
    ranks = Ranks(
        proto, tp, tmp_path, given={"c": np.array(taken)}, objective="balanced", pins={"v": "row", "u": "row"}
    )
    assert [branches(held, "DistCollective") for held in ranks.models] == [[1, 1]] * tp


DECISIONS = {
    "of a pending sum": "z = MatMul(t, o) r = ReduceMax <keepdims = 0> (z) c = Greater(r, zero)",
    "of a cut value": "r = ReduceMax <keepdims = 0> (t) c = Greater(r, half)",
}


@pytest.mark.parametrize("decided", DECISIONS)
@pytest.mark.parametrize("tp", [2, 3, 4])
def test_k5_a_condition_is_made_whole_before_the_branch(decided: str, tp: int, tmp_path: Path) -> None:
    """A rank that decided by its own part would take another branch than the next, and wait forever."""
    text = BRANCHES.replace(", CONDITION", "").replace("DECIDED", DECISIONS[decided])
    text = text.replace("float zero = {0}", "float zero = {0}, float half = {0.5}, float[12, 3] o")
    ranks = Ranks(model(text), tp, tmp_path, objective="balanced", pins={"v": "row", "u": "row"})
    for held in ranks.models:
        before = [node.op_type for node in held.graph.node]
        assert before.index("DistCollective") < before.index("If")


def test_k5_the_body_of_a_loop_holds_no_collective(tmp_path: Path) -> None:
    """How often it runs may depend on anything: what would need a collective in it is gathered before."""
    text = """(float[B, 5] x, int64 n) => (float[B, 12] y) <float[5, 12] w, bool go = {1}>
{ m = MatMul(x, w) t = Tanh(m)
 y = Loop(n, go, t) <body = l (int64 i, bool c, float[B, 12] v) => (bool d, float[B, 12] z)
  { d = Identity(c) s = Softmax(v) z = Add(s, t) }> }"""
    ranks = Ranks(model(text), 2, tmp_path, given={"n": np.array(3)}, objective="balanced", pins={"w": "column"})
    for held in ranks.models:
        loop = next(node for node in held.graph.node if node.op_type == "Loop")
        assert [node.op_type for node in loop.attribute[0].g.node].count("DistCollective") == 0
