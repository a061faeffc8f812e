"""Uneven blocks are spread over the ranks: no rank gets the larger ones of all layers."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpcompile
from tests.plan.models import model
from tpcompile.dims.cut import Cut, Mesh
from tpcompile.dims.dim import root
from tpcompile.passes.compilation import Compilation
from tpcompile.plan.balance import spread
from tpcompile.plan_summary import summarize

LAYERS = 4
FFN = 7
"""Columns of each layer: on 2 ranks 4 and 3, on 4 ranks 2, 2, 2 and 1."""


def feed_forward(layers: int) -> str:
    """`layers` times a product to `FFN` columns and back."""
    weights = ", ".join(f"float[10, {FFN}] up{k}, float[{FFN}, 10] down{k}" for k in range(layers))
    body = " ".join(
        f"h{k} = MatMul({'x' if k == 0 else f't{k - 1}'}, up{k}) r{k} = Tanh(h{k}) s{k} = MatMul(r{k}, down{k}) "
        f"t{k} = {'Relu' if k < layers - 1 else 'Neg'}(s{k})"
        for k in range(layers)
    )
    return f"(float[batch, 10] x) => (float[] y) <{weights}> {{ {body} y = Identity(t{layers - 1}) }}"


def widths(work: Compilation) -> list[list[int]]:
    """The columns of each rank, layer by layer."""
    return [parts(work, f"up{k}", 1) for k in range(LAYERS)]


def parts(work: Compilation, weight: str, axis: int) -> list[int]:
    """How much of an axis of a weight each rank holds."""
    (node, index), *_ = work.program.values[weight].consumers
    axes = work.analysis.operand_axes(node, index)
    assert axes is not None
    return [work.plan.cut.local_size(axes[axis], rank) for rank in range(work.plan.mesh.tp)]


@pytest.mark.parametrize(
    ("tp", "expected"),
    [
        (2, [[4, 3], [3, 4], [4, 3], [3, 4]]),
        (3, [[3, 2, 2], [2, 3, 2], [2, 2, 3], [3, 2, 2]]),
        (4, [[2, 2, 2, 1], [1, 2, 2, 2], [2, 1, 2, 2], [2, 2, 1, 2]]),
    ],
)
def test_ranks_take_turns(tp: int, expected: list[list[int]]) -> None:
    work = tpcompile.plan(model(feed_forward(LAYERS)), tp, objective="memory", pins={"up*": "column"})
    assert widths(work) == expected
    held = [rank.weights for rank in summarize(work).ranks]
    assert max(held) - min(held) <= 80  # a column of one layer, up and down: 2 * 10 * 4 bytes


def test_a_cache_lies_alike_in_all_layers() -> None:
    """Heads of caches do not take turns: what is stored of one layer's cache could not serve another rank."""
    text = """(float[batch, 7, past, 4] a, float[batch, 7, past, 4] b, float[batch, 7, 1, 4] x)
    => (float[batch, 7, more, 4] c, float[batch, 7, more, 4] d) <float[7, 4, 4] v, float[7, 4, 4] w>
    { p = MatMul(x, v) q = MatMul(x, w) c = Concat<axis = 2>(a, p) d = Concat<axis = 2>(b, q) }"""
    work = tpcompile.plan(model(text), 2)
    heads = [root(work.analysis.axes[value][1]) for value in work.program.inputs[:2]]  # type: ignore[index]
    assert work.cut_doors >= set(work.program.inputs[:2])
    cut = spread(work.analysis, Cut(Mesh(2), dict.fromkeys(heads, (0,))), work.cut_doors)
    assert [[cut.local_size(leaf, rank) for rank in range(2)] for leaf in heads] == [[4, 3], [4, 3]]


def test_numbers_stay(tmp_path: Path) -> None:
    source = model(feed_forward(LAYERS))
    bundle = tpcompile.compile(source, 4, tmp_path / "b", pins={"up*": "column"}, verify=True)
    assert bundle.plan is not None and bundle.plan.cuts_something
