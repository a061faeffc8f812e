"""Every rule is proved by brute force: cut each dim it names, run all ranks, compare with the whole model."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import pytest

from tests.rules.cuts import named_leaves, random_cuts, single_cuts
from tests.rules.forced import Forced, analysed, differs, force, run_ranks, run_whole
from tests.rules.sample import Sample
from tests.rules.samples import SAMPLES
from tpcompile.dims.cut import Mesh
from tpcompile.dims.flow import reduced_leaves
from tpcompile.dims.registry import RULES

DEGREES = (2, 3, 4)


def test_every_rule_has_a_sample() -> None:
    assert {sample.key for sample in SAMPLES} == {key for key in RULES if key[0] != "aten"}


def test_samples_have_names_of_their_own() -> None:
    names = [str(sample) for sample in SAMPLES]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_the_rule_claims_what_it_should(sample: Sample) -> None:
    work = analysed(sample.model())
    node = next(node for node in work.program.nodes if (node.domain, node.op) == sample.key)
    named = named_leaves(work.analysis, [node])
    blocked, summed = work.analysis.blocked[node], reduced_leaves(work.analysis, node)
    claims = {
        name: "sums" if leaf in summed else "whole" if leaf in blocked else "free" for name, leaf in named.items()
    }
    expected = {name: "whole" for name in claims}
    expected |= {name: "free" for name in sample.free.split()} | {name: "sums" for name in sample.sums.split()}
    assert claims == expected


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("static", [False, True], ids=["symbols", "numbers"])
def test_all_ranks_give_the_whole_models_numbers(sample: Sample, static: bool) -> None:
    model = sample.static_model() if static else sample.model()
    feeds = sample.feeds(model)
    want = run_whole(model, feeds)
    wrong = []
    for forced in every_cut(model):
        got = run_ranks(forced.models(), feeds)
        wrong += [
            f"tp {forced.cut.mesh.tp} {forced.cut.axes} rank {r}: {text}"
            for r, each in enumerate(got)
            if (text := differs(want, each))
        ]
    assert not wrong


def every_cut(model: onnx.ModelProto) -> Iterator[Forced]:
    work = analysed(model)
    named = named_leaves(work.analysis, work.program.nodes)
    for tp in DEGREES:
        for plan in single_cuts(named, Mesh(tp)):
            yield force(work, tp, plan)
    for seed, tp in ((1, 4), (2, 6)):
        yield force(work, tp, random_cuts(work.analysis, named, Mesh(tp), seed))
