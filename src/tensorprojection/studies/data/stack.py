"""Several arrays as one: rows are counted through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGE = 4096  # bytes of a row, from which a copy takes longer than a turn of a loop


class Stack:
    """Arrays of one dtype and one shape of row, one below the other; nothing is copied.

    >>> stack = Stack([np.zeros((2, 3)), np.ones((4, 3))])
    >>> len(stack)
    6
    >>> stack.take(np.array([5, 0]))
    array([[1., 1., 1.],
           [0., 0., 0.]])
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        shapes = {(array.shape[1:], array.dtype) for array in arrays}
        if len(shapes) != 1:
            raise ValueError(f"Expected arrays with rows of one shape and type, got {shapes}.")
        self.arrays = list(arrays)
        self.starts = np.cumsum([0, *(len(array) for array in arrays)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """These rows, in this order, in memory."""
        outside = rows[(rows < 0) | (rows >= len(self))]
        if len(outside):
            raise IndexError(f"Expected rows from 0 to {len(self) - 1}, got {outside[0]}.")
        of = np.searchsorted(self.starts, rows, side="right") - 1
        first = self.arrays[0]
        result = np.empty((len(rows), *first.shape[1:]), first.dtype)
        for k, array in enumerate(self.arrays):
            places = np.flatnonzero(of == k)
            found = rows[places] - self.starts[k]
            if result[:1].nbytes < LARGE:
                result[places] = array[found]
            else:  # which copies once and not twice
                for place, row in zip(places.tolist(), found.tolist(), strict=True):
                    result[place] = array[row]
        return result
