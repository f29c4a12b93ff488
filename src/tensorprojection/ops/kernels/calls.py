"""The custom ops on a CPU: with the compiled kernels for plain float32 tensors, else with torch.

The dispatcher has seen to it that tensors are dense and have memory here. Every buffer is created
with its type and device given: the defaults are the user's to set.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Array, c_void_p
from math import prod

import torch
from torch import Tensor

from .. import spectrum, torch_steps
from ..dtypes import HALF
from ..layout import Layout, Matrices, inverse, layout_of, memory_order
from ..limits import MOST_COLUMNS, ONE_THREAD
from ..plan import Group, Plan, Steps, tile_order
from .library import Library, PlanStruct, StepStruct, load

_CHUNK = 2**21  # numbers of the larger tensor, so that results between two steps stay in the cache


def polar(
    Ws: Sequence[Tensor], eps: Sequence[float], relative: bool, dtype: torch.dtype
) -> list[Tensor]:
    """Return the U's, then the spectra."""
    library = load()
    Us, spectra = [], []
    for W, e in zip(Ws, eps, strict=True):
        found = None
        if library is not None and dtype != torch.float64 and _is_small(W):
            found = _polar(library, W, e, relative)
        if found is None:  # W is too wide, not finite, or too ill-conditioned
            found = spectrum.polar_values([W], [e], relative, dtype)
        Us.append(found[0].to(dtype))
        spectra.append(found[1])
    return [*Us, *spectra]


def _polar(library: Library, W: Tensor, eps: float, relative: bool) -> list[Tensor] | None:
    p, q = W.shape
    W = W.contiguous()
    U, packed = _empty(p, q), _empty(2 * q + 1, q, dtype=torch.float64)
    G = packed.data_ptr()
    V, s = G + 8 * q * q, G + 16 * q * q
    failed = library.polar(
        *_threads(library, p * q), W.data_ptr(), p, q, eps, relative, U.data_ptr(), G, V, s
    )
    return None if failed else [U, packed]


def polar_backward(
    Ws: Sequence[Tensor],
    grads: Sequence[Tensor],
    spectra: Sequence[Tensor],
    eps: Sequence[float],
    relative: bool,
) -> list[Tensor]:
    """Return dL/dW for each dL/dU."""
    library = load()
    result = []
    for W, grad, packed, e in zip(Ws, grads, spectra, eps, strict=True):
        p, q = W.shape[-2:]
        if (
            library is None
            or not _is_small(W)
            or packed.shape != (2 * q + 1, q)
            or grad.shape != W.shape
        ):
            result += spectrum.polar_gradients([W], [grad], [packed], [e], relative)
            continue
        W, grad, packed = W.contiguous(), grad.float().contiguous(), packed.contiguous()
        G, dW = packed.data_ptr(), _empty(p, q)
        V, s = G + 8 * q * q, G + 16 * q * q
        given = W.data_ptr(), grad.data_ptr(), G, V, s
        _check(
            library.polar_grad(*_threads(library, p * q), *given, p, q, e, relative, dW.data_ptr())
        )
        result.append(dW)
    return result


def multilinear(x: Tensor, Us: Matrices, transposed: bool) -> Tensor:
    """Return the map of x, or its transpose. Half types are computed in float32."""
    if x.dtype in HALF:
        z = multilinear(_in_float32(x, Us), _floats(Us), transposed)
        # In x's order, which a copy loses if an axis of size 1 grows.
        axes = memory_order(x, x.ndim - len(Us))
        z = z.permute(axes).to(x.dtype, memory_format=torch.contiguous_format)
        return z.permute(inverse(axes))
    library = load()
    layout = None
    if library is not None and _are_float32(x, *Us):
        layout = layout_of(x, Us, transposed=transposed)
    if library is None or layout is None:
        return torch_steps.multilinear(x, Us, transposed)
    return _map(library, x, Us, layout, transposed)


def _map(library: Library, x: Tensor, Us: Matrices, layout: Layout, transposed: bool) -> Tensor:
    x = layout.dense(x, large=not transposed)
    z = layout.empty(x, large=transposed)
    program = layout.program or _compiled(layout)
    held, matrices = _pointers(Us, layout)
    steps = program.grow if transposed else program.shrink
    _check(
        library.map(
            *_threads(library, program.numbers),
            steps,
            matrices,
            transposed,
            x.data_ptr(),
            z.data_ptr(),
        )
    )
    del held
    return z


