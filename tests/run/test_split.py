"""Where a rank's graph is cut, what crosses a cut, and what may be reduced in place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.run.handmade import nodes_of
from tpcompile.errors import Refused
from tpcompile.run.bfloat16 import compute_in_float32
from tpcompile.run.split import Choice, Exchange, Segment, Stage, collectives, split
from tpcompile.targets.collectives import make_collective


def reduce(x: str, y: str) -> onnx.NodeProto:
    return make_collective("all_reduce", x, y, nb_rank=2, reduce_op="sum", name=y)


def graph(
    nodes: list[onnx.NodeProto], outputs: list[str], weights: tuple[str, ...] = ("w",), kind: int = 1
) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, [2])],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [onnx.numpy_helper.from_array(np.ones(2, np.float32), name) for name in weights],
        value_info=[helper.make_tensor_value_info(node.output[0], kind, [2]) for node in nodes if node.domain],
    )  # fmt: skip


def shown(stages: list[Stage]) -> list[str]:
    """Stages in a line each: `inputs -> ops -> outputs`, collectives with * where they work in place."""
    lines = []
    for stage in stages:
        if isinstance(stage, Segment):
            operators = " ".join(node.op_type for node in stage.nodes)
            lines.append(f"{','.join(stage.inputs)} -> {operators} -> {','.join(stage.outputs)}")
        elif isinstance(stage, Choice):
            for name, branch in (("then", stage.then_branch), ("else", stage.else_branch)):
                lines.append(f"{name} {stage.condition} ({','.join(branch.inputs)})")
                lines += [f"  {line}" for line in shown(list(branch.stages))]
            lines.append(f"end {','.join(stage.outputs)}")
        else:
            lines.append(f"{stage.collective.input} => {stage.collective.output}{' *' if stage.owned else ''}")
    return lines


def test_one_segment_without_collectives() -> None:
    assert shown(split(graph(nodes_of("y = Mul (x, w)  z = Neg (y)"), ["z"]))) == ["x -> Mul Neg -> z"]


def test_cut_at_each_collective() -> None:
    nodes = [
        *nodes_of("a = Mul (x, w)"),
        reduce("a", "b"),
        *nodes_of("c = Neg (b)"),
        reduce("c", "d"),
        *nodes_of("e = Add (d, x)"),
    ]
    assert shown(split(graph(nodes, ["e"]))) == [
        "x -> Mul -> a",
        "a => b *",
        "b -> Neg -> c",
        "c => d *",
        "d,x -> Add -> e",
    ]


def test_independent_collectives_of_one_level_share_a_cut() -> None:
    nodes = [*nodes_of("a = Neg (x)  b = Abs (x)"), reduce("a", "c"), reduce("b", "d"), *nodes_of("e = Add (c, d)")]
    assert shown(split(graph(nodes, ["e"]))) == ["x -> Neg Abs -> a,b", "a => c *", "b => d *", "c,d -> Add -> e"]


@pytest.mark.parametrize(
    ("nodes", "outputs", "expected"),
    [
        ([*nodes_of("a = Neg (x)"), reduce("a", "b"), *nodes_of("c = Add (a, b)")], ["c"], "a => b"),
        ([*nodes_of("a = Neg (x)"), reduce("a", "b")], ["a", "b"], "a => b"),
        ([reduce("x", "b")], ["b"], "x => b"),
        ([*nodes_of("a = Neg (x)"), reduce("a", "b")], ["b"], "a => b *"),
    ],
)
def test_nothing_live_is_reduced_in_place(nodes: list[onnx.NodeProto], outputs: list[str], expected: str) -> None:
    assert expected in shown(split(graph(nodes, outputs)))


def test_what_is_always_the_same_is_copied_not_passed() -> None:
    nodes = [*nodes_of("v = Exp (w)  a = Mul (x, v)"), reduce("a", "b"), *nodes_of("c = Mul (b, v)")]
    assert shown(split(graph(nodes, ["c"]))) == ["x -> Exp Mul -> a", "a => b *", "b -> Exp Mul -> c"]


def test_a_collective_of_a_weight() -> None:
    nodes = [*nodes_of("v = Exp (w)"), reduce("v", "b"), reduce("w", "d"), *nodes_of("c = Add (b, d)  e = Add (c, x)")]
    assert shown(split(graph(nodes, ["e"]))) == [" -> Exp -> v,w", "v => b *", "w => d *", "b,d,x -> Add Add -> e"]


def test_a_random_value_is_drawn_once() -> None:
    nodes = [
        *nodes_of("r = RandomNormal <shape = [2]> ()  a = Mul (x, r)"),
        reduce("a", "b"),
        *nodes_of("c = Mul (b, r)"),
    ]
    assert shown(split(graph(nodes, ["c"]))) == ["x -> RandomNormal Mul -> r,a", "a => b *", "b,r -> Mul -> c"]


def test_views_are_made_where_they_are_read() -> None:
    nodes = [*nodes_of("v = Abs (x)  a = Neg (v)  u = Exp (v)"), reduce("a", "b"), *nodes_of("c = Mul (b, u)")]
    assert shown(split(graph(nodes, ["c"]))) == ["x -> Abs Neg -> v,a", "a => b *", "v,b -> Exp Mul -> c"]


def test_weights_go_only_where_they_are_read() -> None:
    nodes = [*nodes_of("a = Mul (x, w)"), reduce("a", "b"), *nodes_of("c = Mul (b, u)")]
    found = [s.initializers for s in split(graph(nodes, ["c"], ("w", "u"))) if isinstance(s, Segment)]
    assert found == [("w",), ("u",)]


def test_half_sums_are_widened() -> None:
    nodes = [*nodes_of("a = Neg (x)"), reduce("a", "b"), *nodes_of("c = Neg (b)")]
    stages = split(graph(nodes, ["c"], kind=onnx.TensorProto.FLOAT16))
    assert shown(stages) == ["x -> Neg Cast -> b/wide_in", "b/wide_in => b/wide_out *", "b/wide_out -> Cast Neg -> c"]


def test_half_gathers_are_not_widened() -> None:
    nodes = [*nodes_of("a = Neg (x)"), make_collective("all_gather", "a", "b", nb_rank=2, name="b")]
    assert shown(split(graph(nodes, ["b"], kind=onnx.TensorProto.FLOAT16))) == ["x -> Neg -> a", "a => b *"]


def test_values_that_subgraphs_read_cross_cuts() -> None:
    branch = helper.make_graph(nodes_of("t = Add (a, b)"), "t", [], [helper.make_tensor_value_info("t", 1, None)])
    branches = helper.make_node("If", ["b"], ["c"], then_branch=branch, else_branch=branch)
    nodes = [*nodes_of("a = Neg (x)  d = Abs (x)"), reduce("d", "b"), branches]
    assert shown(split(graph(nodes, ["c"]))) == ["x -> Abs -> d", "d => b *", "x,b -> Neg If -> c"]


def choice(then: list[onnx.NodeProto], other: list[onnx.NodeProto]) -> onnx.NodeProto:
    """An If on `a` that gives `c`; each branch gives what its last node makes."""
    branches = [
        helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info(nodes[-1].output[0], 1, None)])
        for nodes in (then, other)
    ]
    return helper.make_node("If", ["a"], ["c"], then_branch=branches[0], else_branch=branches[1], name="choice")


def test_a_branch_with_collectives_is_split_as_a_graph_is() -> None:
    """It captures the moving `d`, the fixed `v`, and leaves `d` as it is: another may read it."""
    then = [*nodes_of("m = Mul (d, v)"), reduce("m", "s"), reduce("d", "t"), *nodes_of("o = Add (s, t)")]
    nodes = [
        *nodes_of("v = Exp (w)  a = Neg (x)  d = Abs (x)"),
        choice(then, nodes_of("e = Add (v, u)")),
        *nodes_of("f = Add (c, d)"),
    ]
    stages = split(graph(nodes, ["f"], ("w", "u")))
    assert shown(stages) == [
        "x -> Neg Abs -> a,d",
        "then a (d)",
        "  d -> Exp Mul -> m",
        "  m => s *",
        "  d => t",
        "  s,t -> Add -> o",
        "else a ()",
        "   -> Exp Add -> e",
        "end c",
        "c,d -> Add -> f",
    ]
    assert [found.input for found in collectives(stages)] == ["m", "d"]


def test_a_branch_without_collectives_stays_a_node() -> None:
    nodes = [*nodes_of("a = Neg (x)"), choice(nodes_of("t = Abs (a)"), nodes_of("e = Exp (a)"))]
    assert shown(split(graph(nodes, ["c"]))) == ["x -> Neg If -> c"]


def test_choices_and_collectives_come_in_file_order() -> None:
    nodes = [
        *nodes_of("a = Neg (x)"),
        reduce("a", "b"),
        choice([reduce("a", "t")], nodes_of("e = Exp (a)")),
        reduce("c", "d"),
    ]
    assert shown(split(graph(nodes, ["b", "d"]))) == [
        "x -> Neg -> a", "a => b", "then a (a)", "  a => t", "else a (a)", "  a -> Exp -> e", "end c", "c => d *",
    ]  # fmt: skip


def test_half_sums_in_a_branch_are_widened() -> None:
    then = [reduce("a", "t"), *nodes_of("o = Neg (t)")]
    node = choice(then, nodes_of("e = Exp (a)"))
    inner = next(entry.g for entry in node.attribute if entry.name == "then_branch")
    inner.value_info.append(helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT16, None))
    stages = split(graph([*nodes_of("a = Neg (x)"), node], ["c"], kind=onnx.TensorProto.FLOAT16))
    assert "  t/wide_in => t/wide_out *" in shown(stages)


def test_a_collective_in_a_loop_is_refused() -> None:
    body = helper.make_graph([reduce("x", "t")], "t", [], [helper.make_tensor_value_info("t", 1, None)])
    node = helper.make_node("Loop", ["x"], ["c"], body=body, name="turns")
    for nodes in ([node], [choice([node], nodes_of("e = Exp (x)"))]):
        with pytest.raises(Refused) as caught:
            split(graph([*nodes_of("a = Neg (x)"), *nodes], ["c"]))
        assert str(caught.value) == (
            "TP602 Loop turns: holds collectives inside, and how often its body runs may differ between ranks. "
            "Compile the model again; tpcompile leaves whole what a loop computes"
        )


def test_exchanges_carry_the_collective() -> None:
    stages = split(graph([*nodes_of("a = Neg (x)"), reduce("a", "b")], ["b"]))
    assert [s.collective.op for s in stages if isinstance(s, Exchange)] == ["all_reduce"]


def test_bfloat16_computes_in_float32() -> None:
    made = graph(nodes_of("a = Cast <to = 16> (x)  b = Mul (a, w)"), ["b"], kind=onnx.TensorProto.BFLOAT16)
    assert compute_in_float32(made)
    assert [(n.op_type, list(n.input), list(n.output)) for n in made.node] == [
        ("Cast", ["x"], ["x/float32"]),
        ("Cast", ["x/float32"], ["a"]),
        ("Mul", ["a", "w"], ["b/float32"]),
        ("Cast", ["b/float32"], ["b"]),
    ]
    assert made.node[1].attribute[0].i == onnx.TensorProto.FLOAT
    assert not compute_in_float32(graph(nodes_of("b = Mul (x, w)"), ["b"]))
