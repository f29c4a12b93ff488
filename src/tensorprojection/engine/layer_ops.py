"""A whole layer as two operators, forward and backward, opaque to compilers, for every engine.

What comes out has shapes that depend on those of the W's alone, so a compiler can plan for it. The
kernels may refuse a W at run time, and torch computes it instead: it is packed in the same way.

Note [What a CUDA graph can hold]
    An operator that copies to the host, or looks at a value there, cannot be recorded in a CUDA
    graph. Such ones carry a tag that says so, and torch.compile's "reduce-overhead" leaves them out
    of its graphs. Those for devices wait for nothing and carry none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .device.engine import DeviceEngine
from .device.modes import groups
from .dispatch import by_products, engine
from .interface import LayerOptions, SavedForBackward
from .layout import Matrices, inverse, memory_order
from .packed import packed_sizes
from .torch_engine import TorchEngine

# See Note [What a CUDA graph can hold]; torch 2.8 has no such tag.
WAITS: tuple[torch.Tag, ...] = tuple(
    getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name)
)


def run_layer(
    x: Tensor, Ws: Matrices, transposed: bool, eps: Sequence[float], relative: bool
) -> list[Tensor]:
    """z, and what the backward pass needs besides x and the W's."""
    op = torch.ops.tensorprojection
    run = op.device_layer if by_products(*Ws) else op.layer
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
    op = torch.ops.tensorprojection
    run = op.device_layer_grad if by_products(*Ws) else op.layer_grad
    found = iter(run(x, grad, list(Ws), list(saved), transposed, list(eps), relative, list(wanted)))
    there = [wanted[0], *(w and W is not None for w, W in zip(wanted[1:], Ws, strict=True))]
    return [next(found) if is_there else None for is_there in there]


def _layer(
    x: Tensor, Ws: list[Tensor | None], transposed: bool, eps: list[float], relative: bool
) -> list[Tensor]:
    options = _options(len(Ws), transposed, eps, relative)
    z, saved = _host_engine().forward(x, Ws, options)
    return [z, *saved.tensors]


def _layer_grad(
    x: Tensor,
    grad: Tensor,
    Ws: list[Tensor | None],
    saved: list[Tensor],
    transposed: bool,
    eps: list[float],
    relative: bool,
    wanted: list[bool],
) -> list[Tensor]:
    options, used = _options(len(Ws), transposed, eps, relative), _host_engine()
    known = SavedForBackward(tuple(saved), used.layout_of_layer(x, Ws))
    found = used.backward(x, grad, Ws, known, options, wanted)
    return [g for g in found if g is not None]


def _device_layer(
    x: Tensor, Ws: list[Tensor | None], transposed: bool, eps: list[float], relative: bool
) -> list[Tensor]:
    options = _options(len(Ws), transposed, eps, relative)
    z, saved = DeviceEngine().forward(x, Ws, options)
    return [z, *saved.tensors]


def _device_layer_grad(
    x: Tensor,
    grad: Tensor,
    Ws: list[Tensor | None],
    saved: list[Tensor],
    transposed: bool,
    eps: list[float],
    relative: bool,
    wanted: list[bool],
) -> list[Tensor]:
    options = _options(len(Ws), transposed, eps, relative)
    known = SavedForBackward(tuple(saved), None)
    found = DeviceEngine().backward(x, grad, Ws, known, options, wanted)
    return [g for g in found if g is not None]


def _host_engine() -> TorchEngine:
    used = engine()
    assert isinstance(used, TorchEngine)
    return used


def _options(order: int, transposed: bool, eps: Sequence[float], relative: bool) -> LayerOptions:
    names = tuple(f"W{k}" for k in range(1, order + 1))
    return LayerOptions(transposed, tuple(eps), "relative" if relative else "absolute", names)


# What they are for tensors without values.


def _fake_layer(x: Tensor, Ws: list[Tensor | None], transposed: bool, *_: Any) -> list[Tensor]:
    entries, spectra = packed_sizes(Ws)
    packed = x.new_empty(entries), x.new_empty(spectra, dtype=torch.float64)
    return [_fake_output(x, Ws, transposed), *packed]


def _fake_device_layer(
    x: Tensor, Ws: list[Tensor | None], transposed: bool, *_: Any
) -> list[Tensor]:
    shapes = [(W.shape[0], W.shape[1]) for W in Ws if W is not None]
    found = [_fake_output(x, Ws, transposed), *(x.new_empty(shape) for shape in shapes)]
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


def _fake_output(x: Tensor, Ws: Matrices, transposed: bool) -> Tensor:
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


# By Library and not by torch.library.custom_op, whose checks take some 70 µs at every call. They
# are called inside of a node of autograd only (fused.py), so they need no rule for it themselves.
_LIBRARY = torch.library.Library("tensorprojection", "FRAGMENT")
for _name, _values, _fake, _tags in (
    ("layer", _layer, _fake_layer, WAITS),
    ("layer_grad", _layer_grad, _fake_grad, WAITS),
    ("device_layer", _device_layer, _fake_device_layer, ()),
    ("device_layer_grad", _device_layer_grad, _fake_grad, ()),
):
    _schema = torch.library.infer_schema(_values, mutates_args=())
    _LIBRARY.define(f"{_name}{_schema}", tags=_tags)
    _LIBRARY.impl(_name, _values, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tensorprojection::{_name}", _fake, lib=_LIBRARY)
