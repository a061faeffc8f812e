"""Who holds what: blocks tile an axis, whatever its tree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from tests.dims.trees import counted, cuts, held, leaf
from tpcompile.dims.cut import Cut, Mesh, block
from tpcompile.dims.dim import Dim, blocks, concatenation, product


@pytest.mark.parametrize("degree", range(1, 9))
def test_blocks_tile_every_size(degree: int) -> None:
    for size in range(degree, 201):
        edges = [block(size, degree, coordinate) for coordinate in range(degree)]
        assert edges[0][0] == 0 and edges[-1][1] == size
        assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
        lengths = [stop - start for start, stop in edges]
        assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize("turn, lengths", [(0, [4, 4, 3, 3]), (1, [3, 4, 4, 3]), (2, [3, 3, 4, 4]), (3, [4, 3, 3, 4])])
def test_the_larger_blocks_may_be_any_ranks(turn: int, lengths: list[int]) -> None:
    edges = [block(14, 4, coordinate, turn=turn) for coordinate in range(4)]
    assert [stop - start for start, stop in edges] == lengths
    assert [edge for pair in edges for edge in pair] == sorted(edge for pair in edges for edge in pair)


@pytest.mark.parametrize("size, grain, degree, lengths",
                         [(352, 32, 2, [192, 160]), (352, 64, 4, [128, 128, 64, 32]), (170, 32, 3, [64, 64, 42])],
)  # fmt: skip
def test_a_grain_is_never_divided(size: int, grain: int, degree: int, lengths: list[int]) -> None:
    edges = [block(size, degree, coordinate, grain) for coordinate in range(degree)]
    assert [stop - start for start, stop in edges] == lengths
    assert all(start % grain == 0 for start, _ in edges)


@given(counted())
def test_blocks_go_with_their_elements(given: tuple[Dim, Dim, int, Cut]) -> None:
    dim, count, length, cut = given
    found = [cut.index(count, rank) for rank in range(cut.mesh.tp)]
    assert set(np.concatenate(found)) == set(range(count.size))
    assert cut.covered(count) == cut.covered(dim) and cut.leaves(count) == cut.leaves(dim)
    for rank, held_blocks in enumerate(found):
        elements = cut.index(dim, rank)
        assert len(elements) and elements[0] % length == 0
        assert held_blocks.tolist() == sorted({element // length for element in elements.tolist()})
        assert cut.local_size(count, rank) == len(held_blocks) == -(-len(elements) // length)
    for axis in cut.covered(count):
        for group in cut.mesh.groups((axis,)):
            assert sum(len(found[rank]) for rank in group) == len(set(np.concatenate([found[r] for r in group])))


@given(cuts())
def test_ranks_tile_every_tree(given: tuple[Dim, Cut]) -> None:
    tree, cut = given
    found = [cut.index(tree, rank) for rank in range(cut.mesh.tp)]
    assert set(np.concatenate(found)) == set(range(tree.size))
    for rank, index in enumerate(found):
        assert index.tolist() == held(tree, cut, rank)
        assert len(index) == cut.local_size(tree, rank)
        mine, whole = cut.ratio(tree, rank)
        assert tree.size * mine == len(index) * whole


@given(cuts())
def test_ranks_of_one_group_over_a_covered_sub_axis_share_nothing(given: tuple[Dim, Cut]) -> None:
    tree, cut = given
    for axis in cut.covered(tree):
        for group in cut.mesh.groups((axis,)):
            for a, b in itertools.combinations(group, 2):
                assert not set(cut.index(tree, a)) & set(cut.index(tree, b))


@given(cuts())
def test_ranks_that_differ_on_untouched_sub_axes_hold_copies(given: tuple[Dim, Cut]) -> None:
    tree, cut = given
    for axis in set(cut.mesh.all_axes) - cut.touched(tree):
        for group in cut.mesh.groups((axis,)):
            assert all(np.array_equal(cut.index(tree, group[0]), cut.index(tree, rank)) for rank in group)


@given(cuts())
def test_a_cut_of_some_leaves_holds_more(given: tuple[Dim, Cut]) -> None:
    tree, cut = given
    fewer = cut.only(frozenset(cut.leaves(tree)[::2]))
    assert fewer.leaves(tree) == cut.leaves(tree)[::2]
    for rank in range(cut.mesh.tp):
        assert set(cut.index(tree, rank)) <= set(fewer.index(tree, rank))
    assert cut.only(frozenset()).index(tree, 0).tolist() == list(range(tree.size))


def test_a_leaf_is_cut_into_blocks() -> None:
    dim = leaf(7)
    cut = Cut(Mesh(4), {dim: (0, 1)})
    assert [cut.index(dim, rank).tolist() for rank in range(4)] == [[0, 1], [2, 3], [4, 5], [6]]
    assert [cut.local_size(dim, rank) for rank in range(4)] == [2, 2, 2, 1]


def test_an_outer_factor_gives_one_run_and_an_inner_one_strides() -> None:
    heads, size = leaf(4), leaf(3)
    dim = product([heads, size])
    assert Cut(Mesh(2), {heads: (0,)}).index(dim, 1).tolist() == [6, 7, 8, 9, 10, 11]
    assert Cut(Mesh(3), {size: (0,)}).index(dim, 1).tolist() == [1, 4, 7, 10]


def test_a_fused_weight_is_cut_in_each_of_its_parts() -> None:
    query, key, size = leaf(4), leaf(2), leaf(2)
    dim = concatenation([product([query, size]), product([key, size]), product([key, size])])
    cut = Cut(Mesh(2), {query: (0,), key: (0,)})
    assert cut.index(dim, 1).tolist() == [4, 5, 6, 7, 10, 11, 14, 15]
    assert cut.covered(dim) == {0} and cut.ratio(dim, 1) == (8, 16)


def test_blocks_of_two_lengths_over_one_axis_are_cut_where_both_begin() -> None:
    dim = leaf(352)
    scales, bytes_of_zeros = blocks(dim, 48), blocks(dim, 32)
    cut = Cut(Mesh(3), {dim: (0,)})
    assert dim.most_parts == 4 and repr(scales) == "blocks(352 / 48)"
    assert [cut.local_size(dim, rank) for rank in range(3)] == [192, 96, 64]
    assert [cut.index(scales, rank).tolist() for rank in range(3)] == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert [cut.index(bytes_of_zeros, rank).tolist() for rank in range(3)] == [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9, 10]]


def test_a_sum_that_is_cut_in_part_is_touched_and_not_covered() -> None:
    query, key = leaf(4), leaf(2)
    dim = concatenation([query, key, key])
    cut = Cut(Mesh(2), {query: (0,)})
    assert cut.index(dim, 1).tolist() == [2, 3, 4, 5, 6, 7]
    assert cut.touched(dim) == {0} and cut.covered(dim) == frozenset()


def test_key_heads_over_one_sub_axis_and_their_group_over_the_other() -> None:
    kv, group = leaf(2), leaf(7)
    dim = product([kv, group])
    cut = Cut(Mesh(4), {kv: (0,), group: (1,)})
    assert [cut.local_size(dim, rank) for rank in range(4)] == [4, 3, 4, 3]
    assert [cut.index(kv, rank).tolist() for rank in range(4)] == [[0], [0], [1], [1]]


def test_a_ratio_ignores_sizes_that_depend_on_inputs() -> None:
    batch, heads = Dim((5, 11)), leaf(6)
    cut = Cut(Mesh(2), {heads: (0,)})
    assert cut.ratio(product([batch, heads]), 0) == (3, 6)
    assert cut.ratio(batch, 0) == (1, 1)


def test_a_sum_with_sizes_that_depend_on_inputs_has_no_ratio() -> None:
    past, heads = Dim((5, 11)), leaf(6)
    with pytest.raises(ValueError, match=r"^no fixed ratio for sum\(~5/11, 6\)$"):
        Cut(Mesh(2), {heads: (0,)}).ratio(concatenation([past, heads]), 0)


@pytest.mark.parametrize("tp, primes", [(1, ()), (2, (2,)), (6, (2, 3)), (8, (2, 2, 2)), (12, (2, 2, 3)), (7, (7,))])
def test_a_mesh_has_prime_sub_axes(tp: int, primes: tuple[int, ...]) -> None:
    mesh = Mesh(tp)
    assert mesh.primes == primes and mesh.degree(mesh.all_axes) == tp
    assert [mesh.coordinate(rank, mesh.all_axes) for rank in range(tp)] == list(range(tp))


def test_groups_differ_on_their_sub_axes_alone() -> None:
    assert Mesh(6).groups((0,)) == [[0, 3], [1, 4], [2, 5]]
    assert Mesh(6).groups((1,)) == [[0, 1, 2], [3, 4, 5]]
    assert Mesh(6).groups((0, 1)) == [[0, 1, 2, 3, 4, 5]]
    assert Mesh(4).groups(()) == [[0], [1], [2], [3]]


def test_dims_that_are_gone_leave_nothing_behind() -> None:
    """A dim made for one question may lie in memory where one of another question lay."""
    heads, size = leaf(6), leaf(2)
    cut = Cut(Mesh(2), {heads: (0,)})
    for _ in range(50):
        assert len(cut.index(product([size, size]), 0)) == 4
        assert len(cut.index(product([heads, size]), 0)) == 6
        assert len(cut.index(product([size, heads, size]), 1)) == 12
