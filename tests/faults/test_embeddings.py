"""Vocabulary-parallel tables, tied heads, logits (docs/faults.md, section E)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tpcompile
from tests.faults.ranks import Ranks, blocks, model
from tests.one_graph import session
from tpcompile.errors import Refused
from tpcompile.verify.files import open_bundle
from tpcompile.verify.simulate import Lockstep

TIED = """(int64[B, S] ids) => (float[B, S, {rows}] logits) <float[{rows}, 600] w, float[600] b>
{{ e = Gather(w, ids) t = Tanh(e) h = Add(t, b) w_t = Transpose <perm = [1, 0]> (w) logits = MatMul(h, w_t) }}"""


@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_e1_ids_of_other_ranks_are_masked_not_wrapped(dtype: str, tp: int, tmp_path: Path) -> None:
    """Rank 1 of 2 holds rows 4 to 7: ids 0 to 3, less 4, are negative, and ONNX counts those from the end."""
    text = f"({dtype}[B, S] ids) => (float[B, S, 35] e) <float[8, 35] table> {{ e = Gather(table, ids) }}"
    ids = np.array([[0, 3, 4, 7, 5], [-1, -4, -5, -8, -2]])
    ranks = Ranks(model(text), tp, tmp_path, given={"ids": ids}, objective="balanced", pins={"table": "vocab"})
    assert [rows for rows, _ in ranks.shapes("table")] == blocks(8, tp)
    assert ranks.collectives == {"all_reduce": 1}


@pytest.mark.parametrize("outside", [8, 9, 100, -9, -10, -100])
@pytest.mark.parametrize("tp", [2, 3, 5])
def test_e1_ids_that_no_rank_has_are_refused_as_the_source_refuses_them(tp: int, outside: int, tmp_path: Path) -> None:
    """A row of zeros in their place would give numbers that look right: more positions than the model was made for."""
    proto = model("(int64[B, S] ids) => (float[B, S, 35] e) <float[8, 35] table> { e = Gather(table, ids) }")
    tpcompile.compile(proto, tp, tmp_path / "b", pins={"table": "vocab"})
    ids = {"ids": np.array([[0, 3, outside], [-1, -8, 7]])}
    with pytest.raises(Exception, match="out of data bounds"):
        session(proto.SerializeToString()).run(None, ids)
    with pytest.raises(Refused, match="out of data bounds"):
        Lockstep(open_bundle(tmp_path / "b")).run(ids)


@pytest.mark.parametrize("tp", [2, 3])
def test_e1_a_table_looked_up_along_its_second_axis(tp: int, tmp_path: Path) -> None:
    text = "(int64[B, S] ids) => (float[3, B, S, 15] e) <float[3, 11, 15] table> { e = Gather <axis = 1> (table, ids) }"
    Ranks(model(text), tp, tmp_path, given={"ids": np.array([[0, 3, 10, 7, 5], [-1, -4, -11, -8, -2]])})


@pytest.mark.parametrize("tp", [2, 4])
def test_e3_a_tied_weight_is_stored_once_and_cut_for_both_its_readers(tp: int, tmp_path: Path) -> None:
    ids = np.array([[0, 3, 4, 7, 5], [-1, -4, -5, -8, -2]])
    ranks = Ranks(model(TIED.format(rows=8)), tp, tmp_path, given={"ids": ids}, pins={"w": "vocab"})
    assert ranks.shapes("w") == [(8 // tp, 600)] * tp
    for proto in ranks.models:
        assert [list(t.dims) for t in proto.graph.initializer if len(t.dims) == 2] == [[8 // tp, 600]]
    assert ranks.collectives == {"all_reduce": 1, "all_gather": 1}


@pytest.mark.parametrize("tp", [2, 3, 4, 5, 6, 7])
def test_e5_a_tied_weight_with_an_odd_vocabulary(tp: int, tmp_path: Path) -> None:
    ids = np.array([[0, 3, 4, 8, 5], [-1, -4, -5, -9, -2]])
    ranks = Ranks(model(TIED.format(rows=9)), tp, tmp_path, given={"ids": ids}, pins={"w": "vocab"})
    assert [rows for rows, _ in ranks.shapes("w")] == blocks(9, tp)


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_e6_logits_are_whole_on_every_rank(tp: int, tmp_path: Path) -> None:
    ids = np.array([[0, 3, 4, 8, 5], [-1, -4, -5, -9, -2]])
    ranks = Ranks(model(TIED.format(rows=9)), tp, tmp_path, given={"ids": ids})
    assert ranks.manifest()["outputs"]["logits"]["placement"] is None
