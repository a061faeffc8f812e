"""Every reading and rule of ATen is proved by brute force: each dim cut, all ranks run, compared with one device."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("torch", reason="rules of torch's operators are proved by torch")

from tests.rules.cuts import Plan, random_cuts, single_cuts
from tests.torch_fx.claims import claims, expected, passing
from tests.torch_fx.cut_side_by_side import Analysed, analysed, faults, faults_as_written, force
from tests.torch_fx.sample import Sample
from tests.torch_fx.samples import FAMILIES, SAMPLES
from tpcompile.dims.cut import Mesh
from tpcompile.dims.registry import RULES
from tpcompile.torch.reading import READINGS
from tpcompile.torch.written import WRITTEN

ALL = [sample for family in FAMILIES for sample in SAMPLES[family]]
ELSEWHERE = {"noise", "cross_entropy_loss"}
"""Rules with tests of their own: numbers that are drawn, and a loss over a cut vocabulary."""
PLACES = [(family, place) for family in FAMILIES for place in range(len(SAMPLES[family]))]


def test_every_reading_has_a_sample() -> None:
    read = {name for name, reading in READINGS.items() if reading.op not in ELSEWHERE}
    assert not {*read, *WRITTEN} - {sample.overload for sample in ALL}


def test_every_rule_has_a_sample() -> None:
    tried = set()
    for family, place in PLACES:
        node = analysed(SAMPLES[family]).node(place)
        if node is not None:
            tried.add(node.op)
    assert {op for domain, op in RULES if domain == "aten"} - ELSEWHERE <= tried


def test_samples_have_names_of_their_own() -> None:
    names = [str(sample) for sample in ALL]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("family, place", PLACES, ids=map(str, ALL))
def test_the_rule_claims_what_it_should(family: str, place: int) -> None:
    found = analysed(SAMPLES[family])
    assert claims(found, place) == expected(found, place)
    assert passing(found, place) == set(SAMPLES[family][place].passes.split())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("numbers", [False, True], ids=["symbols", "numbers"])
def test_all_ranks_give_one_devices_numbers_and_gradients(family: str, numbers: bool) -> None:
    samples = with_symbols(family) if numbers else SAMPLES[family]
    if not samples:
        return
    found = analysed(samples, numbers=numbers)
    wrong = []
    for tp, plan in every_cut(found, (3,) if numbers or family == "elementwise" else (2, 3)):
        wrong += [f"{found.samples[k]}: tp {tp} {plan} {text}" for k, text in faults(found, force(found, tp, plan))]
    assert not wrong


@pytest.mark.parametrize("family", FAMILIES)
def test_programs_as_users_get_them_give_the_same(family: str) -> None:
    if not with_symbols(family):
        return
    found = analysed(with_symbols(family))
    tp, plan = next(every_cut(found, ()))
    parallel = force(found, tp, plan)
    assert not [f"{found.samples[k]}: {text}" for k, text in faults_as_written(found, parallel)]


@pytest.mark.parametrize("family", FAMILIES)
def test_pending_sums_pass_or_are_reduced_before(family: str) -> None:
    samples = linear_ones(family)
    if not samples:
        return
    found = analysed(samples, products=True, numbers=True)
    places = range(len(samples))
    wrong = []
    for turn in range(max(len(found.factors(place)) for place in places)):
        turns = [(place, name) for place in places for name in found.factors(place)[turn : turn + 1]]
        products = [found.product(place, name) for place, name in turns]
        parallel = force(found, 3, {inner: (0,) for _, inner in products})
        wrong += [f"{samples[k]}: {text}" for k, text in faults(found, parallel)]
        reduced = {call.value for call in parallel.work.local.collectives if call.op == "all_reduce"}
        for (place, name), (value, _) in zip(turns, products, strict=True):
            node = found.node(place)
            if node is None or value not in node.inputs:
                continue  # what stands between has a sample of its own
            if (value in reduced) == (name in samples[place].passes.split()):
                wrong.append(f"{samples[place]}: {name} is reduced {'before' if value in reduced else 'behind'}")
    for tp, axes in ((2, [(0,)]), (4, [(0,), (1,), (0, 1)])):
        plan: Plan = {}
        for place in places:
            inner = [found.product(place, name)[1] for name in found.factors(place)]
            plan |= dict(zip(inner, itertools.cycle(axes)))
        wrong += [f"{samples[k]}: all {text}" for k, text in faults(found, force(found, tp, plan))]
    assert not wrong


@functools.cache
def linear_ones(family: str) -> tuple[Sample, ...]:
    """Those whose operator hands on pending sums in some way, or adds an operand once."""
    found = analysed(SAMPLES[family])
    chosen = []
    for place, sample in enumerate(SAMPLES[family]):
        node = found.node(place)
        relation = None if node is None else found.work.analysis.relations[node]
        if relation is not None and (relation.linear or relation.once or relation.reduced):
            chosen.append(sample)
    return tuple(chosen)


@functools.cache
def with_symbols(family: str) -> tuple[Sample, ...]:
    """Those whose symbols may be numbers as well."""
    return tuple(s for s in SAMPLES[family] if any(isinstance(axis, str) for t in s.tensors() for axis in t.axes))


def every_cut(of: Analysed, degrees: Sequence[int]) -> Iterator[tuple[int, Plan]]:
    """Each leaf of each sample in turn, one of every sample at a time; then several of each at once."""
    named = [of.named(place) for place in range(len(of.samples))]
    for tp in degrees:
        mesh = Mesh(tp)
        each = [list(single_cuts(leaves, mesh, len(mesh.primes))) for leaves in named]
        for turn in range(max(map(len, each))):
            yield tp, {leaf: axes for plans in each for leaf, axes in next(iter(plans[turn : turn + 1]), {}).items()}
    for seed, tp in ((1, 4), (2, 6)):
        plan: Plan = {}
        for leaves in named:
            plan |= random_cuts(of.work.analysis, leaves, Mesh(tp), seed)
        yield tp, plan