def multilinear_backward(
    x: Tensor, grad: Tensor, Us: Matrices, transposed: bool, want_x: bool, want_Us: bool
) -> list[Tensor]:
    """Return dL/dx (empty if not wanted), then dL/dU of each U, if these are wanted."""
    if x.dtype in HALF:
        found = multilinear_backward(
            _in_float32(x, Us), _in_float32(grad, Us), _floats(Us), transposed, want_x, want_Us
        )
        dtypes = [x.dtype, *(U.dtype for U in Us if U is not None)]
        return [d.to(dtype) for d, dtype in zip(found, dtypes, strict=False)]
    library = load()
    layout = None
    if library is not None and _are_float32(x, grad, *Us):
        layout = layout_of(x, Us, transposed=transposed)
    if library is None or layout is None:
        return torch_steps.multilinear_backward(x, grad, Us, transposed, want_x, want_Us)
    if not want_Us:
        return [_map(library, grad, Us, layout, not transposed)]
    X, Z = (grad, x) if transposed else (x, grad)
    X, Z = layout.dense(X, large=True), layout.dense(Z, large=False)
    grad_x = layout.empty(x, large=not transposed) if want_x else _empty(0)
    grad_Us = [None if U is None else _empty(*U.shape) for U in Us]
    program = layout.program or _compiled(layout)
    held, matrices = _pointers(Us, layout)
    _, derivatives = _pointers(grad_Us, layout)
    grown = grad_x.data_ptr() if want_x and not transposed else None
    shrunk = grad_x.data_ptr() if want_x and transposed else None
    ends = X.data_ptr(), Z.data_ptr(), grown, shrunk, derivatives
    _check(library.pair(*_threads(library, program.numbers), program.pair, matrices, *ends))
    del held
    return [grad_x, *(g for g in grad_Us if g is not None)]


class Program:
    """The three maps of a plan as steps.c reads them, for a tensor of a certain size."""

    def __init__(self, plan: Plan, rows: int) -> None:
        self.shrink, self.grow, self.pair = (
            _plan_struct(plan, steps, rows) for steps in (plan.shrink, plan.grow, plan.pair)
        )
        self.numbers = rows * prod(plan.large)


def _compiled(layout: Layout) -> Program:
    program = layout.program = Program(layout.plan, layout.rows)
    return program


def _plan_struct(plan: Plan, steps: Steps, rows: int) -> PlanStruct:
    return PlanStruct(
        axes=len(plan.large),
        L=rows,
        chunk=max(_CHUNK // prod(plan.large), 1) if len(steps) > 1 else rows,
        large=plan.large,
        small=plan.small,
        steps=len(steps),
        step=tuple(_step_struct(plan, group) for group in steps),
    )


def _step_struct(plan: Plan, group: Group) -> StepStruct:
    p, q = (tuple(side[k - 1] for k in group) for side in (plan.large, plan.small))
    return StepStruct(first=group[0] - 1, modes=len(group), order=tile_order(p, q))


def _threads(library: Library, numbers: int) -> tuple[int, int]:
    """Return the entry point of torch's threads, and how many of them to use."""
    return library.parallel, 1 if numbers <= ONE_THREAD else torch.get_num_threads()


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


def _pointers(matrices: Matrices, layout: Layout) -> tuple[list[Tensor | None], Array[c_void_p]]:
    """Return pointers by axis, and the tensors they point into, which they do not keep alive."""
    held = [None if A is None else A.contiguous() for A in layout.matrices(matrices)]
    to = [None if A is None else A.data_ptr() for A in held]
    return held, (c_void_p * len(to))(*to)


def _in_float32(x: Tensor, Us: Matrices) -> Tensor:
    """Return x in float32, its axes in the same order in memory."""
    axes = memory_order(x, x.ndim - len(Us))
    copy = x.permute(axes).to(torch.float32, memory_format=torch.contiguous_format)
    return copy.permute(inverse(axes))


def _floats(Us: Matrices) -> list[Tensor | None]:
    return [None if U is None else U.float() for U in Us]


def _are_float32(*tensors: Tensor | None) -> bool:
    return all(x is None or x.dtype is torch.float32 for x in tensors)


def _is_small(W: Tensor) -> bool:
    return W.ndim == 2 and W.dtype is torch.float32 and 1 <= W.shape[1] <= MOST_COLUMNS


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("Not enough memory for the tiles of a projection.")
