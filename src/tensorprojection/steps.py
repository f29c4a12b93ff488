"""One step of a plan: a group of neighbouring modes, all at once.

A step maps (L, …) tensors: it shrinks X along its modes, grows Z, or pairs the two, which gives
the derivatives of <shrunk X, Z> by its matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from . import products
from .compiled.maps import Tiles, run_maps
from .plan import Group, Plan, tile_order


Wish = Tensor | bool  # where to put it, or whether it is wanted at all


class Paired(NamedTuple):
    grown: Tensor | None
    shrunk: Tensor | None
    derivatives: list[Tensor]  # one a mode of the group


class Step(Protocol):
    """Results go to ``out`` where that is given."""

    def shrink(self, x: Tensor, out: Tensor | None = None) -> Tensor: ...

    def grow(self, z: Tensor, out: Tensor | None = None) -> Tensor: ...

    def pair(self, x: Tensor, z: Tensor, *, grown: Wish, shrunk: Wish) -> Paired:
        """The derivatives; and z grown, x shrunk, where that is wished for."""
        ...


def make_step(group: Group, As: Sequence[Tensor | None], plan: Plan) -> Step:
    matrices = [A for A in (As[k] for k in group) if A is not None]
    return _Tiled(group, matrices) if plan.is_tiled(group) else _Product(group, matrices)


def resized(x: Tensor, group: Group, sizes: Sequence[int]) -> list[int]:
    """The shape of x with the axes of the group of these sizes."""
    shape = list(x.shape)
    shape[group[0] : group[-1] + 1] = sizes
    return shape


class _Tiled:
    """By the compiled kernel."""

    def __init__(self, group: Group, matrices: list[Tensor]) -> None:
        self.group, self.matrices = group, matrices
        self.p = tuple(A.shape[0] for A in matrices)
        self.q = tuple(A.shape[1] for A in matrices)

    def _tiles(self, x: Tensor) -> Tiles:
        left, right = prod(x.shape[: self.group[0]]), prod(x.shape[self.group[-1] + 1 :])
        return Tiles(left, self.p, self.q, right, tile_order(self.p, self.q))

    def shrink(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = x.new_empty(resized(x, self.group, self.q))
        run_maps(self._tiles(x), self.matrices, x, shrunk=out)
        return out

    def grow(self, z: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = z.new_empty(resized(z, self.group, self.p))
        run_maps(self._tiles(z), self.matrices, Z=z, grown=out)
        return out

    def pair(self, x: Tensor, z: Tensor, *, grown: Wish, shrunk: Wish) -> Paired:
        sizes = [A.numel() for A in self.matrices]
        flat = x.new_empty(sum(sizes))
        larger = x.new_empty(x.shape) if grown is True else _given(grown)
        smaller = x.new_empty(z.shape) if shrunk is True else _given(shrunk)
        run_maps(
            self._tiles(x), self.matrices, x, z, grown=larger, shrunk=smaller, derivatives=flat
        )
        parts = zip(flat.split(sizes), self.matrices, strict=True)
        return Paired(larger, smaller, [part.view(A.shape) for part, A in parts])


class _Product:
    """By one product with the Kronecker product of the modes' matrices."""

    def __init__(self, group: Group, matrices: list[Tensor]) -> None:
        self.group, self.matrices = group, matrices
        self.p = [A.shape[0] for A in matrices]
        self.q = [A.shape[1] for A in matrices]
        self.A = _kron_all(matrices)

    def shrink(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self._multiply(x, self.A, self.q, out)

    def grow(self, z: Tensor, out: Tensor | None = None) -> Tensor:
        return self._multiply(z, self.A.mT, self.p, out)

    def pair(self, x: Tensor, z: Tensor, *, grown: Wish, shrunk: Wish) -> Paired:
        total = products.contract(self._flat(x), self._flat(z))
        return Paired(
            None if grown is False else self.grow(z, _given(grown)),
            None if shrunk is False else self.shrink(x, _given(shrunk)),
            list(_factors(total, self.matrices)),
        )

    def _multiply(self, x: Tensor, A: Tensor, sizes: Sequence[int], out: Tensor | None) -> Tensor:
        shape = resized(x, self.group, sizes)
        flat = self._flat(x)
        place = None if out is None else out.view(flat.shape[0], -1, flat.shape[2])
        return products.multiply(flat, A, out=place).view(shape)

    def _flat(self, x: Tensor) -> Tensor:
        first, end = self.group[0], self.group[-1] + 1
        left, right = prod(x.shape[:first]), prod(x.shape[end:])
        return x.reshape(left, prod(x.shape[first:end]), right)


def _given(wish: Wish) -> Tensor | None:
    return wish if isinstance(wish, Tensor) else None


def _kron_all(matrices: Sequence[Tensor]) -> Tensor:
    first, *others = matrices
    for A in others:
        first = _kron(first, A)
    return first


def _kron(A: Tensor, B: Tensor) -> Tensor:
    # torch.kron refuses matrices that are strided or expanded, and takes three times as long.
    blocks = torch.outer(A.reshape(-1), B.reshape(-1)).view(*A.shape, *B.shape)
    return blocks.transpose(1, 2).reshape(A.shape[0] * B.shape[0], -1)


def _factors(total: Tensor, matrices: list[Tensor]) -> Iterator[Tensor]:
    """From the derivative by A ⊗ B, those by A and by B; B may be such a product itself."""
    A, *rest = matrices
    while rest:
        B = _kron_all(rest)
        # One row an entry of A, one column an entry of B.
        blocks = total.reshape(A.shape[0], B.shape[0], A.shape[1], B.shape[1])
        blocks = blocks.transpose(1, 2).reshape(A.numel(), B.numel())
        yield (blocks @ B.reshape(-1)).view(A.shape)
        total = (A.reshape(-1) @ blocks).view(B.shape)
        A, *rest = rest
    yield total
