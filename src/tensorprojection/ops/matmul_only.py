"""W to U with matrix products only, for accelerators: no decomposition, no synchronization.

Note [Nothing synchronizes]
    A GPU runs behind the host: the host queues work and goes on. A decomposition, a comparison or a
    copy to the host waits until the queue is empty, and cannot be part of a CUDA graph. So no value
    is looked at here: the number of steps and their coefficients are fixed, whatever W is.

Note [How exact]
    Everything is float64, whatever W's type, so TF32 changes nothing. The steps are made for a
    ratio of the roots of M's eigenvalues, smallest to largest, down to `SMALLEST`. A float32 W of
    lower rank has such ratios down to about 1e-9 for a q of 20, by rounding alone, and 2e-11 for a
    q of 64: U is then exact to 3e-6 and its gradient to 2e-4. If the ratio is smaller because W has
    exactly dependent columns and ε is that small, U is still exact, since W vanishes there. For a W
    of type float64 the range does not suffice: its U is computed on the host.

Note [Polar Express]
    x -> a x + b x³ + c x⁵ is applied to singular values with products of matrices. Amsel et al.
    (arXiv 2505.16932) show: of all compositions of odd quintics the best is the greedy one, where
    each is the best approximation of 1 on the interval that the ones before left. `QUINTICS` are
    these for what the first step leaves, from ``benchmarks/quintics.py``. The last are Newton's,
    for which 1 is a fixed point where two derivatives vanish.

Note [A rational step first]
    x -> x (1 + GAIN / (1 + STEEP x²)) takes small numbers up by the factor GAIN and none above
    1 + GAIN / STEEP, where a quintic gives a factor of 4. It costs one inverse, which does not
    synchronize. The inverse loses 1e-16 STEEP of the smallest numbers, so STEEP is not larger.

Note [A taller W]
    ``WᵀW + ε²I`` is the Gram matrix of W with the rows ``ε I`` below it. So ε needs no case of its
    own: all products are with that taller matrix, and U is the upper part of its polar factor.

Note [The Gram matrix formed again]
    T is a polynomial of ``R = WᵀW + ε²I`` in units where its norm is 1, and grows to ``R^(-1/2)``.
    WᵀW has lost what is smaller than 1e-16 of its largest eigenvalue, the square of 1e-8 of W's
    largest singular value. After some steps W·T is well-conditioned, so its own Gram matrix has
    lost nothing, and the steps go on from that. Without this, a negative eigenvalue that is only
    rounding would grow and diverge.

Note [Padding is exact]
    The polar factor of W with rows and columns of zeros added is U with zeros added: a column of
    zeros is a direction of its own, whose root is ε. So small W's of different sizes are padded and
    stacked, and all modes of a layer take as many launches as one. The mean over the columns in a
    relative ε counts the real ones. Large W's are stacked with those of equal shape only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST = 1.1e-11  # the smallest number that the steps take to 1, up to float64's rounding
STEEP, GAIN = 1e10, 2e5
QUINTICS = (
    (8.513609107527502, -25.276058180026226, 18.760575612908617),
    (4.256984084555017, -3.1601032697009863, 0.5864695774798425),
    (4.256440082288184, -3.1597269971903086, 0.5864266570663228),
    (4.254126108151476, -3.1581263433037816, 0.5862440751447222),
    (4.244309958393949, -3.1513337105389576, 0.5854692675639876),
    (4.203143005507456, -3.1228027708846553, 0.5822150183808629),
    (4.038531724538761, -3.0079770590217154, 0.569121358352216),
    (3.4915453408120607, -2.616387261814752, 0.5245536359734332),
    (2.4738504603827662, -1.8204059936236408, 0.43531200132012027),
    (1.9148894190663714, -1.2936418493782498, 0.37939025498439244),
    (1.8750208997882782, -1.2500232217904417, 0.37500232218622614),
    (1.875, -1.25, 0.375),
)
NEWTON = (15 / 8, -10 / 8, 3 / 8)
_FORM_AGAIN_AFTER = (6,)

# See Note [Steps that do not overshoot].
_PLAIN_STEPS = ((2.7, -2.65, 0.95),) * 23 + (NEWTON,) * 5  # from 1e-10 on
_PLAIN_FORM_AGAIN_AFTER = (8, 16)

# Four shifts for H's eigenvalues in [SMALLEST_ROOT, 1], the best there are (Wachspress, 1963), and
# how often the terms are doubled: see `lyapunov`. From benchmarks/quintics.py as well.
SMALLEST_ROOT = 1e-10
SHIFTS = (
    0.09436315846342179,
    1.059735617463072e-09,
    0.00021147425032377068,
    4.7287080978841773e-07,
)
_DOUBLINGS = 6

# Entries, and columns, up to which W's of different shapes are stacked.
_SMALL, _FEW_COLUMNS = 128 * 64, 64


class Roots(NamedTuple):
    """The roots of M, all in float64, in units in which the norm of M is 1."""

    T: Tensor  # G times the root of M's norm
    H: Tensor  # M^(1/2) divided by the root of M's norm
    norm: Tensor  # of M, (..., 1, 1): not finite if W is not; 0 if M is 0


class Stack(NamedTuple):
    """The W's, by number, that are stacked, and the size to which they are padded."""

    members: tuple[int, ...]
    p: int
    q: int


