"""Pending sums pass where an operator is linear, and only there: mixed-sign parts, compared with the whole model."""

from __future__ import annotations

import itertools

import onnx
import pytest

from tests.rules.forced import Forced, analysed, differs, force, run_ranks, run_whole
from tests.rules.partials import float_operands, inner_dim, with_products
from tests.rules.sample import Sample
from tests.rules.samples import SAMPLES
from tpcompile.dims.cut import SubAxes

FIRST = (
    "AveragePool DepthToSpace Div Flatten Gather GlobalAveragePool Identity Neg ReduceMean ReduceSum Reshape "
    "ReverseSequence Slice SpaceToDepth Squeeze Transpose Unsqueeze"
)
PASSES = {op: {0} for op in FIRST.split()} | {"Mul": {0, 1}}
"""Operands from which a pending sum passes by itself. Not Split, Expand, Tile, Resize: then there is more to reduce."""
JOINT = {"Add", "Sub", "Sum"}
"""Operators that sums pass from all operands together; a stored operand joins in, on one rank only."""

WITH_OPERANDS = [(sample, name) for sample in SAMPLES for name in float_operands(sample, sample.model())]
SEVERAL = [sample for sample in SAMPLES if len(float_operands(sample, sample.model())) > 1]


def passes(sample: Sample, name: str) -> bool:
    """Whether a sum pending in the operand is to pass through the sample's operator."""
    model = sample.model()
    node = next(node for node in model.graph.node if node.op_type == sample.key[1])
    stored = {tensor.name for tensor in model.graph.initializer}
    if sample.op == "Cast":
        return sample.note == "wider"
    if sample.op in JOINT:
        return all(other in stored for other in node.input if other != name)
    return list(node.input).index(name) in PASSES.get(sample.op, set()) and list(node.input).count(name) == 1


def run(sample: Sample, model: onnx.ModelProto, tp: int, cuts: dict[str, SubAxes]) -> Forced:
    """Cut the products in front of operands; checks the numbers of every rank."""
    feeds = sample.feeds(model)
    want = run_whole(model, feeds)
    work = analysed(model)
    forced = force(work, tp, {inner_dim(work.analysis, name): axes for name, axes in cuts.items()})
    assert [differs(want, got) for got in run_ranks(forced.models(), feeds)] == [""] * tp
    return forced


def reduced(forced: Forced) -> list[str]:
    return [value for kind, value in forced.collectives if kind == "all_reduce"]


@pytest.mark.parametrize("sample, name", WITH_OPERANDS, ids=lambda given: str(given))
def test_a_pending_sum_passes_or_is_reduced_before(sample: Sample, name: str) -> None:
    forced = run(sample, with_products(sample.model(), [name]), 3, {name: (0,)})
    if passes(sample, name):
        assert reduced(forced) and name not in reduced(forced)
    else:
        assert reduced(forced) == [name]


@pytest.mark.parametrize("sample", SEVERAL, ids=str)
def test_several_pending_sums_at_once(sample: Sample) -> None:
    names = float_operands(sample, sample.model())
    model = with_products(sample.model(), names)
    run(sample, model, 2, dict.fromkeys(names, (0,)))
    run(sample, model, 4, dict(zip(names, itertools.cycle([(0,), (1,), (0, 1)]))))


JOINED = "(float[b, 6, 10] x, float[b, 6, 10] z) => (float[] y) {{ y = {op}(x, z) }}"


@pytest.mark.parametrize("op", sorted(JOINT))
@pytest.mark.parametrize("tp, x, z", [(2, (0,), (0,)), (4, (0,), (1,)), (4, (0, 1), (1,))], ids=str)
def test_sums_of_two_products_are_reduced_once(op: str, tp: int, x: SubAxes, z: SubAxes) -> None:
    sample = Sample(op, JOINED.format(op=op))
    assert reduced(run(sample, with_products(sample.model(), ["x", "z"]), tp, {"x": x, "z": z})) == ["y"]


@pytest.mark.parametrize("op", sorted(JOINT))
def test_a_stored_operand_is_added_on_one_rank(op: str) -> None:
    sample = Sample(op, f"(float[b, 6, 10] x) => (float[] y) <float[10] w> {{ y = {op}(x, w) }}")
    forced = run(sample, with_products(sample.model(), ["x"]), 4, {"x": (0,)})
    assert reduced(forced) == ["y"]
    assert [weight.zeroed for weight in forced.local.weights] == [{2, 3}]


def test_a_square_of_a_pending_sum_is_reduced_before() -> None:
    sample = Sample("Mul", "(float[b, 6] x) => (float[] y) { y = Mul(x, x) }")
    assert reduced(run(sample, with_products(sample.model(), ["x"]), 2, {"x": (0,)})) == ["x"]


def test_a_pending_sum_that_two_read_is_reduced_once() -> None:
    sample = Sample("Neg", "(float[b, 6] x) => (float[] y, float[] z) { y = Neg(x) z = Abs(x) }")
    assert reduced(run(sample, with_products(sample.model(), ["x"]), 2, {"x": (0,)})) == ["x"]


def test_a_reader_of_shapes_does_not_need_the_sum() -> None:
    """BART takes an element of the embeddings, to see how many there are: that is no second reader."""
    graph = """(float[b, s, 6] x) => (float[] y) <float[6] w, int64 last = {-1}, int64[1] two = {2}>
    { e = Gather<axis = 2>(x, last) d = Shape(e) o = ConstantOfShape<value = float[1] {1.5}>(d) c = Unsqueeze(o, two)
      a = Add(x, w) y = Mul(a, c) }"""
    sample = Sample("Add", graph)
    assert reduced(run(sample, with_products(sample.model(), ["x"]), 2, {"x": (0,)})) == ["y"]
