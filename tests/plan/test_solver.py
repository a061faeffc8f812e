"""The solver's plan is the cheapest of all plans: every choice of tiny problems is priced by hand and compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import tpcompile
from tests.plan.models import LIMIT, TWO_LAYERS, attention, error_of, held, model
from tpcompile.passes.choose_plan import nominal_sizes
from tpcompile.plan.cost import Prices
from tpcompile.plan.machine_prices import machine_prices
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Choice, Solver, Wish, feasible
from tpcompile.plan.topology import read_topology
from tpcompile.plan_summary import estimate_of

SMALL = TWO_LAYERS.replace("50", "20").replace("36", "10")
MODELS = {
    "two layers": model(TWO_LAYERS),
    "small": model(SMALL),
    "fused": model(
        """(float[batch, 12] x) => (float[batch, 12] y)
        <float[12, 60] qkv, float[20, 12] o, int64[3] thirds = {20, 20, 20}>
        { a = MatMul(x, qkv) q, k, v = Split<axis = 1>(a, thirds) s = Mul(q, k) t = Mul(s, v) y = MatMul(t, o) }"""
    ),
    "heads": attention(6, 2),
    "uneven": attention(5, 5),
}


def choices(problem: Problem) -> Iterator[Choice]:
    """Every plan that holds."""
    mesh = problem.mesh
    subsets = [s for n in range(len(mesh.primes) + 1) for s in itertools.combinations(mesh.all_axes, n)]
    each = []
    for group, classes in enumerate(problem.groups):
        stuck = group in problem.forbidden or (group, group) in problem.exclusive
        each.append([s for s in subsets if not s or (not stuck and mesh.degree(s) <= classes[0].most_parts)])
    for found in itertools.product(*each):
        choice = {group: axes for group, axes in enumerate(found) if axes}
        if feasible(problem, mesh, choice):
            continue
        if all(reached(choice, a) == reached(choice, b) for a, b in problem.together):
            yield choice


def reached(choice: Choice, groups: frozenset[int]) -> set[int]:
    """The sub-axes over which any of the groups is cut."""
    return {axis for group in groups for axis in choice.get(group, ())}


def price(solver: Solver, choice: Choice) -> float:
    """What a choice costs: the solver's own prices of cuts, weights read, and collectives, added up by hand."""
    problem = solver.problem
    total = sum(solver.cost[solver.x[group, choice.get(group, ())]] for group in range(len(problem.groups)))
    for groups, nbytes in solver.stored.items():
        if groups:
            total += nbytes * math.prod(largest_share(problem, choice, group) for group in groups)
    return total + collectives(solver, choice)


