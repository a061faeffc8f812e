"""The pieces of verification on their own: tiling, putting together, simulated collectives, inputs, the lattice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.verify.bundles import edit_rank, make_bundle, source_model
from tpcompile.errors import Refused
from tpcompile.targets.collectives import make_collective
from tpcompile.verify import lattice
from tpcompile.verify.compare import assembled, mean_error, relative_error
from tpcompile.verify.files import open_bundle, open_source
from tpcompile.verify.inputs import Sizes, default_inputs, read_inputs
from tpcompile.verify.simulate import perform
from tpcompile.verify.tiles import check_tiles

Array = np.ndarray[Any, np.dtype[Any]]


def tiling_of(
    tmp_path: Path, name: str, arrays: list[Array], metadata: list[dict[str, str]] | None = None
) -> list[str]:
    """The faults of the hand-made bundle with `name` stored as `arrays` by rank."""
    bundle = make_bundle(tmp_path, len(arrays))
    for rank, array in enumerate(arrays):

        def change(model: onnx.ModelProto, array: Array = array, rank: int = rank) -> None:
            tensor = next(t for t in model.graph.initializer if t.name == name)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
            for key, value in (metadata[rank] if metadata else {}).items():
                tensor.metadata_props.add(key=key, value=value)

        edit_rank(bundle, rank, change)
    return [str(fault) for fault in check_tiles(open_bundle(bundle), open_source(bundle.parent / "model.onnx")).faults]


def source_tensor(name: str) -> Array:
    return next(onnx.numpy_helper.to_array(t) for t in source_model().graph.initializer if t.name == name)


@pytest.mark.parametrize(
    "split",
    [
        lambda w: [w[:, ::2], w[:, 1::2]],
        lambda w: [w[:, [0, 1, 4, 5]], w[:, [2, 3, 6, 7]]],
        lambda w: [w[:, [0, 1, 2, 3, 4, 5]], w[:, [4, 5, 6, 7]]],
        lambda w: [w[np.ix_([0, 1, 2], [0, 1])], w[np.ix_([0, 1, 2], range(2, 8))]],
        lambda w: [w, w],
        lambda w: [w, np.zeros_like(w)],
        lambda w: [np.pad(w[:, :3], ((0, 0), (0, 2))), w[:, 3:]],
    ],
    ids=["strided", "two runs", "overlap", "two axes, rows lack", "whole", "zeros beside", "padded"],
)
def test_parts_are_found_by_content(tmp_path: Path, split: Any, request: pytest.FixtureRequest) -> None:
    faults = tiling_of(tmp_path, "up", split(source_tensor("up")))
    lacks = "rows lack" in request.node.callspec.id
    fault = f"TP511 up: has an element that no rank holds: index [3, 0] of shape [6, 8]. {REWRITE}"
    assert faults == ([fault] if lacks else [])


REWRITE = "Compile the model again, or copy the bundle again from where it was made"


def test_declared_ranges_are_held_against_the_bytes(tmp_path: Path) -> None:
    up = source_tensor("up")
    ranges = [{"tpcompile.ranges": json.dumps([None, [[4 * (1 - rank), 4 * (1 - rank) + 4]]])} for rank in range(2)]
    assert tiling_of(tmp_path, "up", [up[:, :4], up[:, 4:]], ranges) == [
        "TP510 up on rank 0: differs from the source first at index [0, 0], which should be the source's [0, 4]. "
        + REWRITE
    ]


def test_declared_ranges_that_cannot_be_read(tmp_path: Path) -> None:
    up = source_tensor("up")
    said = [{"tpcompile.ranges": "[null, 3]"}, {}]
    assert tiling_of(tmp_path, "up", [up, up], said) == [
        f"TP510 up on rank 0: declares ranges that cannot be read ('int' object is not iterable). {REWRITE}"
    ]


def test_declared_ranges_that_hold(tmp_path: Path) -> None:
    up = source_tensor("up")
    ranges = [{"tpcompile.ranges": json.dumps([None, runs])} for runs in ([[0, 2], [6, 8]], [[2, 6]])]
    assert tiling_of(tmp_path, "up", [up[:, [0, 1, 6, 7]], up[:, 2:6]], ranges) == []


def test_declared_zeros_that_are_none(tmp_path: Path) -> None:
    bias = source_tensor("down_bias")
    said = [{"tpcompile.ranges": "[null]"}, {"tpcompile.ranges": "[null]", "tpcompile.zeroed": "1"}]
    assert tiling_of(tmp_path, "down_bias", [bias, bias], said) == [
        "TP510 down_bias on rank 1: should be zeros, as the file says, but is not. " + REWRITE
    ]


def test_one_changed_bit_is_named(tmp_path: Path) -> None:
    head = source_tensor("head").copy()
    parts = [head[:, :5].copy(), head[:, 5:].copy()]
    said = [{"tpcompile.ranges": json.dumps([None, [[5 * rank, 5 * rank + 5]]])} for rank in range(2)]
    parts[1].view(np.uint32)[2, 3] ^= 1
    assert tiling_of(tmp_path, "head", parts, said) == [
        "TP510 head on rank 1: differs from the source first at index [2, 3], which should be the source's [2, 8]. "
        + REWRITE
    ]


def test_assembled() -> None:
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((2, 5, 3)).astype(np.float32)
    parts = [whole[:, [0, 1, 4]], whole[:, 2:4], whole[:, 2:4]]
    ranges = [[[0, 2], [4, 5]], [[2, 4]], [[2, 4]]]
    found = assembled(parts, 1, ranges)
    assert isinstance(found, np.ndarray) and np.array_equal(found, whole)
    assert assembled([*parts[:2], parts[2] + 1], 1, ranges) == (
        "differs on rank 2 from another rank that holds the same part of axis 1"
    )
    assert assembled(parts[:2], 1, [[[0, 3]], [[3, 5]]]) is not None
    assert assembled(parts[1:], 1, [[[0, 2]], [[3, 5]]]) == "lacks index 2 of axis 1 on every rank"
    assert assembled(parts, 1, ranges[:2]) == "has ranges for 2 ranks, not 3"


def test_relative_error() -> None:
    a = np.array([1.0, -4.0, np.inf], np.float32)
    assert relative_error(a, a) == 0
    assert relative_error(a, np.array([1.0, -3.0, np.inf], np.float32)) == pytest.approx(0.25, rel=1e-5)
    assert relative_error(a, np.array([1.0, -4.0, 7.0], np.float32)) == np.inf
    assert relative_error(a, a[:2]) == np.inf
    assert relative_error(np.arange(4), np.array([0, 1, 2, 9])) == 0.25


def test_mean_error_counts_steps_of_whole_numbers() -> None:
    a = np.array([3, 250, 7, 7], np.uint8)
    assert mean_error(a, np.array([3, 251, 7, 5], np.uint8)) == 0.75
    assert mean_error(a, a.astype(np.int8)) == np.inf
    floats = np.array([1.0, -3.0, np.inf], np.float32)
    assert mean_error(floats, np.array([1.0, -2.0, np.inf], np.float32)) == pytest.approx(0.25, rel=1e-5)
    assert mean_error(floats, np.array([1.0, -2.0, 9.0], np.float32)) == np.inf
    assert mean_error(np.array([True, False]), np.array([True, True])) == 0.5


@pytest.mark.parametrize(
    ("op", "reduce_op", "want"),
    [
        ("all_reduce", "sum", [[5, -1], [5, -1]]),
        ("all_reduce", "max", [[4, 2], [4, 2]]),
        ("all_reduce", "avg", [[2.5, -0.5], [2.5, -0.5]]),
        ("reduce_scatter", "sum", [[5], [-1]]),
        ("all_gather", "none", [[1, 2, 4, -3], [1, 2, 4, -3]]),
        ("all_to_all", "none", [[1, 4], [2, -3]]),
    ],
)
def test_simulated_collectives(op: str, reduce_op: str, want: list[list[float]]) -> None:
    nodes = [make_collective(op, "x", "y", nb_rank=2, name="c", reduce_op=reduce_op)] * 2
    found = perform(nodes, [np.array([1, 2], np.float32), np.array([4, -3], np.float32)])
    assert [array.tolist() for array in found] == want


def test_simulated_collectives_in_groups() -> None:
    nodes = [
        make_collective("all_gather", "x", "y", nb_rank=2, name="c", groups=group)
        for group in ([0, 2], [1, 3], [0, 2], [1, 3])
    ]
    found = perform(nodes, [np.array([rank]) for rank in range(4)])
    assert [array.tolist() for array in found] == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_a_collective_of_different_shapes_is_refused() -> None:
    nodes = [make_collective("all_reduce", "x", "y", nb_rank=2, name="c", reduce_op="sum")] * 2
    with pytest.raises(Refused) as error:
        perform(nodes, [np.zeros(2), np.zeros(3)])
    assert str(error.value) == (
        "TP530 rank 0: c: all_reduce of values of different shape: [(2,), (3,)]. This is a fault of tpcompile or of a "
        "changed file: compile again, and report it with the model if it comes back"
    )


def decoder() -> onnx.ModelProto:
    """Inputs as a decoder with caches has them."""
    table = onnx.numpy_helper.from_array(np.zeros((50, 4), np.float32), "table")
    inputs = [
        helper.make_tensor_value_info("input_ids", 7, ["batch", "seq"]),
        helper.make_tensor_value_info("attention_mask", 7, ["batch", "past_sequence + seq"]),
        helper.make_tensor_value_info("position_ids", 7, ["batch", "seq"]),
        helper.make_tensor_value_info("past_key_values.0.key", 1, ["batch", 3, "past_sequence", "8"]),
    ]
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["cast"], to=7),
        helper.make_node("Gather", ["table", "cast"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, None)], [table])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_default_inputs_of_a_decoder() -> None:
    made = default_inputs(open_source(decoder()), Sizes(), tp=4)
    assert {name: array.shape for name, array in made.items()} == {
        "input_ids": (2, 6),
        "attention_mask": (2, 10),
        "position_ids": (2, 6),
        "past_key_values.0.key": (2, 3, 4, 8),
    }
    assert made["position_ids"].tolist() == [[4, 5, 6, 7, 8, 9]] * 2
    assert made["attention_mask"].sum() == 19 and made["attention_mask"][1, 0] == 0
    assert {0, 49, 12, 13, 24, 25, 37, 38} <= set(made["input_ids"].ravel().tolist())


def test_given_inputs_that_do_not_fit_are_refused_together(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input_ids=np.zeros((2, 3), np.int32), attention_mask=np.zeros(4, np.int64))
    with pytest.raises(Refused) as error:
        read_inputs(tmp_path / "x.npz", open_source(decoder()))
    assert str(error.value) == (
        "TP503 input input_ids: is int32 with shape [2, 3]. Give an array of int64 with shape ['batch', 'seq']\n"
        "TP503 input attention_mask: is int64 with shape [4]. "
        "Give an array of int64 with shape ['batch', 'past_sequence + seq']\n"
        "TP503 input position_ids: is not among the given inputs ['attention_mask', 'input_ids']. "
        "Give an array of int64 with shape ['batch', 'seq']\n"
        "TP503 input past_key_values.0.key: is not among the given inputs ['attention_mask', 'input_ids']. "
        "Give an array of float32 with shape ['batch', 3, 'past_sequence', '8']"
    )


def test_inputs_that_are_no_npz(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_text("no")
    with pytest.raises(Refused) as error:
        read_inputs(tmp_path / "x.npz", open_source(decoder()))
    assert str(error.value) == (
        f"TP503 {tmp_path / 'x.npz'}: cannot be read as an .npz file (ValueError). "
        "Write it with numpy.savez(path, **inputs)"
    )


def heads(*held: list[int], size: int) -> lattice.Axis:
    return lattice.cut(size, [np.array(index) for index in held])


def test_dividing_an_axis_finds_the_factor_that_is_cut() -> None:
    """12 columns as 3 blocks of 4 of which the ranks hold the halves: a fused, interleaved weight."""
    axis = heads([0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11], size=12)
    blocks, inner = lattice.divided(axis, [[3, 2], [3, 2]]) or []
    assert (str(blocks), str(inner)) == ("3 whole", "4 cut 0-1|2-3")
    assert str(lattice.merged([blocks, inner])) == str(axis)


def test_dividing_prefers_runs() -> None:
    """kv heads over two sub-axes of 4 ranks, the group over the other: heads 0 and 2 of 8 are kv 0-1 and group 0."""
    axis = lattice.merged(
        [heads([0, 1], [0, 1], [2, 3], [2, 3], size=4), heads([0], [1], [0], [1], size=2), lattice.whole(3, 4)]
    )
    kv, group, width = lattice.divided(axis, [[2, 1, 3]] * 4) or []
    assert (str(kv), str(group), str(width)) == ("4 cut 0-1|0-1|2-3|2-3", "2 cut 0|1|0|1", "3 whole")
    assert lattice.divided(axis, [[3, 2, 1]] * 4) is None


def test_expanded_heads_meet_the_heads_they_serve() -> None:
    """Keys of 2 heads, repeated for 4 heads each by an Expand of unknown whole size, meet 8 query heads."""
    keys = lattice.merged([heads([0], [1], size=2), lattice.alike([4, 4])])
    assert keys.flat is None
    assert lattice.meet(keys, heads([0, 1, 2, 3], [4, 5, 6, 7], size=8)) is not None
    assert lattice.meet(keys, heads([4, 5, 6, 7], [0, 1, 2, 3], size=8)) is None


def test_selecting_from_a_cut_axis() -> None:
    axis = heads([0, 1, 4], [2, 3, 5], size=6)
    assert str(lattice.select(axis, [np.array([0, 1])] * 2)) == "4 cut 0-1|2-3"
    assert str(lattice.select(lattice.whole(6, 2), [np.arange(3), np.arange(3, 6)])) == "6 cut 0-2|3-5"
    assert str(lattice.select(lattice.whole(6, 2), [np.arange(1, 4)] * 2)) == "3 whole"


def test_shares_of_a_sum() -> None:
    assert lattice.shares_of(heads([0, 1], [2, 3], size=4)) == {(0, 1)}
    assert lattice.shares_of(heads([0], [0], [1], [1], size=2)) == {(0, 0, 1, 1)}
    assert lattice.shares_of(lattice.whole(4, 2)) == frozenset()
    assert (
        lattice.shares_of(heads([0, 1], [1, 2], size=3))
        == "an axis whose indices overlap or lack between ranks (3 cut 0-1|1-2)"
    )
