"""On small random chains the plan is the cheapest of all that keep to random wishes and a limit of memory."""

from __future__ import annotations

import itertools
import random

import onnx
import pytest

import tpcompile
from tests.plan.models import model
from tests.plan.test_solver import QUICK_LINKS, choices, price, reached
from tpcompile.errors import Refused
from tpcompile.passes.choose_plan import nominal_sizes
from tpcompile.plan.contradictions import solve_with
from tpcompile.plan.cost import Prices
from tpcompile.plan.machine_prices import machine_prices
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Choice, Solver, Wish
from tpcompile.plan.topology import read_topology


def chain(draw: random.Random) -> onnx.ModelProto:
    """Products one after the other, some with a nonlinear step between, of sizes that divide and that do not."""
    width, products = draw.choice([6, 7, 8, 12]), draw.choice([2, 3])
    sizes = [width, *(draw.choice([5, 6, 8, 9, 12, 24]) for _ in range(products - 1)), width]
    weights = ", ".join(f"float[{a}, {b}] w{i}" for i, (a, b) in enumerate(itertools.pairwise(sizes)))
    steps, now = [], "x"
    for index in range(products):
        made = f"h{index}"
        steps.append(f"{made} = MatMul({now}, w{index})")
        now = made
        if draw.random() < 0.6:
            steps.append(f"r{index} = {draw.choice(['Relu', 'Softmax'])}({now})")
            now = f"r{index}"
    end = "Add" if draw.random() < 0.5 else "Mul"
    steps.append(f"y = {end}({now}, x)")
    return model(f"(float[batch, {width}] x) => (float[batch, {width}] y) <{weights}> {{ {' '.join(steps)} }}")


def kept(choice: Choice, wishes: list[Wish], problem: Problem) -> bool:
    every = set(problem.mesh.all_axes)
    return all(reached(choice, term) == (every if wish.cut else set()) for wish in wishes for term in wish.terms)


@pytest.mark.parametrize("objective", ["balanced", "memory", "latency"])
@pytest.mark.parametrize("tp", [2, 3, 4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_the_cheapest_under_wishes_and_a_limit(seed: int, tp: int, objective: str) -> None:
    draw = random.Random(100 * seed + tp)
    work = tpcompile.plan(chain(draw), tp)
    problem = work.problem
    prices = Prices.of(objective, problem.mean_product_bytes, tp)
    if objective == "latency":
        prices = machine_prices(work.analysis, problem, read_topology(QUICK_LINKS, "quick", ""), nominal_sizes(work))
    free = Solver(problem, prices)
    every = [(price(free, choice), free.held_bytes(choice), choice) for choice in choices(problem)]
    held = sorted({round(nbytes, 3) for _, nbytes, _ in every})
    for _ in range(4):
        groups = draw.sample(range(len(problem.groups)), min(2, len(problem.groups)))
        wishes = [Wish(f"pin '{g}'", (frozenset((g,)),), draw.random() < 0.5) for g in groups]
        limit = draw.choice([None, *held]) if len(held) > 1 else None
        solver = Solver(problem, prices, None if limit is None else limit + 0.5)
        right = [
            cost
            for cost, nbytes, choice in every
            if kept(choice, wishes, problem) and (limit is None or nbytes <= limit + 0.5)
        ]
        found = solver.solve(wishes)
        assert (found is None) == (not right)
        if found is not None:
            assert kept(found[0], wishes, problem)
            assert found[1] == pytest.approx(min(right), rel=1e-6)
        else:
            with pytest.raises(Refused):
                solve_with(solver, wishes)


def test_three_that_contradict_each_other_only_together() -> None:
    """A weight is to be cut, and neither along the one axis nor along the other."""
    problem = tpcompile.plan(
        model("(float[b, 8] x) => (float[b, 12] y) <float[8, 12] w> { y = MatMul(x, w) }"), 4
    ).problem
    solver = Solver(problem, Prices.of("balanced", problem.mean_product_bytes, 4))
    a, b = range(len(problem.groups))
    wishes = [
        Wish("pin 'some'", (frozenset((a, b)),), True),
        Wish("forbid 'a'", (frozenset((a,)),), False),
        Wish("forbid 'b'", (frozenset((b,)),), False),
        Wish("forbid 'b*'", (frozenset((b,)),), False),
    ]
    with pytest.raises(Refused) as caught:
        solve_with(solver, wishes[:3])
    text = (
        "any two of them can hold, and all together cannot: what they would cut meets in one tensor or product. "
        "Leave out one of them"
    )
    assert str(caught.value) == f"TP104 pin 'some' and forbid 'a' and forbid 'b': {text}"
    with pytest.raises(Refused) as caught:
        solve_with(solver, wishes)
    assert str(caught.value).splitlines() == [
        f"TP104 pin 'some' and forbid 'a' and forbid 'b*': {text}",
        f"TP104 pin 'some' and forbid 'a' and forbid 'b': {text}",
    ]
