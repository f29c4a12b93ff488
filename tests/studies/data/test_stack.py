"""Several arrays as one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tensorprojection.studies.data.stack import Stack


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.data())
def test_rows_are_those_of_the_concatenation(lengths, data):
    numbers = iter(range(10_000))
    arrays = [
        np.array([[next(numbers) for _ in range(6)] for _ in range(n)], np.int16).reshape(n, 2, 3)
        for n in lengths
    ]
    whole = np.concatenate(arrays)
    stack = Stack(arrays)
    assert len(stack) == len(whole)
    rows = st.lists(st.integers(0, len(whole) - 1), max_size=12) if len(whole) else st.just([])
    rows = np.array(data.draw(rows), np.int64)
    got = stack.take(rows)
    assert got.dtype == np.int16
    assert_array_equal(got, whole[rows])


def test_what_is_taken_is_a_copy():
    first, second = np.zeros((2, 3)), np.ones((2, 3))
    taken = Stack([first, second]).take(np.array([0, 3]))
    taken[:] = 7
    assert first.max() == 0
    assert second.max() == 1


def test_mapped_arrays_stay_on_disk(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    stack = Stack([mapped, mapped])
    assert all(isinstance(array, np.memmap) for array in stack.arrays)
    taken = stack.take(np.array([7, 1]))
    assert not isinstance(taken, np.memmap)
    assert_array_equal(taken, mapped[[3, 1]])


@pytest.mark.parametrize("row", [-1, 5])
def test_a_row_that_is_not_there(row):
    stack = Stack([np.zeros((2, 3)), np.zeros((3, 3))])
    with pytest.raises(IndexError, match=f"Expected rows from 0 to 4, got {row}"):
        stack.take(np.array([0, row]))


@pytest.mark.parametrize(
    "other", [np.zeros((2, 4)), np.zeros((2, 3), np.float32), np.zeros((2, 3, 1))]
)
def test_arrays_that_do_not_fit(other):
    with pytest.raises(ValueError, match="Expected arrays with rows of one shape and type"):
        Stack([np.zeros((2, 3)), other])
