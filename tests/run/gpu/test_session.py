"""A session says what computes, and takes the backend that is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.run import handmade
from tests.run.gpu.runs import add_engines
from tpcompile import InferenceSession
from tpcompile.errors import Refused

X = np.ones((3, 12), np.float32)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_best_that_is_here(tmp_path: Path, ranks: int) -> None:
    """Ranks of its own, or this process; engines are there, and the library or the GPU is not."""
    bundle, whole = handmade.mlp(tmp_path / "b", ranks)
    with InferenceSession(add_engines(bundle, version="0.0")) as session:
        np.testing.assert_allclose(session.run(["y"], {"x": X})[0], handmade.run_whole(whole, {"x": X})["y"], rtol=1e-5)
        assert session.backend.startswith("cpu (no engine (tensorrt_rtx): the ")
        assert "; no cuda: " in session.backend


def test_one_that_is_not_here(tmp_path: Path) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 2)
    with pytest.raises(Refused) as refused:
        InferenceSession(bundle, backend="engine")
    assert str(refused.value) == (
        "TP650 --backend engine: the bundle holds no engines. `tpcompile engine BUNDLE` builds them from the bundle "
        "as it is"
    )


def test_one_that_is_nowhere(tmp_path: Path) -> None:
    bundle, _ = handmade.mlp(tmp_path / "b", 1)
    with pytest.raises(Refused) as refused:
        InferenceSession(bundle, backend="rocm")
    assert str(refused.value) == "TP650 backend 'rocm': there is no such backend. Use auto, engine, cuda, cpu"
