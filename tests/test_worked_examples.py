"""The examples of docs/adding-a-rule.md run as they are printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.plan.models import TWO_LAYERS, model
from tests.rules.test_rules_by_brute_force import (
    test_all_ranks_give_the_whole_models_numbers as numbers_hold,
)
from tests.rules.test_rules_by_brute_force import (
    test_the_rule_claims_what_it_should as claims_hold,
)
from tests.run import handmade
from tpcompile import pipeline
from tpcompile.dims.registry import RULES
from tpcompile.graph.doors import open_model
from tpcompile.plan.request import Request

PAGE = (Path(__file__).parent.parent / "docs" / "adding-a-rule.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def run(marker: str) -> dict[str, Any]:
    """The names that the one block with `marker` in it defines."""
    (block,) = (block for block in BLOCKS if marker in block)
    return executed(block)


def executed(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, "adding-a-rule.md", "exec", dont_inherit=True), names)
    return names


@pytest.fixture
def lp_normalization() -> Iterator[None]:
    assert ("", "LpNormalization") not in RULES, "it has a rule by now: the page needs another example"
    run("def lp_normalization")
    yield
    del RULES["", "LpNormalization"]


@pytest.mark.usefixtures("lp_normalization")
def test_the_rule_and_its_samples() -> None:
    for sample in run("SAMPLES = [")["SAMPLES"]:
        claims_hold(sample)
        for static in (False, True):
            numbers_hold(sample, static)


def test_the_samples_catch_a_rule_that_claims_too_much() -> None:
    (block,) = (block for block in BLOCKS if "def lp_normalization" in block)
    executed(re.sub(r"^    op\.whole.*\n", "", block, flags=re.MULTILINE))
    try:
        sample = run("SAMPLES = [")["SAMPLES"][0]
        with pytest.raises(AssertionError):
            claims_hold(sample)
        with pytest.raises(AssertionError):
            numbers_hold(sample, False)
    finally:
        del RULES["", "LpNormalization"]


def test_the_pass() -> None:
    step = run("class CountCollectives")["CountCollectives"]
    work = pipeline.start(open_model(model(TWO_LAYERS)), Request(2))
    said: list[str] = []
    steps = (*pipeline.PLANNING, *pipeline.REWRITING, step(limit=3))
    pipeline.run(work, steps, lambda name, did, seconds: said.append(f"{name}: {did}"))
    assert said[-1] == "count collectives: 4 collectives"
    assert work.warnings == ["4 collectives a run"]


def test_the_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, whole = handmade.mlp(tmp_path / "b", 1)
    x = np.ones((2, 12), np.float32)
    found = run("class CountingExecutor")["counting_ranks"](bundle).run(["y"], {"x": x})
    np.testing.assert_allclose(found["y"], handmade.run_whole(whole, {"x": x})["y"], rtol=1e-5)
    assert capsys.readouterr().out.splitlines() == ["3 nodes", "5 nodes", "4 nodes", "1 nodes"]
