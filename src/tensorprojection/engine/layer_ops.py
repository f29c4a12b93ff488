"""A whole layer as two operators, forward and backward, opaque to compilers, for every engine.

What comes out has shapes that depend on those of the W's alone, so a compiler can plan for it. The
kernels may refuse a W at run time, and torch computes it instead: it is packed in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .device.engine import DeviceEngine
from .device.flag import DeviceFlag
from .device.modes import groups
from .dispatch import by_products, engine
from .interface import LayerOptions, SavedForBackward
from .layout import Matrices, inverse, memory_order
from .operators import WAITS, opaque
from .packed import packed_sizes
from .per_weights import PerWeights
from .torch_engine import TorchEngine


def run_layer(
    x: Tensor, Ws: Matrices, transposed: bool, eps: Sequence[float], relative: bool
) -> list[Tensor]:
    """z, and what the backward pass needs besides x and the W's."""
    run = _device_op if by_products(*Ws) else _host_op
    found: list[Tensor] = run(x, list(Ws), transposed, list(eps), relative)
    return found


def run_layer_grad(
    x: Tensor,
    grad: Tensor,
    Ws: Matrices,
    saved: Sequence[Tensor],
    transposed: bool,
    eps: Sequence[float],
    relative: bool,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """dL/dx and dL/dW by mode, where they are wanted."""
    run = _device_grad_op if by_products(*Ws) else _host_grad_op
    found = iter(run(x, grad, list(Ws), list(saved), transposed, list(eps), relative, list(wanted)))
    there = [wanted[0], *(w and W is not None for w, W in zip(wanted[1:], Ws, strict=True))]
    return [next(found) if is_there else None for is_there in there]


def _values(
    used: TorchEngine,
    flag: DeviceFlag | None,
    x: Tensor,
    Ws: list[Tensor | None],
    transposed: bool,
    eps: list[float],
    relative: bool,
) -> list[Tensor]:
    options = _options(transposed, tuple(eps), relative)
    if flag is not None:
        options = options._replace(flag=flag)
    z, saved = used.forward(x, Ws, options)
    return [z, *saved.tensors]


def _gradients(
    used: TorchEngine,
    x: Tensor,
    grad: Tensor,
    Ws: list[Tensor | None],
    saved: list[Tensor],
    transposed: bool,
    eps: list[float],
    relative: bool,
    wanted: list[bool],
) -> list[Tensor]:
    known = SavedForBackward(tuple(saved), used.layout_of_layer(x, Ws))
    options = _options(transposed, tuple(eps), relative)
    found = used.backward(x, grad, Ws, known, options, wanted)
    return [g for g in found if g is not None]


def _layer(*args: Any) -> list[Tensor]:
    return _values(_host_engine(), None, *args)


def _layer_grad(*args: Any) -> list[Tensor]:
    return _gradients(_host_engine(), *args)


# By W's, since the operator knows no layer: see Note [An operator remembers].
_flags = PerWeights(DeviceFlag)


def _device_layer(x: Tensor, Ws: list[Tensor | None], *rest: Any) -> list[Tensor]:
    flag = _flags.of(Ws)
    flag.check()
    return _values(DeviceEngine(), flag, x, Ws, *rest)


def _device_layer_grad(*args: Any) -> list[Tensor]:
    return _gradients(DeviceEngine(), *args)


def _host_engine() -> TorchEngine:
    used = engine()
    assert isinstance(used, TorchEngine)
    return used


@lru_cache(maxsize=1024)
def _options(transposed: bool, eps: tuple[float, ...], relative: bool) -> LayerOptions:
    names = tuple(f"W{k}" for k in range(1, len(eps) + 1))
    return LayerOptions(transposed, eps, "relative" if relative else "absolute", names)


# What they are for tensors without values.


def _fake_layer(x: Tensor, Ws: list[Tensor | None], transposed: bool, *_: Any) -> list[Tensor]:
    entries, spectra = packed_sizes(Ws)
    packed = x.new_empty(entries), x.new_empty(spectra, dtype=torch.float64)
    return [fake_output(x, Ws, transposed), *packed]


def _fake_device_layer(
    x: Tensor, Ws: list[Tensor | None], transposed: bool, *_: Any
) -> list[Tensor]:
    shapes = [(W.shape[0], W.shape[1]) for W in Ws if W is not None]
    found = [fake_output(x, Ws, transposed), *(x.new_empty(shape) for shape in shapes)]
    for members, p, q in groups(shapes):
        b = len(members)
        tall = x.new_empty((b, p + q, q), dtype=torch.float64)
        found += [tall[:, :p], tall.new_empty((b, q, q)), tall.new_empty((b, q, q))]
        found.append(tall.new_empty((b, 1, 1)))
    return found


def _fake_grad(
    x: Tensor, grad: Tensor, Ws: list[Tensor | None], saved: Any, *rest: Any
) -> list[Tensor]:
    *_, wanted = rest
    found = [_in_order_of(x, x.shape, x.ndim - len(Ws))] if wanted[0] else []
    matrices = zip(Ws, wanted[1:], strict=True)
    return [*found, *(W.new_empty(W.shape) for W, want in matrices if want and W is not None)]


def fake_output(x: Tensor, Ws: Matrices, transposed: bool) -> Tensor:
    b = x.ndim - len(Ws)
    shape = list(x.shape)
    for k, W in enumerate(Ws):
        if W is not None:
            shape[b + k] = W.shape[0 if transposed else 1]
    return _in_order_of(x, shape, b)


def _in_order_of(x: Tensor, shape: Sequence[int], b: int) -> Tensor:
    """A tensor without gaps whose axes lie in the order of those of x."""
    axes = memory_order(x, b)
    return x.new_empty([shape[a] for a in axes]).permute(inverse(axes))


_LAYER = "(Tensor x, Tensor?[] Ws, bool transposed, float[] eps, bool relative) -> Tensor[]"
_LAYER_GRAD = (
    "(Tensor x, Tensor grad, Tensor?[] Ws, Tensor[] saved, bool transposed, float[] eps, "
    "bool relative, bool[] wanted) -> Tensor[]"
)
_host_op = opaque("layer", _LAYER, _layer, _fake_layer, WAITS)
_host_grad_op = opaque("layer_grad", _LAYER_GRAD, _layer_grad, _fake_grad, WAITS)
_device_op = opaque("device_layer", _LAYER, _device_layer, _fake_device_layer)
_device_grad_op = opaque("device_layer_grad", _LAYER_GRAD, _device_layer_grad, _fake_grad)
