"""Models with operators of ONNX Runtime are lowered in a newer opset where that changes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rules.sample import Sample
from tests.targets.lowering.lowered import error_of, lowered
from tpcompile.targets.lowering import lower

ATTENDS = "z = com.microsoft.MultiHeadAttention<num_heads = 6>(x, x, x)"


def sample(body: str, opset: int) -> Sample:
    """Half precision [b, s, 24] in, out as well, through a body that ends in `y`."""
    text = f"(float16[b, s, 24] x) => (float16[b, s, 24] y) <float16[4] one> {{ {body} }}"
    return Sample("com.microsoft.MultiHeadAttention", text, opset=opset)


@pytest.mark.parametrize(
    ("body", "opset", "raised"),
    [
        (f"{ATTENDS} y = Relu(z)", 18, 23),
        (f"{ATTENDS} y = Relu(z)", 22, 23),
        (f"{ATTENDS} y = Relu(z)", 12, 12),
        (f"{ATTENDS} m = ReduceMax<axes = [2]>(z) p, q = Split<axis = 2>(z) r = Add(z, m) y = Relu(r)", 13, 23),
        (f"{ATTENDS} y = GroupNormalization<num_groups = 1>(z, c, c) c = Relu(one)", 18, 18),
        (f"{ATTENDS} y = MaxPool<kernel_shape = [1]>(z)", 20, 20),
        (f"{ATTENDS} y = MaxPool<kernel_shape = [1]>(z)", 22, 23),
    ],
)
def test_the_opset_is_raised_where_nothing_else_changes(body: str, opset: int, raised: int, tmp_path: Path) -> None:
    model = sample(body, opset).model()
    if "c = Relu" in body:  # in the order of their use
        model.graph.node.insert(1, model.graph.node.pop())
    made = lower(model, tmp_path, "lowered.bin").model
    assert {entry.domain: entry.version for entry in made.opset_import}[""] == raised
    kinds = [node.op_type for node in made.graph.node]
    assert ("Attention" in kinds, "Softmax" in kinds) == (raised >= 23, raised < 23)


def test_a_model_of_onnx_alone_keeps_its_opset(tmp_path: Path) -> None:
    text = "(float16[b, s, 24] x) => (float16[b, s, 24] y) { y = Softmax(x) }"
    made = lower(Sample("Softmax", text, opset=20).model(), tmp_path, "lowered.bin").model
    assert [entry.version for entry in made.opset_import] == [20]


@pytest.mark.parametrize("opset", [12, 17, 20])
def test_numbers_stay(opset: int, tmp_path: Path) -> None:
    reduced = "m = ReduceMax<axes = [2]>(z) p, q = Split<axis = 2>(z) r = Concat<axis = 2>(q, p) h = Add(r, m)"
    found = sample(f"{ATTENDS} y = Relu(z)" if opset > 17 else f"{ATTENDS} {reduced} y = Relu(h)", opset)
    assert lowered(found, tmp_path).changes == {"MultiHeadAttention": 1}
    assert error_of(found, tmp_path) < 2e-3
