"""Ifs whose branches hold collectives: simulated, followed, and damaged on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.run import handmade
from tests.verify.bundles import edit_rank, store
from tests.verify.test_damage import said
from tpcompile.verify.branches import make_names_unique, walk
from tpcompile.verify.command import VerifyReport, verify_bundle


def bundle_of(folder: Path, ranks: int, asks_its_rank: bool = False) -> Path:
    bundle, whole = handmade.branching(folder / "b", ranks, asks_its_rank=asks_its_rank)
    onnx.save(whole, folder / "model.onnx")
    return bundle


def verified(bundle: Path, asked: bool | None = None) -> VerifyReport:
    """By default inputs, or only by those that take one branch."""
    x = np.random.default_rng(1).standard_normal((3, 10)).astype(np.float32)
    return verify_bundle(bundle, inputs=None if asked is None else {"x": x, "asked": np.array([asked])})


@pytest.mark.parametrize("ranks", [2, 3])
def test_both_branches_are_followed(tmp_path: Path, ranks: int) -> None:
    report = verified(bundle_of(tmp_path, ranks))
    assert [str(fault) for fault in report.faults] == []
    assert [warning for check in report.checks for warning in check.warnings] == [
        "not followed: no inputs led into the then_branch of If inner"
    ]
    assert "flags off" in [trial.name for trial in report.trials]
    ways = "19 of 19 operations followed, 12 of 12 operations followed in other branches"
    assert report.checks[2].saw == ways


def test_inputs_choose_the_branch(tmp_path: Path) -> None:
    feeds = {
        "x": np.abs(np.random.default_rng(1).standard_normal((3, 10))).astype(np.float32),
        "asked": np.array([False]),
    }
    report = verify_bundle(bundle_of(tmp_path, 2), inputs=feeds)
    assert report.ok and report.checks[2].warnings == [
        "not followed: no inputs led into the else_branch of If inner",
        "not followed: no inputs led into the then_branch of If choice",
    ]


def inner(model: onnx.ModelProto, output: str) -> tuple[onnx.GraphProto, int]:
    """The graph that holds the node which makes `output`, and where."""
    for graph in [model.graph, *(e.g for node in walk(model.graph) for e in node.attribute if e.HasField("g"))]:
        for at, node in enumerate(graph.node):
            if output in node.output:
                return graph, at
    raise AssertionError(output)


def forget_reduce(model: onnx.ModelProto) -> None:
    graph, at = inner(model, "r")
    graph.node[at].CopyFrom(helper.make_node("Identity", ["p"], ["r"]))


def max_for_sum(model: onnx.ModelProto) -> None:
    graph, at = inner(model, "else_z")
    next(entry for entry in graph.node[at].attribute if entry.name == "reduce_op").s = b"max"


def partial_leaves(model: onnx.ModelProto) -> None:
    graph, at = inner(model, "else_z")
    graph.node[at].CopyFrom(helper.make_node("Identity", ["t2"], ["else_z"]))


def swap_branches(model: onnx.ModelProto) -> None:
    graph, at = inner(model, "chosen")
    for entry in graph.node[at].attribute:
        entry.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[entry.name]


def swap_inner_branches(model: onnx.ModelProto) -> None:
    graph, at = inner(model, "else_y")
    for entry in graph.node[at].attribute:
        entry.name = {"then_branch": "else_branch", "else_branch": "then_branch"}[entry.name]


def bias_of_another(model: onnx.ModelProto) -> None:
    store(model, "bias", np.zeros(10, np.float32))


Change = Callable[[onnx.ModelProto], None]
DAMAGES: list[tuple[Change, tuple[int, ...], bool, str, str]] = [
    (forget_reduce, (0, 1), True, "TP525", "Add b: adds 'bias', which every rank holds, to partial 'r'"),
    (
        forget_reduce,
        (1,),
        True,
        "TP522",
        "its collective 0 is all_gather to 'g', that of rank 0 is all_reduce to 'r'",
    ),
    (max_for_sum, (0, 1), False, "TP523", "reduces 't2' by max, which is partial (sum)"),
    (partial_leaves, (0, 1), False, "TP524", "output z: is partial (sum): a collective is missing"),
    (swap_branches, (1,), True, "TP522", "its collective 0 is all_reduce to 'r2', that of rank 0 is all_reduce to 'r'"),
    (swap_branches, (0, 1), True, "TP531", "output y (given): relative error"),
    (
        swap_inner_branches,
        (0, 1),
        False,
        "TP532",
        "first value that departs from the source: else_y (made by If inner)",
    ),
    (bias_of_another, (1,), True, "TP531", "is whole by bundle.json, but rank 1 has another value than rank 0"),
]


@pytest.mark.parametrize(
    ("change", "ranks", "asked", "code", "text"), DAMAGES, ids=[f"{d[0].__name__} {d[1]}" for d in DAMAGES]
)
def test_damage_in_a_branch(
    tmp_path: Path, change: Change, ranks: tuple[int, ...], asked: bool, code: str, text: str
) -> None:
    bundle = bundle_of(tmp_path, 2)
    for rank in ranks:
        edit_rank(bundle, rank, change)
    report = verified(bundle, asked)
    assert said(report, code, text), "\n".join(map(str, report.faults))


def test_a_condition_that_differs_between_ranks(tmp_path: Path) -> None:
    report = verified(bundle_of(tmp_path, 2, asks_its_rank=True))
    text = "If choice: its branches hold collectives, and the ranks take then_branch, else_branch"
    assert said(report, "TP530", text), "\n".join(map(str, report.faults))


def test_a_condition_that_is_equal_only_by_chance(tmp_path: Path) -> None:
    """Each rank asks its own part of a cut value: this run's ranks agree, others may not."""
    bundle = bundle_of(tmp_path, 2)

    def change(model: onnx.ModelProto) -> None:
        graph, at = inner(model, "condition")
        del graph.node[at]
        for node in reversed(
            handmade.nodes_of("most = ReduceMax <keepdims = 0> (h)  condition = Less (most, far_off)")
        ):
            graph.node.insert(at, node)
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(5, np.float32), "far_off"))

    for rank in range(2):
        edit_rank(bundle, rank, change)
    report = verified(bundle, True)
    assert said(report, "TP524", "Less condition: reads 'most', which is partial (max)")


