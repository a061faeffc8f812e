"""What the rule of a sample's operator says of each of its static dims, and what the sample says it should."""

from __future__ import annotations

from tests.rules.cuts import named_leaves
from tests.torch_fx.cut_side_by_side import Analysed
from tpcompile.dims.flow import reduced_leaves


def claims(of: Analysed, place: int) -> dict[str, str]:
    """Each static dim of the operator's operands: "free", "sums" or "whole"; nothing where reading left no operator."""
    node = of.node(place)
    if node is None:
        return {}
    called = {value: f"t{k}" for k, value in enumerate(node.inputs) if value is not None}
    several = len(node.outputs) > 1
    called |= {value: f"y{k}" if several else "y" for k, value in enumerate(node.outputs) if value is not None}
    called |= of.called
    blocked, summed = of.work.analysis.blocked[node], reduced_leaves(of.work.analysis, node)
    return {
        name: "sums" if leaf in summed else "whole" if leaf in blocked else "free"
        for name, leaf in named_leaves(of.work.analysis, [node], called).items()
    }


def expected(of: Analysed, place: int) -> dict[str, str]:
    """What a sample tells; what it does not speak of is whole."""
    sample = of.samples[place]
    found = dict.fromkeys(claims(of, place), "whole")
    return found | dict.fromkeys(sample.free.split(), "free") | dict.fromkeys(sample.sums.split(), "sums")


def passing(of: Analysed, place: int) -> set[str]:
    """The inputs from which a pending sum passes through the operator, whatever else it reads."""
    node = of.node(place)
    relation = None if node is None else of.work.analysis.relations[node]
    if node is None or relation is None or relation.joint or node in of.work.analysis.uncovered:
        return set()
    found = {value for index, value in enumerate(node.inputs) if value is not None and index in relation.linear}
    twice = {value for value in found if node.inputs.count(value) > 1}
    return {of.called[value] for value in found - twice if value in of.called}
