"""What the checker calls valid is: each device runs the operator on what it holds, and the whole result comes out.

Annotations are drawn at random; of those that are valid the parts are computed and put together.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.annotations.by_hand import specify
from tests.plan.models import model
from tpcompile import pipeline
from tpcompile.annotations.layout import Layout
from tpcompile.annotations.operators import Operand, run_on
from tpcompile.annotations.spec import read_spec
from tpcompile.graph.doors import open_model
from tpcompile.plan.request import Request

DEVICES = (0, 1, 2, 3)
Array = npt.NDArray[np.float64]

GRAPHS = [
    "(float[8, 12] a, float[12, 4] b) => (float[8, 4] y) { y = MatMul(a, b) }",
    "(float[4, 8, 12] a, float[12, 4] b) => (float[4, 8, 4] y) { y = MatMul(a, b) }",
    "(float[4, 8, 12] a, float[4, 12, 8] b) => (float[4, 8, 8] y) { y = MatMul(a, b) }",
    "(float[8, 12] a, float[8, 12] b) => (float[8, 12] y) { y = Mul(a, b) }",
    "(float[8, 1] a, float[1, 12] b) => (float[8, 12] y) { y = Add(a, b) }",
    "(float[8, 12] a, float[12] b) => (float[8, 12] y) { y = Sub(a, b) }",
    "(float[4, 8, 12] a) => (float[12, 4, 8] y) { y = Transpose<perm = [2, 0, 1]>(a) }",
    "(float[8, 12] a) => (float[8, 12] y) { y = Softmax<axis = 1>(a) }",
    "(float[8, 4] a, float[12, 4] b) => (float[8, 12] y) { y = Gemm<transB = 1>(a, b) }",
    "(float[4, 8, 4] a, float[4, 4, 8] b) => (float[8] y) { y = Einsum<equation = \"abc,acb->b\">(a, b) }",
]  # fmt: skip


def drawn(rng: random.Random, name: str, shape: tuple[int, ...]) -> str:
    """An annotation of 1, 2 or 4 shards along one axis or two, over devices in any order."""
    axes = rng.sample(range(len(shape)), rng.choice([0, 1, 1, 2]) if len(shape) > 1 else rng.choice([0, 1]))
    said, shards = name, 1
    for axis in axes:
        count = rng.choice([2, 4] if len(axes) == 1 else [2])
        if shape[axis] % count:
            continue
        inner = rng.random() < 0.3 and shape[axis] // 2 % count == 0
        said += f" {axis}/2:1×{shape[axis] // 2}:{count}" if inner else f" {axis}/{count}"
        shards *= count
    order = list(DEVICES) if rng.random() < 0.5 else rng.sample(DEVICES, 4)
    copies = 4 // shards
    groups = [order[k * copies : (k + 1) * copies] for k in range(shards)]
    if rng.random() < 0.4:
        groups = [order[k::shards] for k in range(shards)]
    return f"{said} @ " + " ".join(f"[{' '.join(map(str, group))}]" for group in groups)


def held(layout: Layout, shape: tuple[int, ...], device: int) -> tuple[tuple[int, ...], ...]:
    """The indices that a device has of each axis."""
    cut, place = dict(layout.axes), layout.devices.index(device)
    found = []
    for axis, size in enumerate(shape):
        index = np.zeros(1, dtype=np.int64)
        for factor in cut.get(axis, ()):
            width = (factor.size or size) // factor.shards
            mine = np.arange(width) + (factor.held[place] if factor.held else 0) * width
            index = (index[:, None] * (factor.size or size) + mine[None, :]).reshape(-1)
        found.append(tuple(index.tolist()) if axis in cut else tuple(range(size)))
    return tuple(found)


def together(
    node: onnx.NodeProto,
    arrays: dict[str, Array],
    said: dict[str, Layout],
    result: Layout,
    shape: tuple[int, ...],
    summed: int,
) -> Array:
    """The result from its parts: those that devices have alike count once, those of a sum are added."""
    graph = onnx.helper.make_graph([node], "part", [onnx.helper.make_tensor_value_info(n, 1, None) for n in arrays],
                                   [onnx.helper.make_tensor_value_info(node.output[0], 1, None)])  # fmt: skip
    run = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]))
    found, done, covered = np.zeros(shape), set(), np.zeros(shape)
    for device in DEVICES:
        parts = {name: held(said[name], array.shape, device) for name, array in arrays.items()}
        (part,) = run.run(None, {name: array[np.ix_(*parts[name])] for name, array in arrays.items()})
        place = held(result, shape, device)
        assert part.shape == tuple(map(len, place))
        if (key := tuple(parts.values())) not in done:
            done.add(key)
            found[np.ix_(*place)] += part
            covered[np.ix_(*place)] += 1
    assert (covered == summed).all()
    return found


@pytest.mark.parametrize("text", GRAPHS, ids=lambda text: text.partition("y = ")[2].partition("(")[0])
def test_valid_annotations_give_the_result(text: str) -> None:
    source = model(text)
    work = pipeline.run(pipeline.start(open_model(source), Request()), pipeline.SHAPES)
    (node,) = work.program.nodes
    (proto,) = source.graph.node
    random_numbers = np.random.default_rng(3)
    shapes = {info.name: tuple(d.dim_value for d in info.type.tensor_type.shape.dim) for info in source.graph.input}
    arrays = {name: random_numbers.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    output = tuple(d.dim_value for d in source.graph.output[0].type.tensor_type.shape.dim)
    whole = {name: Layout(DEVICES) for name in arrays}
    right = together(proto, arrays, whole, Layout(DEVICES), output, 1)
    seen: Counter[str] = Counter()
    for seed in range(600):
        rng = random.Random(seed)
        said = {}
        for name, shape in shapes.items():
            spec = onnx.ShardingSpecProto()
            specify(spec, drawn(rng, name, shape), 4)
            layout, wrong = read_spec(spec, shape, 4)
            assert layout is not None, wrong
            said[name] = layout
        operands = {k: Operand(name, said[name], True) for k, name in enumerate(proto.input)}
        outcome = run_on(node, operands, DEVICES)
        assert not outcome.unchecked
        if outcome.wrong:
            seen[outcome.wrong[0].code] += 1
            continue
        (result,) = outcome.results
        assert result is not None
        seen["summed" if outcome.summed > 1 else "whole" if result.whole else "cut"] += 1
        found = together(proto, arrays, said, result, output, outcome.summed)
        assert np.allclose(found, right, rtol=1e-4, atol=1e-4)
    assert seen["whole"] + seen["cut"] + seen["summed"] > 20