def test_a_collective_in_a_loop_cannot_be_simulated(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, 2)

    def change(model: onnx.ModelProto) -> None:
        graph, at = inner(model, "chosen")
        body = next(entry.g for entry in graph.node[at].attribute if entry.name == "then_branch")
        graph.node.append(helper.make_node("Loop", ["", "condition"], ["looped"], name="turns", body=body))

    for rank in range(2):
        edit_rank(bundle, rank, change)
    assert said(verified(bundle, True), "TP530", "turns: a collective inside the body of Loop cannot be simulated")


def test_names_that_two_branches_share() -> None:
    """The second to use a name gets its path; what captures it further in follows, what hides it does not."""
    value = helper.make_tensor_value_info("t", 1, [2])

    def graph(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(nodes, "g", [], [value])

    deep = helper.make_node(
        "If", ["c"], ["t"], name="deep",
        then_branch=helper.make_graph(handmade.nodes_of("u = Neg (s)"), "g", [], [value]),
        else_branch=helper.make_graph(handmade.nodes_of("s = Abs (x)  v = Neg (s)"), "g", [], [value]),
    )  # fmt: skip
    node = helper.make_node(
        "If", ["c"], ["y"], name="outer",
        then_branch=graph(handmade.nodes_of("s = Neg (x)  t = Abs (s)")),
        else_branch=graph([*handmade.nodes_of("s = Exp (x)"), deep]),
    )  # fmt: skip
    whole = helper.make_graph([node], "g", [], [])
    make_names_unique(whole)
    found = [f"{','.join(n.output)} = {n.op_type}({','.join(n.input)})" for n in walk(whole)]
    assert found == [
        "s = Neg(x)",
        "t = Abs(s)",
        "s@/outer.else_branch = Exp(x)",
        "u = Neg(s@/outer.else_branch)",
        "s@/outer.else_branch/deep.else_branch = Abs(x)",
        "v = Neg(s@/outer.else_branch/deep.else_branch)",
        "t@/outer.else_branch = If(c)",
        "y = If(c)",
    ]
