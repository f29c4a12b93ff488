"""Starts from data: W such that the layer begins as the multilinear PCA of what it will see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from ..errors import ProjectionTypeError, ProjectionValueError
from ..nn.layers import TensorProjection, TransposeTensorProjection
from ..shapes import Shape
from .alternating import alternate, check_sizes, start
from .batches import Data, Source
from .scatter import scatter

Layer = TypeVar("Layer", bound=TensorProjection | TransposeTensorProjection)


def init_from_data(
    layer: Layer,
    data: Data,
    *,
    transform: Callable[[Any], Any] | None = None,
    center: bool = True,
    sweeps: int = 0,
) -> Layer:
    """Set every W of a layer so that U spans the leading directions of its mode in the data.

    >>> layer = TensorProjection((8, 6, 6), (4, 3, 3))
    >>> x = torch.randn(500, 8, 6, 6) * torch.linspace(2, 0.1, 6)
    >>> before = layer.captured_energy(x).mean()
    >>> bool(init_from_data(layer, x).captured_energy(x).mean() > before)
    True

    One streaming pass suffices: U then spans the start of multilinear PCA, each mode's leading
    directions by itself. Further sweeps of its alternation make all modes fit each other; they
    read the data once per mode and sweep, and commonly gain a percent of the energy or less.

    For features inside a model: ``init_from_data(layer, tp.capture(model, "features.7", loader))``.

    Args:
        layer: a projection, or a transposed one: its U spans part of the *larger* side, which is
            its output, so the data has the shape of the output then. A lazy projection gets
            ``in_shape`` from the data; a lazy transposed one has to be called once first.
        data: a tensor or array with the samples along the first axis, or a loader of such batches.
        transform: called with each batch before anything else.
        center: whether directions are those of the spread about the mean (a bias that follows the
            layer makes up for the mean), or those of the data as it is.
        sweeps: how many sweeps of the alternation follow.

    Returns:
        The layer, changed in place: ``W_k = U_k · init_scale``.
    """
    if not isinstance(layer, TensorProjection | TransposeTensorProjection):
        raise ProjectionTypeError(
            f"Expected a TensorProjection or TransposeTensorProjection, got {type(layer).__name__}."
        )
    if isinstance(sweeps, bool) or not isinstance(sweeps, int) or sweeps < 0:
        raise ProjectionValueError(f"Expected sweeps to be an integer >= 0, got {sweeps!r}.")
    lazy = any(isinstance(W, UninitializedParameter) for W in layer.Ws)
    if lazy and layer.transposed:
        raise ProjectionValueError(
            "Expected a layer that knows its shapes: the data tells the output's, and a lazy "
            "transposed layer takes its input's from its first call."
        )
    source = Source(data, transform=transform)
    seen = scatter(source, center=center)
    if lazy:
        _tell_shape(layer, seen.shape)
    large, small = layer.in_shape, layer.out_shape
    if layer.transposed:
        large, small = small, large
    if seen.shape != large:
        side = "output" if layer.transposed else "input"
        raise ProjectionValueError(
            f"Expected data of the layer's {side} shape, (n, {', '.join(map(str, large))}), "
            f"got samples of shape {seen.shape}."
        )
    check_sizes("the layer", seen, small)
    Us = start(seen, small)
    if sweeps:
        Us = alternate(source, seen, small, max_iter=sweeps, tol=0.0).Us
    with torch.no_grad():
        for W, U, scale in zip(layer.Ws, Us, layer.init_scale, strict=True):
            if W is not None:
                W.copy_(U * scale)
    return layer


def _tell_shape(layer: TensorProjection | TransposeTensorProjection, shape: Shape) -> None:
    W: Tensor = next(W for W in layer.Ws if W is not None)
    with torch.no_grad():
        layer(torch.zeros(1, *shape, device=W.device, dtype=W.dtype))