def stacks(shapes: Sequence[tuple[int, ...]]) -> list[Stack]:
    """Return one stack of all small W's, others by equal shape; batches of W's stay as they are."""
    if any(len(shape) > 2 for shape in shapes):
        return [Stack((k,), *shape[-2:]) for k, shape in enumerate(shapes)]
    small = [k for k, (p, q) in enumerate(shapes) if p * q <= _SMALL and q <= _FEW_COLUMNS]
    # The stack's size counts, not its members': a tall and a wide W may each be small.
    P, Q = (max([0, *[shapes[k][i] for k in small]]) for i in (0, 1))
    together = P * Q <= _SMALL
    found: dict[object, list[int]] = {}
    for k, shape in enumerate(shapes):
        found.setdefault("small" if together and k in small else shape, []).append(k)
    return [
        Stack(tuple(ks), max([shapes[k][0] for k in ks]), max([shapes[k][1] for k in ks]))
        for ks in found.values()
    ]


def polar_values(
    Ws: Sequence[Tensor], eps: Sequence[float], relative: bool, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Return the U's, then U, T, H and M's norm in float64 for each stack."""
    shapes = [tuple(W.shape) for W in Ws]
    Us: dict[int, Tensor] = {}
    saved: list[Tensor] = []
    for stack in stacks(shapes):
        tall = _stacked([Ws[k] for k in stack.members], stack, stack.p + stack.q)
        _fill_eps(tall, stack, shapes, eps, relative)
        R = tall.mT @ tall
        norm = torch.linalg.vector_norm(R, dim=(-2, -1), keepdim=True)
        tall = tall / norm.sqrt()
        T = _inverse_root(R / norm, tall)
        polar = tall @ T
        saved += [polar[:, : stack.p], T, polar.mT @ tall, norm]
        for row, k in enumerate(stack.members):
            U = polar[_member(stack, shapes[k], row)].reshape(shapes[k])
            Us[k] = U.to(dtype, copy=True)  # a tensor of its own, even if dtype is float64
    return (*(Us[k] for k in range(len(Ws))), *saved)


def polar_gradients(
    Ws: Sequence[Tensor],
    grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    eps: Sequence[float],
    relative: bool,
) -> list[Tensor]:
    """Return dL/dW for each dL/dU, from what `polar_values` returned after the U's.

    Note [The gradient without an eigenbasis]
        With ``Y = UᵀD`` for ``D = dL/dU``, ``dL/dW = (D - U Q) G`` where Q solves
        ``H Q + Q H = H Y + YᵀH``: the corrected Eq. 11 with ``W = U H`` put in. Nothing in it is
        larger than D but G itself, whereas terms such as ``G (WᵀD) G`` lose all digits if W is
        large and ill-conditioned. A relative ε depends on W too, which adds ``-ε²/q tr(G Q G) W``.
    """
    shapes = [tuple(W.shape) for W in Ws]
    result: dict[int, Tensor] = {}
    for i, stack in enumerate(stacks(shapes)):
        U, T, H, norm = saved[4 * i : 4 * i + 4]
        D = _stacked([grads[k] for k in stack.members], stack, stack.p)
        C = H @ (U.mT @ D)
        Q = lyapunov(C + C.mT, H)
        grad = torch.baddbmm(D, U, Q, alpha=-1) @ T
        if relative:
            weights = [eps[k] ** 2 / shapes[k][-1] for k in stack.members]
            trace = (T @ Q @ T).diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
            grad = grad - _per_member(weights, D)[:, :, None] * trace * (U @ H)
        grad = grad / norm.sqrt()
        for row, k in enumerate(stack.members):
            member = grad[_member(stack, shapes[k], row)].reshape(shapes[k])
            result[k] = member.to(Ws[k].dtype, copy=True)
    return [result[k] for k in range(len(Ws))]


def roots_of(k: int, Ws: Sequence[Tensor], saved: Sequence[Tensor]) -> Roots:
    """Return the roots that belong to the W of that number."""
    shapes = [tuple(W.shape) for W in Ws]
    i, stack = next((i, s) for i, s in enumerate(stacks(shapes)) if k in s.members)
    row, q, batch = stack.members.index(k), shapes[k][-1], shapes[k][:-2]
    _, T, H, norm = saved[4 * i : 4 * i + 4]
    if len(stack.members) > 1:
        return Roots(T[row, :q, :q], H[row, :q, :q], norm[row])
    return Roots(*(t.reshape(*batch, *t.shape[-2:]) for t in (T, H, norm)))


def polar_plain(W: Tensor, eps: float, relative: bool, dtype: torch.dtype) -> Tensor:
    """Return U as a chain of ordinary operations, for tracers that look into each of them.

    See Note [Three strategies] in tracing.py. It is differentiable as it stands, and its
    derivatives up to the third agree with the closed form to 1e-10 for conditions up to 10⁶.

    Note [Steps that do not overshoot]
        The quintics of `QUINTICS` throw large singular values up and down before these settle, and
        derivatives through that lose digits: 1e-4 of the second and all of the third. The slope of
        the quintics here is 2.7 at 0 and -0.5 at 1, so that what is near 1 stays there. They take
        more steps, and lose nothing.
    """
    p, q = W.shape[-2:]
    A = W.reshape(-1, p, q).to(torch.float64)
    unit = (A.square().sum((-2, -1), keepdim=True) / q).sqrt() if relative else 1.0
    below = (eps * unit * torch.eye(q, dtype=A.dtype, device=A.device)).expand(A.shape[0], q, q)
    tall = torch.cat([A, below], -2)
    R = tall.mT @ tall
    norm = R.square().sum((-2, -1), keepdim=True).sqrt()
    scale = norm.rsqrt()
    eye = torch.eye(q, dtype=A.dtype, device=A.device).expand_as(R)
    T = _iterated(eye, R / norm, tall * scale, _PLAIN_STEPS, _PLAIN_FORM_AGAIN_AFTER)
    U = (A * scale) @ T
    result: Tensor = U.reshape(W.shape).to(dtype)
    return result


def lyapunov(C: Tensor, H: Tensor) -> Tensor:
    """Return the X with H X + X H = C, for symmetric H with eigenvalues in [SMALLEST_ROOT, 1].

    Note [Shifts and doublings]
        For any p > 0, X solves ``X = K X K + 2p (H + p)⁻¹ C (H + p)⁻¹`` with the contraction
        ``K = (H - p)(H + p)⁻¹``. Four such shifts, one after the other, give ``X = K X K + X₁``
        with the product of four contractions as K. The sum ``X₁ + K X₁ K + K² X₁ K² + …`` doubles
        its terms at every step.
    """
    # Nothing in place: torch.func maps this as it stands. The L's are scaled so that the terms have
    # one factor in common, 2 / SHIFTS[0]: their sum is one launch, and the factor costs none.
    eye, first = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device), SHIFTS[0]
    inverses, _ = torch.linalg.inv_ex(torch.stack([torch.add(eye, H, alpha=1 / p) for p in SHIFTS]))
    Ls = [inverses[0]]
    K = torch.sub(eye, inverses[0], alpha=2)
    for p, inverse in zip(SHIFTS[1:], inverses[1:], strict=True):
        ratio = (p / first) ** 0.5
        L = torch.baddbmm(K, inverse, K, beta=0, alpha=1 / ratio)
        K = torch.sub(K, L, alpha=2 * ratio)
        Ls.append(L)
    stacked = torch.stack(Ls)
    X = (stacked @ C @ stacked.mT).sum(0)
    X = torch.baddbmm(X, K @ X, K.mT, beta=2 / first, alpha=2 / first)
    for _ in range(_DOUBLINGS - 1):
        K = K @ K
        X = torch.baddbmm(X, K @ X, K.mT)
    return X


def _inverse_root(R: Tensor, tall: Tensor) -> Tensor:
    """Return ``R^(-1/2)`` of ``R = tallᵀ tall``, whose norm is at most 1."""
    eye = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
    inverse, _ = torch.linalg.inv_ex(torch.add(eye, R, alpha=STEEP))
    T = torch.add(eye, inverse, alpha=GAIN)  # see Note [A rational step first]
    product = tall @ T
    return _iterated(T, product.mT @ product, tall, QUINTICS, _FORM_AGAIN_AFTER)


def _iterated(
    T: Tensor,
    R: Tensor,
    tall: Tensor,
    steps: Sequence[tuple[float, float, float]],
    form_again_after: Sequence[int],
) -> Tensor:
    """Return T times all steps of ``R = Tᵀ tallᵀ tall T``."""
    for k, (a, b, c) in enumerate(steps, start=1):
        B = torch.baddbmm(R, R, R, beta=b, alpha=c)
        T = torch.baddbmm(T, T, B, beta=a)
        if k in form_again_after:  # see Note [The Gram matrix formed again]
            product = tall @ T
            R = product.mT @ product
        elif k < len(steps):
            R = torch.baddbmm(R, R, B, beta=a)
            R = torch.baddbmm(R, R, B, beta=a)
    return T


def _stacked(matrices: Sequence[Tensor], stack: Stack, rows: int) -> Tensor:
    """Return the matrices in float64 as one batch, padded with zeros."""
    first = matrices[0]
    count = prod(first.shape[:-2]) if len(matrices) == 1 else len(matrices)
    result = torch.zeros((count, rows, stack.q), dtype=torch.float64, device=first.device)
    if len(matrices) == 1:
        result[:, : first.shape[-2]].copy_(first.reshape(-1, *first.shape[-2:]))
        return result
    for place, A in zip(result, matrices, strict=True):
        place[: A.shape[0], : A.shape[1]].copy_(A)
    return result


def _member(stack: Stack, shape: tuple[int, ...], row: int) -> tuple[int | slice, ...]:
    """Return the index of one W, or of a batch of W's, in its stack."""
    batch = row if len(stack.members) > 1 else slice(None)
    return batch, slice(shape[-2]), slice(shape[-1])


def _fill_eps(
    tall: Tensor,
    stack: Stack,
    shapes: Sequence[tuple[int, ...]],
    eps: Sequence[float],
    relative: bool,
) -> None:
    """Write ε below the W's: see Note [A taller W]."""
    diagonal = tall[:, stack.p :].diagonal(dim1=-2, dim2=-1)
    values = [eps[k] for k in stack.members]
    if relative:
        # The root of tr(WᵀW)/q, counting the columns that are not padding.
        values = [eps[k] / shapes[k][-1] ** 0.5 for k in stack.members]
        total = torch.linalg.vector_norm(tall, dim=(-2, -1))[:, None]
        diagonal.copy_(total * _per_member(values, tall))
    elif len(set(values)) == 1:
        diagonal.fill_(values[0])
    else:
        diagonal.copy_(_per_member(values, tall))


def _per_member(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Return the numbers as a tensor (b, 1), made on the device: a copy would synchronize."""
    if len(set(numbers)) == 1:
        return like.new_empty((like.shape[0], 1)).fill_(numbers[0])
    result = like.new_empty((len(numbers), 1))
    for place, number in zip(result, numbers, strict=True):
        place.fill_(number)
    return result
