"""What random graphs under random plans brought to light, each reduced to a few operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.faults.ranks import Ranks, model


@pytest.mark.parametrize("tp", [2, 3])
def test_constant_indices_of_neighbours_are_not_cut_themselves(tp: int, tmp_path: Path) -> None:
    """The index [0, 1, 2] was cut like a weight, and what it picked was said to be whole."""
    text = """(int64[B, S] ids) => (float[B, S, 3] y) <float[7, 48] table, int64[3] picked = {0, 1, 2}>
{ e = Gather(table, ids) y = Gather <axis = 2> (e, picked) }"""
    Ranks(model(text), tp, tmp_path, given={"ids": np.array([[0, 3, 4, 6, 5], [-1, -4, -5, -7, -2]])})


@pytest.mark.parametrize("tp", [2, 3])
def test_a_cache_is_not_cut_along_the_axis_it_grows_along(tp: int, tmp_path: Path) -> None:
    """Its two ends would lie differently: the 6 positions that come in, and the 12 that go out."""
    text = """(float[B, 6, 4] past) => (float[B, 12, 4] present, float[B, 4, 7] y) <float[6, 7] w>
{ present = Concat <axis = 1> (past, past) turned = Transpose <perm = [0, 2, 1]> (past) y = MatMul(turned, w) }"""
    for objective in ("memory", "balanced"):
        ranks = Ranks(model(text), tp, tmp_path, objective=objective)
        assert [pair["axis"] for pair in ranks.manifest()["state"]] == [1]
        assert ranks.manifest()["inputs"]["past"]["placement"] is None
