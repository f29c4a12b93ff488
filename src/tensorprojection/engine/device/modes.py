"""All W's of a layer at once: their U's and their gradients in as few launches as one W's.

Note [Padding is exact]
    The polar factor of W with columns and rows of zeros added is U with zeros added: a column of
    zeros is a direction of its own, whose root is ε. So small W's of different sizes are stacked,
    filled up with zeros. What is a mean over the columns, the relative ε, counts the real ones.
    Large W's are stacked with those of equal shape only: their products cost more than launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .factors import Factors, factors, mean_singular_value
from .polar import gradient

# Up to this many numbers, and columns, of the stack's largest W.
_SMALL, _FEW_COLUMNS = 128 * 64, 64


class Group(NamedTuple):
    """The W's that are stacked, by number, and the size to which they are filled up."""

    members: tuple[int, ...]
    p: int
    q: int


def groups(shapes: Sequence[tuple[int, int]]) -> list[Group]:
    """Stacks for W's of these shapes (p, q): one of all small W's, others by equal shape."""
    small = [k for k, (p, q) in enumerate(shapes) if p * q <= _SMALL and q <= _FEW_COLUMNS]
    stacks: dict[object, list[int]] = {}
    # The stack's size counts, not its members': a tall and a wide W may be small, each alone.
    P, Q = (max((shapes[k][i] for k in small), default=0) for i in (0, 1))
    together = P * Q <= _SMALL
    for k, shape in enumerate(shapes):
        stacks.setdefault("small" if together and k in small else tuple(shape), []).append(k)
    return [
        Group(tuple(ks), max(shapes[k][0] for k in ks), max(shapes[k][1] for k in ks))
        for ks in stacks.values()
    ]


def modes_values(
    Ws: Sequence[Tensor], eps: Sequence[float], relative: bool, dtype: torch.dtype
) -> tuple[list[Tensor], list[Factors]]:
    """The U's, and per group of W's what the gradients need; W's are matrices (p, q)."""
    shapes = [_shape(W) for W in Ws]
    Us: list[Tensor | None] = [None] * len(Ws)
    found = []
    for group in groups(shapes):
        tall = _stacked([Ws[k] for k in group.members], group, group.p + group.q)
        _put_eps(tall, group, shapes, eps, relative)
        found.append(factors(tall, group.p))
        for row, k in enumerate(group.members):
            p, q = shapes[k]
            # Always a tensor of its own, also where the type is float64 already.
            Us[k] = found[-1].U[row, :p, :q].to(dtype, copy=True).contiguous()
    return [U for U in Us if U is not None], found


def modes_gradients(
    grad_Us: Sequence[Tensor],
    found: Sequence[Factors],
    eps: Sequence[float],
    relative: bool,
    dtypes: Sequence[torch.dtype],
) -> list[Tensor]:
    """dL/dW by mode, in W's types, from dL/dU by mode."""
    shapes = [_shape(D) for D in grad_Us]
    result: list[Tensor | None] = [None] * len(grad_Us)
    for group, known in zip(groups(shapes), found, strict=True):
        D = _stacked([grad_Us[k] for k in group.members], group, group.p)
        weights = [eps[k] ** 2 / shapes[k][1] for k in group.members]
        weight = _by_row(weights, D)[:, :, None] if relative else None
        grads = gradient(D, known, weight)
        for row, k in enumerate(group.members):
            p, q = shapes[k]
            result[k] = grads[row, :p, :q].to(dtypes[k], copy=True).contiguous()
    return [g for g in result if g is not None]


def in_stacks(shapes: Sequence[tuple[int, int]], names: Sequence[str]) -> list[str]:
    """The names of W's of these shapes in the order of the stacks' rows, so of their norms."""
    return [names[k] for group in groups(shapes) for k in group.members]


def _shape(W: Tensor) -> tuple[int, int]:
    p, q = W.shape
    return p, q


def _stacked(matrices: Sequence[Tensor], group: Group, rows: int) -> Tensor:
    """The matrices in float64 as one batch, padded with zeros."""
    first = matrices[0]
    stack = torch.zeros((len(matrices), rows, group.q), dtype=torch.float64, device=first.device)
    for place, A in zip(stack, matrices, strict=True):
        place[: A.shape[0], : A.shape[1]].copy_(A)
    return stack


def _put_eps(
    tall: Tensor,
    group: Group,
    shapes: Sequence[tuple[int, int]],
    eps: Sequence[float],
    relative: bool,
) -> None:
    diagonal = tall[:, group.p :].diagonal(dim1=-2, dim2=-1)
    of_members = [eps[k] for k in group.members]
    if relative:
        by_member = [eps[k] / shapes[k][1] ** 0.5 for k in group.members]
        diagonal.copy_(mean_singular_value(tall, 1) * _by_row(by_member, tall))
    elif len(set(of_members)) == 1:
        diagonal.fill_(of_members[0])
    else:
        diagonal.copy_(_by_row(of_members, tall))


def _by_row(numbers: Sequence[float], like: Tensor) -> Tensor:
    """The numbers as a tensor (b, 1), made on the device: a copy from the host would wait."""
    result = like.new_empty((len(numbers), 1))
    if len(set(numbers)) == 1:
        return result.fill_(numbers[0])
    for place, number in zip(result, numbers, strict=True):
        place.fill_(number)
    return result
