"""Wishes that cannot be served are refused at once, in whole sentences, before the model is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tpcompile
from tests.plan.models import TWO_LAYERS, model
from tpcompile.errors import Refused
from tpcompile.plan.request import Request, read_pairs, read_sizes


def refusal(**wishes: Any) -> str:
    with pytest.raises(Refused) as caught:
        Request(**wishes)
    return str(caught.value)


@pytest.mark.parametrize("tp", [0, -2, 1025])
def test_a_degree_is_a_number_of_ranks(tp: int) -> None:
    assert refusal(tp=tp) == f"TP101 --tp {tp}: the degree of tensor parallelism is a number of ranks. Use 1 to 1024"


def test_all_that_is_wrong_is_said_at_once() -> None:
    wishes = {
        "objective": "fast",
        "pins": (("up", "left"), ("x", "")),
        "outputs": "cut",
        "reduce_dtype": "half",
        "dialect": "nccl",
        "sizes": {"seq": 0},
        "roles": {"colour": "ids"},
    }
    assert refusal(**wishes).splitlines() == [
        "TP102 --objective fast: there is no such objective. Use one of balanced, memory, latency",
        "TP103 --pin up=left: 'left' is no way to lie. Use one of column, row, vocab, expert, cut, whole, gather",
        "TP103 --pin x=: '' is no way to lie. Use one of column, row, vocab, expert, cut, whole, gather",
        "TP105 --outputs cut: there is no such choice. Use one of whole, shard",
        "TP117 --reduce-dtype half: there is no such choice. Use one of float32, model",
        "TP118 --dialect nccl: there is no such choice. Use one of tensorrt, onnxruntime",
        "TP106 --sizes seq=0: a size is at least 1. Use seq=1 or more",
        "TP123 --role colour=ids: there is no such role. Use one of tokens, mask, positions, logits",
    ]


def test_a_plan_file_leaves_nothing_to_wish() -> None:
    assert refusal(plan=Path("p.toml"), pins=(("up", "row"),), sizes={"seq": 2}, objective="memory") == (
        "TP116 --plan p.toml: a plan file decides alone, so --pin and --objective would change nothing. "
        "Leave out --plan, or --pin and --objective"
    )


def test_pairs_are_read_from_the_last_equals_sign() -> None:
    assert read_pairs("--pin", ["a=b=row", "c=column"]) == {"a=b": "row", "c": "column"}
    with pytest.raises(Refused) as caught:
        read_pairs("--state", ["in", "=out", "in="])
    assert str(caught.value).splitlines() == [
        f"TP100 --state {text}: it is not of the form NAME=VALUE. Write --state NAME=VALUE"
        for text in ("in", "=out", "in=")
    ]


def test_sizes_are_read_with_commas_or_spaces() -> None:
    assert read_sizes("batch=1, past=2048 seq=3") == {"batch": 1, "past": 2048, "seq": 3}
    assert read_sizes("") == {}
    with pytest.raises(Refused) as caught:
        read_sizes("batch,seq=one,past=-1")
    assert str(caught.value).splitlines() == [
        f"TP100 --sizes {text}: it is not of the form NAME=NUMBER. Write --sizes batch=1,seq=1,past=2048"
        for text in ("batch", "seq=one", "past=-1")
    ]


@pytest.mark.parametrize(
    ("wishes", "text"),
    [
        (
            {"sizes": {"batch": 4, "time": 3, "space": 2}},
            "TP107 --sizes space,time: the model has no such size. Use batch, seq, past",
        ),
        (
            {"state": {"ids": "nothing", "a": "logits"}},
            "TP120 --state ids=nothing: the model has no output 'nothing'. "
            "Use names of its inputs (ids) and outputs (logits)\n"
            "TP120 --state a=logits: the model has no input 'a'. Use names of its inputs (ids) and outputs (logits)",
        ),
        (
            {"state": {"ids": "logits"}},
            "TP121 --state ids=logits: they are int64['batch', 'seq'] and float32['batch', 'seq', 50]. "
            "The two ends of a cache have one type and differ in one axis at most",
        ),
        (
            {"roles": {"tokens": "logits", "logits": "ids"}},
            "TP122 --role tokens=logits: the model has no input 'logits'. Use one of ids\n"
            "TP122 --role logits=ids: the model has no output 'ids'. Use one of logits",
        ),
    ],
)
def test_what_the_model_does_not_have(wishes: dict[str, Any], text: str) -> None:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(TWO_LAYERS), 2, **wishes)
    assert str(caught.value) == text


def test_state_and_roles_that_the_user_names() -> None:
    cached = model(
        """(float[batch, 4, past, 6] old, float[batch, 4, one, 6] fresh, int64[batch, 7] picks)
        => (float[batch, 4, total, 6] new, float[batch, 7, 12] scores) <float[30, 12] table>
        { kept = Relu(old) new = Concat<axis = 2>(kept, fresh) scores = Gather(table, picks) }"""
    )
    found = tpcompile.plan(cached, 1)
    assert (found.state, found.roles) == ([], {"tokens": "picks"})
    told = tpcompile.plan(cached, 1, state={"old": "new"}, roles={"logits": "scores"})
    assert [(p.input.name, p.output.name, p.axis, p.kind) for p in told.state] == [("old", "new", 2, "append")]
    assert told.roles == {"tokens": "picks", "logits": "scores"}


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        (
            "(float[batch, 6] x) => (float[batch, 6] y) { y = Relu(x) }",
            "TP302 the ModelProto: nothing in it can be cut, so every rank would run the whole model. "
            "Leave out --strict, or use --tp 1",
        ),
        (
            "(float[batch, 6] x) => (float[batch, 6] y) <float[6] b> { y = Add(x, b) }",
            "TP302 the ModelProto: cutting anything costs more than it saves, so every rank would run the whole model. "
            "Leave out --strict, or use --tp 1",
        ),
        (
            "(float[6, 6] x) => (float[6, 6] y) <float[6, 6] w> { h = Det(x) g = MatMul(x, w) y = Add(g, h) }",
            "TP301 the ModelProto: 1 node has no rule and runs whole: Det (Det has no rule). "
            "Leave out --strict to run them whole on every rank",
        ),
    ],
)
def test_strict_refuses_what_would_run_whole(graph: str, text: str) -> None:
    with pytest.raises(Refused) as caught:
        tpcompile.plan(model(graph), 2, strict=True)
    assert str(caught.value) == text
    assert tpcompile.plan(model(graph), 2).warnings
    if text.startswith("TP302"):
        assert tpcompile.plan(model(graph), 1, strict=True).warnings == []
