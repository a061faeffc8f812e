"""Rules of arithmetic: elementwise functions, sums, products that contract an axis."""

from __future__ import annotations

from dataclasses import replace

import onnx

from tpcompile.verify.lattice import Axis, Free, Lies, State
from tpcompile.verify.rules.site import Site, Undecided, broadcast, summed_over


def elementwise(site: Site) -> list[State]:
    """Any function of single entries: inputs must be finished."""
    operands = [at for at in range(len(site.nodes[0].input)) if site.given(at)]
    for at in operands:
        site.states[at] = site.finished(at)
    return [Lies(broadcast(site, operands))] * len(site.nodes[0].output)


def same(site: Site) -> list[State]:
    """Identity, Neg, Cast: linear in one input."""
    return [site.states[0] or Free.UNKNOWN]


def add(site: Site) -> list[State]:
    """Add, Sub, Sum: shares of partial inputs come together; a finished value may join them only where it is zero."""
    operands = list(range(len(site.nodes[0].input)))
    partial = [at for at in operands if site.lies(at).shares]
    for at in operands:
        if site.lies(at).lookup:
            site.fault(
                "TP528", f"adds {site.nodes[0].input[at]!r}, a lookup in a cut table whose foreign rows are not zeroed"
            )
    if not partial:
        return [Lies(broadcast(site, operands))]
    if len({site.lies(at).reduce for at in partial}) > 1 or site.lies(partial[0]).reduce != "sum":
        site.fault("TP524", "adds partial values that are not all sums")
    for at in operands:
        if at not in partial and any(array.any() for array in site.values(at)):
            inputs = site.nodes[0].input
            fact = f"adds {inputs[at]!r}, which every rank holds, to partial {inputs[partial[0]]!r}"
            site.fault("TP525", f"{fact}: the sum over ranks counts it once per rank")
    shares = frozenset().union(*(site.lies(at).shares for at in partial))
    return [Lies(broadcast(site, operands), shares)]


def product(site: Site, a: Lies, b: Lies, contracted: tuple[Axis, Axis], axes: tuple[Axis, ...]) -> Lies:
    """A product that sums over one pair of axes."""
    shares = summed_over(site, site.matched(*contracted, "the contracted axes"))
    pending = a.shares | b.shares
    if (a.shares and b.shares) or (pending and shares) or a.lookup or b.lookup:
        site.fault("TP524", f"multiplies values that are not reduced yet: {a} and {b}")
    return Lies(axes, shares | pending)


def matmul(site: Site) -> list[State]:
    a, b = site.lies(0), site.lies(1)
    if len(a.axes) < 2 or len(b.axes) < 2:
        raise Undecided("a vector in a MatMul")
    batch = replace(site, states=[Lies(a.axes[:-2]), Lies(b.axes[:-2])])
    lead = broadcast(batch, [0, 1]) if len(a.axes) > 2 or len(b.axes) > 2 else ()
    return [product(site, a, b, (a.axes[-1], b.axes[-2]), (*lead, a.axes[-2], b.axes[-1]))]


def gemm(site: Site) -> list[State]:
    a, b = site.lies(0), site.lies(1)
    flip_a, flip_b = site.attribute("transA", 0), site.attribute("transB", 0)
    rows, left = (a.axes[1], a.axes[0]) if flip_a else (a.axes[0], a.axes[1])
    right, columns = (b.axes[1], b.axes[0]) if flip_b else (b.axes[0], b.axes[1])
    result = product(site, a, b, (left, right), (rows, columns))
    return [with_bias(site, result, 2)]


def with_bias(site: Site, result: Lies, at: int) -> Lies:
    """A product plus input `at`, broadcast from the right."""
    if not site.given(at):
        return result
    nodes = []
    for node in site.nodes:
        nodes.append(onnx.helper.make_node("Add", [node.output[0], node.input[at]], list(node.output), node.name))
    inner = replace(site, nodes=nodes, states=[result, site.states[at]], value=lambda name: site.values(at))
    found = add(inner)[0]
    assert isinstance(found, Lies)
    return found
