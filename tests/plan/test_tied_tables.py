"""Copies of a table in the LM head become the table again, except where they are read by their name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tpcompile
from tests.plan.models import LIMIT, error_of, feeds, held, model

PLAIN = """(int64[batch, seq] ids) => (float[batch, seq, 300] logits) <float[300, 16] table, float[16, 300] head>
{ x = Gather(table, ids) logits = MatMul(x, head) }"""
OUTPUT = PLAIN.replace("300] logits)", "300] logits, float[16, 300] head)")
CAPTURED = """(int64[batch, seq] ids, bool flag, int64 once) => (float[batch, seq, 300] logits, float[16, 300] out)
<float[300, 16] table, float[16, 300] head>
{ x = Gather(table, ids) logits = MatMul(x, head)
  out = Loop (once, flag, head) < body = l (int64 i, bool go, float[16, 300] p) => (bool on, float[16, 300] q)
  { on = Identity(go) q = Neg(head) } > }"""


def tied(text: str) -> onnx.ModelProto:
    """The model whose head holds the numbers of its table."""
    found = model(text)
    stored = {tensor.name: tensor for tensor in found.graph.initializer}
    copy = np.ascontiguousarray(numpy_helper.to_array(stored["table"]).T)
    stored["head"].CopyFrom(numpy_helper.from_array(copy, "head"))
    return found


def test_one_table(tmp_path: Path) -> None:
    source = tied(PLAIN)
    bundle = tpcompile.compile(source, 2, tmp_path / "b", pins={"table": "vocab"}, verify=True)
    assert error_of(source, tmp_path / "b") <= LIMIT
    assert bundle.plan is not None
    assert [group.weights for group in bundle.plan.groups if group.axes] == [("table[0]",)]
    assert held(tmp_path / "b", "table") == [[[[0, 150]], None], [[[150, 300]], None]]


@pytest.mark.parametrize("text", [OUTPUT, CAPTURED], ids=["an output", "read by a subgraph"])
def test_two_where_the_copy_is_read_by_its_name(text: str, tmp_path: Path) -> None:
    source = tied(text)
    bundle = tpcompile.compile(source, 2, tmp_path / "b", verify=text is OUTPUT)
    given = {"ids": feeds(source)["ids"]} | ({"flag": np.array(True), "once": np.array(1)} if text is CAPTURED else {})
    assert error_of(source, tmp_path / "b", given) <= LIMIT
    assert bundle.plan is not None
    # the copy is needed whole, under its name: cutting it as well would store it twice
    assert [group.weights for group in bundle.plan.groups if group.axes] == [("table[0]",)]