def largest_share(problem: Problem, choice: Choice, group: int) -> float:
    """What the rank with most of a dimension holds of it."""
    leaf = problem.groups[group][0].leaf
    grains = -(-leaf.size // leaf.grain)
    most = -(-grains // problem.mesh.degree(choice.get(group, ()))) * leaf.grain
    return min(most, leaf.size) / leaf.size


def collectives(solver: Solver, choice: Choice) -> float:
    problem, prices = solver.problem, solver.prices
    tp, total = problem.mesh.tp, 0.0
    counts_as = problem.byte_share if prices.relative else 1.0  # of the bytes that are sent
    for groups, count in problem.reductions.items():
        if groups & choice.keys():
            nbytes = counts_as * problem.reduced_bytes[groups]
            if not prices.relative:
                total += prices.all_reduce(count, nbytes, tp)
            elif groups <= problem.lookups:
                total += 0.5 * prices.all_gather(count, nbytes, tp)
            else:
                total += prices.all_reduce(problem.reduction_weights[groups] * solver.saving(groups), nbytes, tp)
    for groups, count in problem.gathers.items():
        if groups & choice.keys():
            total += prices.all_gather(count, counts_as * problem.gathered_bytes[groups], tp)
    for pair, count in problem.door_gathers.items():
        if choice.keys() >= set(pair):
            total += prices.all_gather(count, counts_as * problem.door_bytes[pair], tp)
    return total


QUICK_LINKS = """
title = "links so quick that toys are worth a cut"
[device]
name = "board"
memory_gb = 16
bandwidth_gb_s = 100
step_us = 0
fuses = true
source = "made up"
[device.tera_operations_s]
float32 = 0.5
[[level]]
name = "links"
ranks = 8
start_us = 0.001
hop_us = 0.0005
bandwidth_gb_s = 500
source = "made up"
"""


@pytest.mark.parametrize("objective", ["balanced", "memory", "latency"])
@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_optimum_is_the_optimum(name: str, tp: int, objective: str) -> None:
    work = tpcompile.plan(MODELS[name], tp)
    problem = work.problem
    prices = Prices.of(objective, problem.mean_product_bytes, tp)
    if objective == "latency":
        machine = read_topology(QUICK_LINKS, "quick", "")
        prices = machine_prices(work.analysis, problem, machine, nominal_sizes(work))
    solver = Solver(problem, prices)
    found = solver.solve()
    assert found is not None
    choice, cost = found
    priced = [(price(solver, other), other) for other in choices(problem)]
    best = min(priced, key=lambda pair: pair[0])
    assert len(priced) > 1
    assert any(other == choice for _, other in priced), "it is none of the plans that hold"
    assert cost == pytest.approx(price(solver, choice), rel=1e-6)
    assert cost == pytest.approx(best[0], rel=1e-6)


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_the_optimum_within_a_limit_of_memory(name: str, tp: int) -> None:
    problem = tpcompile.plan(MODELS[name], tp).problem
    prices = Prices.of("balanced", problem.mean_product_bytes, tp)
    free = Solver(problem, prices)
    held = sorted({round(free.held_bytes(other)) for other in choices(problem)})
    for limit in (held[0] - 1, held[0], held[len(held) // 2], held[-1]):
        found = Solver(problem, prices, limit).solve()
        within = [other for other in choices(problem) if free.held_bytes(other) <= limit]
        assert (found is None) == (not within)
        if found is not None:
            assert free.held_bytes(found[0]) <= limit * (1 + 1e-9)
            assert found[1] == pytest.approx(min(price(free, other) for other in within), rel=1e-6)


@pytest.mark.parametrize("tp", [2, 4])
def test_wishes_narrow_the_choice(tp: int) -> None:
    problem = tpcompile.plan(MODELS["small"], tp).problem
    solver = Solver(problem, Prices.of("balanced", problem.mean_product_bytes, tp))
    every_axis = set(problem.mesh.all_axes)
    for group in range(len(problem.groups)):
        for cut in (True, False):
            found = solver.solve([Wish("", (frozenset((group,)),), cut)])
            assert found is not None
            wanted = [
                other
                for other in choices(problem)
                if reached(other, frozenset((group,))) == (every_axis if cut else set())
            ]
            assert found[0] in wanted
            assert found[1] == pytest.approx(min(price(solver, other) for other in wanted), rel=1e-6)


def test_wishes_that_cannot_hold() -> None:
    problem = tpcompile.plan(MODELS["small"], 2).problem
    solver = Solver(problem, Prices.of("balanced", problem.mean_product_bytes, 2))
    group = frozenset((0,))
    assert solver.solve([Wish("a", (group,), True), Wish("b", (group,), False)]) is None
    assert solver.solve([Wish("a", (frozenset(),), True)]) is None


def test_one_rank_and_no_weights() -> None:
    alone = tpcompile.plan(MODELS["small"], 1)
    assert not alone.plan.cuts_something and alone.warnings == []
    empty = tpcompile.plan(model("(float[batch, 6] x) => (float[batch, 6] y) { y = Relu(x) }"), 4)
    assert empty.plan.groups == ()
    assert empty.warnings == ["nothing in it can be cut: every rank runs the whole model"]


def test_sums_of_nothing_are_planned_as_others() -> None:
    source = model(
        """(float[batch, 0, 24] x) => (float[batch, 0, 24] y) <float[24, 96] v, float[96, 24] w>
        { a = MatMul(x, v)  b = Relu(a)  y = MatMul(b, w) }"""
    )
    assert tpcompile.plan(source, 4).plan.cuts_something


def test_sums_of_norms_do_not_make_sums_of_products_look_large(tmp_path: Path) -> None:
    """Many small sums stand beside few of products (norms of heads and of layers): attention is cut all the same."""
    norm = "s{i} = Mul({x}, {x})  m{i} = ReduceMean<keepdims = 1>(s{i}, last)  d{i} = Sqrt(m{i})  {y} = Div({x}, d{i})"
    chain = "\n".join(norm.format(i=i, x=f"n{i}", y=f"n{i + 1}") for i in range(12))
    source = model(
        """(float[batch, seq, 24] n0) => (float[batch, seq, 24] y)
        <float[24, 24] v, float[24, 24] o, float[24, 80] up, float[80, 24] down, int64[1] last = {-1}>
        { """
        + chain
        + """ a = MatMul(n12, v)  b = Relu(a)  c = MatMul(b, o)  r = Add(c, n12)
        e = MatMul(r, up)  f = Relu(e)  g = MatMul(f, down)  y = Add(g, r) }"""
    )
    bundle = tpcompile.compile(source, 2, tmp_path / "b")
    assert [call.op for call in bundle.manifest.collectives] == ["all_reduce", "all_reduce"]
    assert held(tmp_path / "b", "v") == [[None, [[0, 12]]], [None, [[12, 24]]]]
    assert error_of(source, tmp_path / "b") <= LIMIT


def test_a_sum_that_several_linear_nodes_read_is_reduced_and_counted(tmp_path: Path) -> None:
    """A norm taken apart reads the residual twice, and its mean could be cut: the sum is made before it."""
    source = model(
        """(float[batch, seq, 24] x) => (float[batch, seq, 24] y)
        <float[24, 80] up, float[80, 24] down, float[24] scale, int64[1] last = {-1}>
        { a = MatMul(x, up)  b = Relu(a)  c = MatMul(b, down)  r = Add(c, x)
        m = ReduceMean<keepdims = 1>(r, last)  d = Sub(r, m)  y = Mul(d, scale) }"""
    )
    assert estimate_of(tpcompile.plan(source, 2)).collectives == {"all_reduce": 1, "all_gather": 0}
    bundle = tpcompile.compile(source, 2, tmp_path / "b")
    assert [call.op for call in bundle.manifest.collectives] == ["all_reduce"]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "saving"), [(12, 12, 4, 1.0), (3, 3, 2, 2 / 3), (8, 2, 4, 17 / 18), (5, 5, 3, 0.9)]
)
def test_what_a_cut_saves_of_what_an_even_one_would(heads: int, kv_heads: int, tp: int, saving: float) -> None:
    """In the sum of 3 heads on 2 ranks a third of attention is saved and not a half: its AllReduce counts for less."""
    problem = tpcompile.plan(attention(heads, kv_heads), tp).problem
    solver = Solver(problem, Prices.of("balanced", problem.mean_product_bytes, tp))
    group = next(g for g, found in enumerate(problem.groups) if found[0].size in (heads, kv_heads, heads // kv_heads))
    (summed,) = (groups for groups in problem.reductions if group in groups and len(groups) > 1)
    assert solver.saving(summed) == pytest.approx(saving, rel=0.02)


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_a_collective_costs_like_experts_and_not_like_their_router(tp: int) -> None:
    """Of experts that indices pick one is a weight like others: a router alone would make collectives look cheap."""
    source = model(
        """(float[batch, 1, 24] x, int64[batch] route) => (float[batch, 1, 24] y)
        <float[4, 24, 43] up, float[4, 43, 24] down, float[24, 4] router, float[4, 24] back>
        { u = Gather(up, route)  a = MatMul(x, u)  b = Relu(a)  d = Gather(down, route)  c = MatMul(b, d)
        g = MatMul(x, router)  h = Softmax(g)  i = MatMul(h, back)  y = Mul(c, i) }"""
    )
    work = tpcompile.plan(source, tp)
    assert estimate_of(work).collectives == {"all_reduce": 1, "all_gather": 0}
    assert {group.name for group in work.plan.groups if group.axes} == {"up[2]"}
