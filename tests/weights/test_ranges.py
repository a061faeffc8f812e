"""The arithmetic of parts, against numpy."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpcompile.weights.ranges import Part, cut_axes, is_whole, join, local_shape, ranges_of, take, whole

indices = st.lists(st.integers(0, 40), max_size=30).map(lambda found: np.array(found, np.int64))


@st.composite
def shaped_parts(draw: st.DrawFn) -> tuple[tuple[int, ...], Part]:
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=4)))
    axes = []
    for size in shape:
        held = draw(st.none() | st.lists(st.integers(0, size - 1), max_size=size))
        axes.append(None if held is None else ranges_of(np.array(held, np.int64)))
    return shape, Part(tuple(axes))


@given(indices)
def test_ranges_list_the_indices_in_their_order(held: np.ndarray) -> None:
    ranges = ranges_of(held)
    assert [index for start, stop in ranges for index in range(start, stop)] == held.tolist()
    assert all(type(bound) is int for piece in ranges for bound in piece)


@given(indices)
def test_ranges_are_as_few_as_possible(held: np.ndarray) -> None:
    ranges = ranges_of(held)
    assert all(left[1] != right[0] for left, right in itertools.pairwise(ranges))
    assert join(ranges) == ranges


@given(shaped_parts())
def test_the_local_shape_is_the_shape_of_what_is_taken(shaped: tuple[tuple[int, ...], Part]) -> None:
    shape, part = shaped
    array = np.arange(int(np.prod(shape))).reshape(shape)
    assert take(array, part).shape == local_shape(shape, part)


@given(shaped_parts())
def test_a_whole_part_takes_everything_and_only_that_does(shaped: tuple[tuple[int, ...], Part]) -> None:
    shape, part = shaped
    array = np.arange(int(np.prod(shape))).reshape(shape)
    taken = take(array, part)
    assert is_whole(shape, part) == (taken.shape == shape and bool((taken == array).all()))


@given(shaped_parts())
def test_taking_is_slicing_axis_by_axis(shaped: tuple[tuple[int, ...], Part]) -> None:
    shape, part = shaped
    array = np.arange(int(np.prod(shape))).reshape(shape)
    held = [
        np.arange(size) if entry is None else np.array([i for a, b in entry for i in range(a, b)], np.int64)
        for size, entry in zip(shape, part.axes, strict=True)
    ]
    assert np.array_equal(take(array, part), array[np.ix_(*held)] if shape else array)


def test_neighbours_are_joined_so_equal_shares_are_equal() -> None:
    assert Part((((0, 2), (2, 4), (6, 8)), None)) == Part((((0, 4), (6, 8)), None))


def test_a_part_prints_short() -> None:
    assert str(Part((None, ((0, 2), (6, 8)), ()))) == "[:, 0:2+6:8, -]"


def test_spelling_out_the_whole_axis_is_still_whole() -> None:
    assert is_whole((4, 3), Part((((0, 4),), None)))
    assert is_whole((), whole(0))
    assert cut_axes((4, 3), Part((((0, 2), (3, 4)), ((0, 3),)))) == (0,)


@pytest.mark.parametrize("piece", [(2, 2), (3, 1), (-1, 2)])
def test_an_empty_or_negative_range_is_no_range(piece: tuple[int, int]) -> None:
    with pytest.raises(ValueError) as caught:
        Part((None, (piece,)))
    assert str(caught.value) == f"a range goes from 0 or more up to a larger stop, got {piece}"


def test_a_part_must_fit_its_tensor() -> None:
    with pytest.raises(ValueError) as caught:
        local_shape((4, 3), Part((None,)))
    assert str(caught.value) == "a part of 1 axes [:] does not fit a tensor of shape [4, 3]"
    with pytest.raises(ValueError) as caught:
        local_shape((4, 3), Part((None, ((1, 4),))))
    assert str(caught.value) == "part [:, 1:4] reaches past the end of axis 1 of a tensor of shape [4, 3]"
