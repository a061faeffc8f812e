"""What would be cheaper on this machine: another place for a collective, another plan, another number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tpcompile.dims.analysis import Analysis
from tpcompile.dims.dim import leaves
from tpcompile.graph.program import Node, Sizes, Value
from tpcompile.plan.collectives import Site
from tpcompile.plan.communication import all_reduce, group_of
from tpcompile.plan.estimate import Estimate
from tpcompile.plan.machine_prices import machine_prices
from tpcompile.plan.plan import Plan, make_plan
from tpcompile.plan.problem import Problem
from tpcompile.plan.solve import Solver, Wish
from tpcompile.plan.step_time import calls_of, step_time
from tpcompile.plan.topology import Topology
from tpcompile.plan.uses import HALVES, value_bytes
from tpcompile.plan.words import bytes_text, time_text

WORTH_TELLING = 0.02
"""Another plan is spoken of where it takes this share of a step less."""
NAMED = 3
"""So many dimensions are named in a sentence."""


def cheaper_place(analysis: Analysis, problem: Problem, site: Site, nominal: Callable[[Sizes], int]) -> str:
    """Where a collective would send less, in a sentence; "" where it stands best.

    Looked at: what the value is made of by operators with one computed operand that is cut (or summed) alike, and, for
    an output of the model, not gathering it at all.
    """
    sent, value = site.nbytes, site.value
    least: tuple[int, Value, Node] | None = None
    while (node := _maker(analysis, problem, site, value)) is not None:
        before = next(v for v in node.inputs if v is not None and v.weight is None and v.known is None)
        widened = site.op == "all_reduce" and site.nbytes > value_bytes(site.value, nominal)
        nbytes = value_bytes(before, nominal) * (2 if widened and before.dtype in HALVES else 1)
        if nbytes < (least[0] if least else sent):
            least = nbytes, before, node
        value = before
    if least is not None:
        nbytes, before, node = least
        return f"before {node.op} {node.name} it would send {bytes_text(nbytes)} instead of {bytes_text(sent)}"
    readers = [node for node, _ in site.value.consumers if node in analysis.relations]
    if site.op == "all_gather" and site.value in analysis.program.outputs and not readers:
        return "--outputs shard leaves this output cut: nothing would be sent"
    return ""


def _maker(analysis: Analysis, problem: Problem, site: Site, value: Value) -> Node | None:
    """The operator that makes a value of one computed operand that could be sent in its place."""
    node = value.producer
    relation = analysis.relations.get(node) if node is not None else None
    if node is None or relation is None or node in analysis.uncovered:
        return None
    computed = [k for k, v in enumerate(node.inputs) if v is not None and v.weight is None and v.known is None]
    if len(computed) != 1 or any(v is not None and v.weight is not None for v in node.inputs):
        return None
    if site.op == "all_reduce":
        return node if computed[0] in relation.linear and not relation.reduced else None
    inside = {problem.group_of.get(leaf) for dim in relation.input(computed[0]) for leaf in leaves(dim)}
    return node if site.groups & inside == site.groups and not relation.reduced else None


def advice(
    analysis: Analysis,
    problem: Problem,
    plan: Plan,
    topology: Topology,
    nominal: Callable[[Sizes], int],
    found: Estimate,
    wishes: Sequence[Wish] | None,
) -> Iterator[str]:
    """Sentences on what would be cheaper; `wishes` are those of the pins, None where a plan file decided alone."""
    if not found.fits:
        needed = math.ceil(found.whole.total / topology.device.memory_bytes)
        yield (
            f"a rank holds {bytes_text(found.rank.total)} and has {bytes_text(topology.device.memory_bytes)}: "
            f"at least {max(needed, plan.mesh.tp + 1)} ranks, smaller --sizes, or a machine with more memory"
        )
    if wishes is not None and plan.objective != "latency" and plan.mesh.tp > 1:
        yield from _faster_plan(analysis, problem, plan, topology, nominal, found, wishes)
    inner = topology.levels[0].ranks
    reduces = [call for site, call in calls_of(problem, plan, topology).items() if site.op == "all_reduce"]
    if plan.mesh.tp > topology.ranks:
        has = f"{topology.title} has {topology.ranks} ranks, not {plan.mesh.tp}"
        yield f"{has}: times take its outermost links to repeat"
    if plan.mesh.tp > inner and reduces:
        nbytes = max(call.bytes for call in reduces)
        across, within = (all_reduce(group_of(topology, tuple(range(n))), nbytes).us for n in (plan.mesh.tp, inner))
        yield (
            f"{plan.mesh.tp} ranks span boxes of {inner}: an AllReduce of {bytes_text(nbytes)} takes "
            f"{time_text(across)} instead of {time_text(within)} on {inner} ranks"
        )


def _faster_plan(
    analysis: Analysis,
    problem: Problem,
    plan: Plan,
    topology: Topology,
    nominal: Callable[[Sizes], int],
    found: Estimate,
    wishes: Sequence[Wish],
) -> Iterator[str]:
    """What `latency` would do otherwise, where that is faster."""
    solved = Solver(problem, machine_prices(analysis, problem, topology, nominal)).solve(wishes)
    if solved is None:
        return
    other = replace(make_plan(problem, solved[0], "latency", {}), gathered=plan.gathered)
    step = step_time(analysis, other.cut, calls_of(problem, other, topology).values(), topology, nominal)
    if step.total > found.step.total * (1 - WORTH_TELLING):
        return
    mine, its = ({group.name: group.axes for group in each.groups if group.axes} for each in (plan, other))
    changes = [("leaves", "whole", [name for name in mine if name not in its])]
    changes += [("cuts", "", [name for name in its if name not in mine])]
    changes += [("cuts", "otherwise", [name for name in its if name in mine and its[name] != mine[name]])]
    told = "; ".join(" ".join(filter(None, (verb, _listed(names), how))) for verb, how, names in changes if names)
    if not its:
        told = "leaves the whole model uncut"
    yield (
        f"--objective latency would take {time_text(step.total)} a step instead of {time_text(found.step.total)}: "
        f"it {told}"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return f"{shown} and {len(names) - NAMED} more" if len(names) > NAMED else shown
