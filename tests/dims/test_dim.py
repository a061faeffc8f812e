"""Dims as trees: one refines the other where their structures agree, and nothing is linked where they do not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dims.trees import leaf, trees
from tpcompile.dims.dim import (
    Dim,
    blocks,
    concatenation,
    differing_factors,
    factors,
    identical,
    leaves,
    product,
    root,
    segments,
    unify,
    unify_products,
)


def test_a_reshape_into_heads_names_the_columns_of_the_weight() -> None:
    columns, heads, size = leaf(4096), leaf(32), leaf(128)
    assert unify(columns, product([heads, size]))
    assert repr(columns) == "product(32, 128)"
    assert [root(part) for part in factors(columns)] == [heads, size]


def test_blocks_that_are_counted_over_one_dim_are_one() -> None:
    a, b, scales = leaf(50), leaf(50), leaf(4)
    assert unify(scales, blocks(a, 16)) and unify(a, b)
    assert unify(scales, blocks(b, 16)) and identical(scales, blocks(b, 16))
    assert not identical(scales, blocks(b, 14)) and not unify(blocks(b, 14), blocks(b, 16))
    assert list(leaves(scales)) == [root(b)] and root(b).grain == 112 and root(b).most_parts == 1


def test_the_grain_of_two_leaves_that_become_one_is_that_of_both() -> None:
    a, b = leaf(96), leaf(96)
    blocks(a, 4), blocks(b, 6)
    assert unify(a, b) and root(a).grain == 12 and root(a).most_parts == 8


def test_a_fused_weight_is_a_sum_of_heads() -> None:
    """LLaMA: [q | k | v], each then reshaped into heads; key heads are shared by a group of query heads."""
    columns, kv, group, size = leaf(64), leaf(2), leaf(4), leaf(4)
    q, k, v = leaf(32), leaf(8), leaf(24)
    assert unify(columns, concatenation([q, k, v]))
    assert unify(q, product([kv, group, size]))
    assert unify(k, product([kv, size]))
    assert not unify(v, product([kv, size]))  # of another size
    assert repr(columns) == "sum(product(2, 4, 4), product(2, 4), 24)"


def test_bloom_columns_are_heads_of_three() -> None:
    """BLOOM: [B, S, heads · 3 · size] → [B, S, heads, 3, size], of which elements 0, 1 and 2 are taken."""
    columns, heads, three, size = leaf(96), leaf(8), leaf(3), leaf(4)
    assert unify_products([columns], [heads, three, size])
    assert unify(three, concatenation([leaf(1), leaf(1), leaf(1)]))
    assert list(map(repr, factors(columns))) == ["8", "sum(1, 1, 1)", "4"]
    assert [found for found in leaves(columns) if found.size > 1] == [heads, size]


def test_falcon_columns_are_key_heads_of_a_group_and_two() -> None:
    """Falcon: [B, S, kv, group + 2, size]: per key head its queries, then one key and one value."""
    columns, kv, size = leaf(96), leaf(4), leaf(4)
    six, group = leaf(6), leaf(4)
    assert unify_products([columns], [kv, six, size])
    assert unify(six, concatenation([group, leaf(1), leaf(1)]))
    assert list(map(repr, factors(columns))) == ["4", "sum(4, 1, 1)", "4"]
    assert unify_products([kv, group, size], [leaf(16), leaf(4)])  # the heads, merged for the output projection


def test_a_leaf_that_two_reshapes_split_differently_has_the_common_factors() -> None:
    columns = leaf(24)
    assert unify(columns, product([leaf(4), leaf(6)]))
    assert unify(columns, product([leaf(2), leaf(12)]))
    assert [found.size for found in factors(columns)] == [2, 2, 6]


def test_factors_without_a_common_divisor_do_not_agree() -> None:
    columns = leaf(24)
    assert unify(columns, product([leaf(4), leaf(6)]))
    assert not unify(columns, product([leaf(3), leaf(8)]))
    assert repr(columns) == "product(4, 6)"


def test_what_two_groupings_begin_or_end_with_is_one_even_where_the_rest_is_not() -> None:
    """32 heads of 80 and 80 blocks of 32: a cut of 16 falls between both."""
    heads, count = product([leaf(32), leaf(80)]), product([leaf(80), leaf(32)])
    assert not unify(heads, count)
    assert repr(heads) == "product(product(16, 2), 80)" and repr(count) == "product(product(16, 5), 32)"
    assert [list(map(repr, side)) for side in differing_factors(heads, count)] == [["2", "80"], ["5", "32"]]
    assert differing_factors(product([leaf(4), end := leaf(6)]), product([leaf(3), end]))[0][1] is end


def test_a_sum_and_a_product_do_not_agree() -> None:
    a, b = concatenation([leaf(4), leaf(8)]), product([leaf(3), leaf(4)])
    assert not unify(a, b) and not identical(a, b)
    assert repr(a) == "sum(4, 8)" and repr(b) == "product(3, 4)"


def test_sums_that_end_at_different_places_share_the_pieces() -> None:
    a, b = concatenation([leaf(4), leaf(8)]), concatenation([leaf(6), leaf(6)])
    assert unify(a, b) and identical(a, b)
    assert [found.size for found in segments(a)] == [4, 2, 6]


def test_sizes_that_differ_in_one_sample_are_not_one() -> None:
    a, b = Dim((5, 11)), Dim((5, 13))
    assert not unify(a, b) and root(a) is not root(b)


def test_a_dynamic_size_is_no_static_one() -> None:
    batch, heads = Dim((5, 11)), leaf(6)
    flat = Dim((30, 66))
    assert unify(flat, product([batch, heads]))
    assert not batch.static and heads.static
    assert repr(flat) == "product(~5/11, 6)"


def test_a_dim_that_is_turned_around_holds_one_leaf_twice() -> None:
    """[4, 2] → [2, 4] with the same 4 on both sides: no cut would be the same on both, which the analysis sees."""
    heads, two = leaf(4), leaf(2)
    assert unify_products([heads, two], [two, heads])
    assert factors(heads) == [root(two), root(two)]


def test_units_vanish() -> None:
    assert product([leaf(1), found := leaf(6), leaf(1)]) is found
    assert product([leaf(1), leaf(1)]).unit
    assert factors(product([leaf(2), concatenation([leaf(1)]), leaf(3)]))[1].size == 3
    assert identical(leaf(1), leaf(1))


@given(trees())
def test_unifying_a_leaf_with_a_tree_makes_it_that_tree(tree: Dim) -> None:
    flat = leaf(tree.size)
    assert unify(flat, tree)
    assert root(flat) is root(tree) and identical(flat, tree)


@given(trees(60), trees(60))
def test_what_agrees_is_identical_and_what_does_not_is_not_linked(a: Dim, b: Dim) -> None:
    one, other = root(a), root(b)
    agreed = unify(a, b)
    assert agreed == identical(a, b)
    if not agreed:
        assert root(a) is not root(b)
    for dim, was in ((a, one), (b, other)):
        assert dim.sizes == was.sizes == root(dim).sizes
        assert_sizes_add_up(dim)


@given(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.data())
def test_row_major_lists_of_one_size_agree_where_their_edges_nest(sizes: list[int], data: st.DataObject) -> None:
    """Any grouping of the same factors is one dim: what Reshape does to [2, 3, 4] → [6, 4] → [2, 12]."""
    splits = data.draw(st.sets(st.integers(1, len(sizes) - 1)) if len(sizes) > 1 else st.just(set[int]()))
    parts = [leaf(size) for size in sizes]
    edges = [0, *sorted(splits), len(sizes)]
    groups = [leaf(product(parts[a:b]).size) for a, b in itertools.pairwise(edges)]
    assert unify_products(groups, parts)
    assert identical(product(groups), product(parts))
    assert list(leaves(product(groups))) == list(leaves(product(parts)))


def assert_sizes_add_up(dim: Dim) -> None:
    top = root(dim)
    if top.kind in ("leaf", "blocks"):
        return
    sizes = [part.size for part in top.parts]
    expected = sum(sizes)
    if top.kind == "product":
        expected = 1
        for size in sizes:
            expected *= size
    assert top.size == expected
    for part in top.parts:
        assert_sizes_add_up(part)


@pytest.mark.parametrize(
    "dim, text",
    [
        (leaf(4096), "4096"),
        (Dim((5, 11)), "~5/11"),
        (product([leaf(4), concatenation([leaf(2), leaf(1)])]), "product(4, sum(2, 1))"),
        (product([leaf(4), blocks(leaf(50), 16)]), "product(4, blocks(50 / 16))"),
    ],
    ids=str,
)
def test_a_dim_prints_short(dim: Dim, text: str) -> None:
    assert repr(dim) == text
