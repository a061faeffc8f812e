"""The printed table of rules, and what the table refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.dims.trees import leaf
from tpcompile.dims.__main__ import table
from tpcompile.dims.notation import parse
from tpcompile.dims.registry import RULES, find_rule, rule
from tpcompile.dims.relation import NotCovered, Relation
from tpcompile.graph.program import Node, Value


def printed() -> list[str]:
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-m", "tpcompile.dims"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_all_rules_are_printed_in_the_order_of_the_alphabet() -> None:
    lines = printed()
    assert lines == list(table())
    names = [line.split()[0] for line in lines]
    assert names == sorted(names, key=str.lower)
    found = {(line.split()[1].replace("ai.onnx", ""), line.split()[0]) for line in lines}
    assert found == set(RULES)


def test_each_rule_says_in_a_sentence_what_it_means() -> None:
    lines = [line.split(maxsplit=2) for line in table()]
    assert all(len(line) == 3 for line in lines)
    assert ["Softmax", "ai.onnx", "The axis needs all of it; before opset 13 all axes from it on."] in lines


def test_a_second_rule_for_an_operator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ai\.onnx\.MatMul has a rule already$"):
        rule("MatMul")(lambda op: None)


def test_an_operator_without_a_rule_says_so() -> None:
    with pytest.raises(NotCovered, match=r"^FancyOp has no rule$"):
        find_rule("", "FancyOp")
    assert find_rule("ai.onnx", "MatMul") is find_rule("", "MatMul")


@pytest.mark.parametrize(
    "text, said",
    [("a b", r"^'a b' lacks '->'$"), ("a ... -> a", r"^'\.\.\.' must come first in 'a \.\.\.'$")],
    ids=["no arrow", "dots behind"],
)
def test_faulty_notation_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_notation_is_read_into_letters() -> None:
    found = parse("... m k, ... k n -> ... m n")
    assert found.inputs == (("...", "m", "k"), ("...", "k", "n"))
    assert found.outputs == (("...", "m", "n"),)
    assert parse("k, k ->").outputs == ((),)


def test_a_rule_of_one_line_relates_its_letters() -> None:
    @rule("Mix", "a k, k b -> a b", domain="test", sums="k")
    def mix(op: Relation) -> None:
        """A product."""

    try:
        values = [Value(name) for name in "xyz"]
        node = Node("Mix", "test", "mix", [values[0], values[1]], [values[2]], {})
        x, y, z = [leaf(4), leaf(6)], [leaf(6), leaf(10)], [leaf(4), leaf(10)]
        relation = Relation(node, [x, y], [z])
        find_rule("test", "Mix").apply(relation)
        assert relation.settle(lambda value: False) == {}
        assert [reduced.dim.size for reduced in relation.reduced] == [6]
        with pytest.raises(NotCovered, match=r"^operand of rank 1 does not fit 'a k'$"):
            find_rule("test", "Mix").apply(Relation(node, [[leaf(4)], y], [z]))
    finally:
        del RULES["test", "Mix"]
