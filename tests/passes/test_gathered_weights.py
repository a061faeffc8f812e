"""Weights stored cut and gathered before use: what ranks hold and send, and that the numbers are the source's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import tpcompile
from tests.plan.models import LIMIT, TWO_LAYERS, error_of, model
from tpcompile.plan_summary import summarize

LARGE = TWO_LAYERS.replace("36", "372").replace("50", "513")
"""Weights of more than 4096 elements but for the biases; 372 divides by 2, 3 and 4, and 513 by 3."""
UNEVEN = """(float[batch, 101] x) => (float[batch, 103] y)
<float[101, 103] w> { y = MatMul(x, w) }"""
CHOSEN = """(float[batch, 70] x, bool up) => (float[batch, 90] y)
<float[70, 90] w> {
 y = If(up) <then_branch = then () => (float[b, 90] a) { p = MatMul(x, w) a = Relu(p) },
             else_branch = other () => (float[b, 90] c) { c = MatMul(x, w) }>
}"""


def compiled(source: onnx.ModelProto, tp: int, folder: Path, **wishes: Any) -> tpcompile.Bundle:
    return tpcompile.compile(source, tp, folder / f"m.tp{tp}", verify=True, **wishes)


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_every_rank_holds_its_part_and_the_numbers_are_the_sources(tp: int, tmp_path: Path) -> None:
    source = model(LARGE)
    bundle = compiled(source, tp, tmp_path, pins={"*": "gather"})
    assert [call.op for call in bundle.manifest.collectives] == ["all_gather"] * 6
    assert error_of(source, bundle.folder) < LIMIT
    weights = {tensor.name: tuple(tensor.dims) for tensor in bundle.rank_model(0).graph.initializer}
    assert weights["up0"] == {2: (8, 372), 3: (16, 124), 4: (4, 372)}[tp]  # 16 rows; by 3 the columns divide
    assert weights["bias0"] == (372,)  # too small to be worth a start


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_what_does_not_divide_is_padded_for_the_gather_only(tp: int, tmp_path: Path) -> None:
    source = model(UNEVEN)
    bundle = compiled(source, tp, tmp_path, pins={"w": "gather"})
    assert error_of(source, bundle.folder) < LIMIT
    held = [sum(file.bytes for file in rank.data) for rank in bundle.manifest.ranks]
    assert max(held) <= 4096 + 101 * 4 * -(-103 // tp)
    shapes = [next(iter(bundle.rank_model(rank).graph.initializer)).dims[1] for rank in range(tp)]
    assert sum(shapes) == 103
    assert max(shapes) - min(shapes) <= 1


def test_a_weight_of_two_branches_is_gathered_before_them(tmp_path: Path) -> None:
    source = model(CHOSEN)
    bundle = compiled(source, 2, tmp_path, pins={"w": "gather"})
    ops = [node.op_type for node in bundle.rank_model(0).graph.node]
    assert ops == ["DistCollective", "If"]


def test_what_is_read_twice_is_gathered_once(tmp_path: Path) -> None:
    tied = (
        "(float[b, 64] x) => (float[b, 64] y) <float[64, 80] w> { a = MatMul(x, w) t = Transpose(w) y = MatMul(a, t) }"
    )
    bundle = compiled(model(tied), 4, tmp_path, pins={"w": "gather"})
    assert len(bundle.manifest.collectives) == 1


def test_pins_of_both_kinds_in_one_model(tmp_path: Path) -> None:
    """The layers are cut as always, the embedding and the head are gathered; the first pin of a name counts last."""
    source = model(LARGE)
    bundle = compiled(source, 4, tmp_path, pins=[("table", "gather"), ("head", "gather")])
    assert error_of(source, bundle.folder) < LIMIT
    assert sorted(call.op for call in bundle.manifest.collectives) == ["all_gather"] * 2 + ["all_reduce"] * 2


def test_what_it_costs_and_saves_is_told() -> None:
    work = tpcompile.plan(model(LARGE), 2, pins={"*": "gather"})
    told = summarize(work)
    rows = {row.name: row for row in told.weights}
    assert (rows["head"].how, rows["head"].local_shape, rows["head"].rank_bytes) == (
        "gathered",
        (8, 513),
        (8 * 513 * 4,) * 2,
    )
    assert [(row.value, row.nbytes) for row in told.collectives if row.value == "head"] == [("head", 16 * 513 * 4)]
    assert told.estimate.collectives == {"all_reduce": 0, "all_gather": 6}
    assert told.estimate.rank.weights == sum(row.rank_bytes[0] for row in told.weights)
    uncut = summarize(tpcompile.plan(model(LARGE), 2, pins={"*": "whole"}))
    assert (
        told.estimate.rank.activations - uncut.estimate.rank.activations == 16 * 513 * 4
    )  # one whole weight at a time


def test_a_wish_that_changes_nothing_is_said(tmp_path: Path) -> None:
    work = tpcompile.plan(model(LARGE), 2, pins={"bias*": "gather", "head": "gather"})
    assert work.warnings == ["pin 'bias*=gather' changes nothing (bias1: it has no more than 4096 elements)"]


def test_half_precision_and_integers_travel_as_they_are(tmp_path: Path) -> None:
    halves = """(float16[batch, 96] x, int64[batch] ids) => (float16[batch, 50] y, int64[batch, 90] z)
    <float16[96, 50] w, int64[60, 90] table> { y = MatMul(x, w) z = Gather(table, ids) }"""
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {halves}')
    random = np.random.default_rng(3)
    w: npt.NDArray[Any] = random.standard_normal((96, 50)).astype(np.float16)
    table = random.integers(-(2**40), 2**40, (60, 90))
    del source.graph.value_info[:]
    source.graph.initializer.extend(
        [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(table, "table")]
    )
    bundle = compiled(source, 2, tmp_path, pins={"*": "gather"})
    assert [(call.op, call.dtype) for call in bundle.manifest.collectives] == [
        ("all_gather", "float16"), ("all_gather", "int64"),
    ]  # fmt: skip


def test_weights_that_kernels_repack_stay_whole() -> None:
    text = """(float[batch, 128] x) => (float[batch, 96] y) <uint8[96, 4, 16] w, float[96, 4] scales>
    { y = com.microsoft.MatMulNBits<K = 128, N = 96, bits = 4, block_size = 32, accuracy_level = 4>(x, w, scales) }"""
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g {text}')
    del source.graph.value_info[:]
    random = np.random.default_rng(4)
    for name, array in (
        ("w", random.integers(0, 256, (96, 4, 16)).astype(np.uint8)),
        ("scales", random.standard_normal((96, 4)).astype(np.float32)),
    ):
        source.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    work = tpcompile.plan(source, 2, pins={"w": "gather"})
    assert not work.plan.gathered
    assert work.warnings[0] == (
        "pin 'w=gather' changes nothing (w: MatMulNBits computes otherwise with weights that are not stored in its "
        "file)"
    )
