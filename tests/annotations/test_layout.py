"""Layouts: what an annotation says, computed shard by shard, against what a cut gives each rank."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ShardingSpecProto

from tests.dims.trees import cuts
from tpcompile.annotations.layout import Factor, Layout, Share, Unsayable, layout, normal, planned
from tpcompile.annotations.match import Misfit, shares
from tpcompile.annotations.spec import read_spec, write_spec
from tpcompile.dims.cut import Cut, Mesh
from tpcompile.dims.dim import Dim, blocks, concatenation, product


def elements(spec: ShardingSpecProto, size: int, device: int) -> list[int]:
    """The elements of a vector that a device has, by the definition of the annotation: shards in nested loops."""
    simples = [simple for dim in spec.sharded_dim for simple in dim.simple_sharding]
    groups = {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
    holders = [groups.get(number, [number]) for number in spec.device]
    if not simples:
        return list(range(size)) if any(device in group for group in holders) else []
    index = np.arange(size).reshape([simple.dim_value for simple in simples])
    found = []
    for holder, shard in zip(
        holders, itertools.product(*(range(simple.num_shards) for simple in simples)), strict=True
    ):
        width = [simple.dim_value // simple.num_shards for simple in simples]
        place = tuple(slice(k * w, (k + 1) * w) for k, w in zip(shard, width, strict=True))
        if device in holder:
            found += index[place].reshape(-1).tolist()
    return found


@given(cuts())
def test_what_is_said_is_what_ranks_hold_and_is_read_as_the_same_cut(given_cut: tuple[Dim, Cut]) -> None:
    """For any tree of dims: written, interpreted shard by shard, and read back."""
    tree, cut = given_cut
    try:
        found = planned([tree], cut)
    except Unsayable:
        return
    spec = write_spec("w", found)
    read, wrong = read_spec(spec, [tree.size], cut.mesh.tp)
    assert (read, wrong) == (found, [])
    if all(cut.even(leaf) for leaf in cut.leaves(tree)):
        for rank in range(cut.mesh.tp):
            assert elements(spec, tree.size, rank) == cut.index(tree, rank).tolist()
    told = {leaf: share.shards for leaf, share in shares([tree], found).items()}
    assert told == {leaf: cut.mesh.degree(cut.of(leaf)) for leaf in cut.leaves(tree)}


def leaf(size: int) -> Dim:
    return Dim((size, size))


def test_kv_heads_over_one_sub_axis_and_their_groups_over_another() -> None:
    """2 kv heads of 4 queries each of size 8 on 4 ranks: keys are copied, queries are not."""
    kv, group, size = leaf(2), leaf(4), leaf(8)
    cut = Cut(Mesh(4), {kv: (0,), group: (1,)})
    queries, keys = planned([leaf(5), product([kv, group, size])], cut), planned([product([kv, size])], cut)
    assert str(queries) == "axis 1: 64 in 4"  # runs of two heads
    assert str(keys) == "axis 0: 16 in 2"
    spec = write_spec("k", keys)
    assert list(spec.device) == [-1, -2]
    assert [(entry.key, list(entry.value)) for entry in spec.index_to_device_group_map] == [(-1, [0, 1]), (-2, [2, 3])]


def test_inner_factors_have_simple_shards_of_their_own() -> None:
    """3 × 6 heads × 4, as some exporters fuse q, k and v."""
    heads = leaf(6)
    cut = Cut(Mesh(3), {heads: (0,)})
    assert str(planned([product([leaf(3), heads, leaf(4)])], cut)) == "axis 0: 3 × 24 in 3"
    q, k, v = (product([heads, leaf(4)]) for _ in range(3))
    assert str(planned([concatenation([q, k, v])], cut)) == "axis 0: 3 × 24 in 3"


def test_heads_that_do_not_divide_are_said_apart_from_their_size() -> None:
    heads = leaf(14)
    assert str(planned([product([heads, leaf(64)])], Cut(Mesh(4), {heads: (0, 1)}))) == "axis 0: 14 in 4 × 64"


def test_fused_parts_of_different_sizes_have_no_words() -> None:
    kv, size = leaf(2), leaf(8)
    fused = concatenation([product([kv, leaf(4), size]), product([kv, size]), product([kv, size])])
    with pytest.raises(Unsayable, match=r"^it is 64 \| 16 \| 16, one after the other, each cut for itself$"):
        planned([fused], Cut(Mesh(2), {kv: (0,)}))


def test_rows_cut_where_blocks_begin_have_words_only_if_blocks_fill_them() -> None:
    rows = leaf(344)
    scales = blocks(rows, 32)
    cut = Cut(Mesh(2), {rows: (0,)})
    with pytest.raises(Unsayable, match=r"^it is cut where blocks of 32 of its 344 begin$"):
        planned([rows], cut)
    assert str(planned([scales], cut)) == "axis 0: 11 in 2"


def test_neighbours_that_are_cut_as_one_are_one() -> None:
    halves, quarters = Factor(2, 2, (0, 0, 1, 1)), Factor(4, 2, (0, 1, 0, 1))
    assert normal([halves, quarters]) == (Factor(8, 4, (0, 1, 2, 3)),)
    assert normal([Factor(4, 2, (0, 0, 1, 1)), quarters]) == (Factor(4, 2, (0, 0, 1, 1)), quarters)
    assert normal([Factor(3), Factor(1), Factor(5)]) == ()
    assert layout(range(2), [(1, [Factor(3)]), (0, [])]) == Layout((0, 1))


BY_TWO = (0, 0, 1, 1)
BY_FOUR = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("dims", "said", "shards"),
    [
        ([32, 128], [Factor(4096, 4, BY_FOUR)], [4, 1]),
        ([2, 16, 128], [Factor(4096, 4, BY_FOUR)], [2, 2, 1]),
        ([32, 128], [Factor(32, 4, BY_FOUR), Factor(128)], [4, 1]),
        ([3, 8, 5], [Factor(3), Factor(8, 2, BY_TWO), Factor(5)], [1, 2, 1]),
        ([3, 8, 5], [Factor(3), Factor(40, 2, BY_TWO)], [1, 2, 1]),
        ([6], [Factor(6, 4, BY_FOUR)], [4]),
    ],
)  # fmt: skip
def test_runs_are_cut_along_the_outermost_factors(dims: list[int], said: list[Factor], shards: list[int]) -> None:
    leaves = [leaf(size) for size in dims]
    found = shares([product(leaves)], Layout((0, 1, 2, 3), ((0, tuple(said)),)))
    assert [found[leaf].shards if leaf in found else 1 for leaf in leaves] == shards


def test_sizes_that_depend_on_inputs_may_stand_before_or_behind() -> None:
    """[batch · 8 heads, …] and [8 heads · seq, …]."""
    batch, heads = Dim((2, 3)), leaf(8)
    said = Layout((0, 1, 2, 3), ((0, (Factor(None), Factor(8, 4, BY_FOUR))),))
    assert shares([product([batch, heads])], said) == {heads: Share((Factor(8, 4, BY_FOUR),))}
    runs = Layout((0, 1, 2, 3), ((0, (Factor(None, 4, BY_FOUR),)),))
    assert shares([product([heads, batch])], runs) == {heads: Share((Factor(8, 4, BY_FOUR),))}
    assert shares([batch], runs) == {batch: Share((Factor(None, 4, BY_FOUR),))}


@pytest.mark.parametrize(
    ("dim", "said", "reason"),
    [
        (
            product([leaf(14), leaf(64)]),
            [Factor(896, 4, BY_FOUR)],
            "axis 0 is 14 × 64: the shards go across these parts",
        ),
        (
            concatenation([leaf(64), leaf(16), leaf(16)]),
            [Factor(96, 4, BY_FOUR)],
            "axis 0 is 64 | 16 | 16: the shards go across these parts",
        ),
        (
            concatenation([product([leaf(4), leaf(2)]), leaf(4)]),
            [Factor(2), Factor(6, 2, BY_TWO)],
            "axis 0 is (4 × 2) | 4: the shards go across these parts",
        ),
        (
            product([Dim((2, 3)), Dim((5, 7))]),
            [Factor(None), Factor(2, 2, BY_TWO), Factor(None)],
            "axis 0 has several sizes that depend on inputs",
        ),
        (
            product([Dim((2, 3)), leaf(4)]),
            [Factor(3), Factor(4, 2, BY_TWO)],
            "axis 0 is a size of its own × 4, whose size depends on inputs",
        ),
    ],
)
def test_what_cuts_across_parts_is_told(dim: Dim, said: list[Factor], reason: str) -> None:
    with pytest.raises(Misfit) as told:
        shares([dim], Layout((0, 1, 2, 3), ((0, tuple(said)),)))
    assert str(told.value) == reason


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=3), st.data())
def test_any_sound_annotation_says_what_its_one_form_says(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """Devices in any order: bringing an annotation to its one form and writing it again changes no element."""
    spec = ShardingSpecProto(tensor_name="w")
    dim = spec.sharded_dim.add(axis=0)
    for times, shards in sizes:
        dim.simple_sharding.add(dim_value=times * shards, num_shards=shards)
    devices = math.prod(shards for _, shards in sizes)
    spec.device.extend(data.draw(st.permutations(range(devices))))
    size = math.prod(times * shards for times, shards in sizes)
    found, wrong = read_spec(spec, [size], devices)
    assert found is not None and not wrong
    again = write_spec("w", found)
    assert all(elements(again, size, d) == elements(spec, size, d) for d in range(devices))
