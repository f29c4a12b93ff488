"""What is remembered about a layer where only its W's are at hand: inside of an operator.

Note [An operator remembers]
    A compiled graph calls an operator with tensors and numbers, and knows of no layer. So what an
    operator keeps from one call to the next is found by the W's themselves, as objects: it is gone
    when they are, and a W of the same values elsewhere has its own. Nothing that comes out of an
    operator may depend on it but how soon it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .layout import Matrices

Thing = TypeVar("Thing")


class PerWeights(Generic[Thing]):
    """One thing for each first W that there is; all W's of a layer come together."""

    def __init__(self, make: Callable[[], Thing]) -> None:
        self._make = make
        self._things = WeakIdKeyDictionary()

    def of(self, Ws: Matrices) -> Thing:
        """The one that is remembered, or a new one."""
        W: Tensor | None = next((W for W in Ws if W is not None), None)
        if W is None:
            return self._make()
        found: Thing | None = self._things.get(W)
        if found is None:
            self._things[W] = found = self._make()
        return found

    def __len__(self) -> int:
        return len(self._things)
