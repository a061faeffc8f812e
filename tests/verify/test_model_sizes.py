"""What a model's nodes tell of its inputs: rows of tables, widths of heads, windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.verify.bundles import node
from tpcompile.verify.files import open_source
from tpcompile.verify.model_sizes import head_sizes, sliding_window, table_rows


def model(*nodes: onnx.NodeProto, **stored: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


TABLE = np.zeros((11, 6), np.float32)


@pytest.mark.parametrize(
    ("nodes", "stored", "rows"),
    [
        ([node("Gather", "w ids", "y")], {"w": TABLE}, {"ids": 11}),
        ([node("Transpose", "w", "t"), node("Gather", "t ids", "y")], {"w": TABLE}, {"ids": 6}),
        ([node("Cast", "ids", "i", to=6), node("Gather", "w i", "y")], {"w": TABLE}, {"ids": 11}),
        (
            [node("Reshape", "w s", "t"), node("Gather", "t ids", "y")],
            {"w": TABLE, "s": np.array([22, 3])},
            {"ids": 22},
        ),
        ([node("Reshape", "w s", "t"), node("Gather", "t ids", "y")], {"w": TABLE, "s": np.array([-1, 3])}, {}),
        ([node("Gather", "w ids", "y", axis=1)], {"w": TABLE}, {}),
        (
            [node("Mul", "one w", "m"), node("Transpose", "m", "t", perm=[1, 0]), node("Gather", "t ids", "y")],
            {"w": TABLE, "one": np.float32(1)},
            {},
        ),
    ],
)
def test_rows_of_the_table(nodes: list[onnx.NodeProto], stored: dict[str, Any], rows: dict[str, int]) -> None:
    assert table_rows(open_source(model(*nodes, **stored)), {"ids"}) == rows


def attention(query: str, key: str = "", **attributes: Any) -> onnx.NodeProto:
    names = [query, key, key, "past_k", "past_v"]
    return helper.make_node("GroupQueryAttention", names, ["y"], name="a", domain="com.microsoft", **attributes)


def test_widths_of_heads() -> None:
    """6 heads and twice 2 more in 80 columns are 8 wide; alone, after a Split and a norm, as its part says."""
    before = [node("Gather", "w ids", "h"), node("MatMul", "h qkv", "p")]
    weights = {"w": TABLE, "qkv": np.zeros((6, 80), np.float32), "parts": np.array([48, 16, 16])}
    caches = {"past_k": "width", "past_v": "width"}
    packed = model(*before, attention("p", num_heads=6, kv_num_heads=2), **weights)
    assert head_sizes(open_source(packed), caches) == {"width": 8}
    apart = [node("Split", "p parts", "q k v", axis=2), node("Relu", "q", "r")]
    alone = model(*before, *apart, attention("r", "k", num_heads=6, kv_num_heads=2), **weights)
    assert head_sizes(open_source(alone), caches) == {"width": 8}
    unknown = model(node("Gather", "w ids", "h"), attention("h", num_heads=6), w=TABLE)
    assert head_sizes(open_source(unknown), caches) == {}


def test_windows() -> None:
    nodes = [node("Gather", "w ids", "h"), attention("h", num_heads=2, local_window_size=7, sliding_window_cache=1)]
    assert sliding_window(open_source(model(*nodes, w=TABLE))) == 7
    assert sliding_window(open_source(model(nodes[0], w=TABLE))) == 0
