"""Convert layers between PyTorch and Keras, with their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from ..errors import ProjectionTypeError, ProjectionValueError
from .layers import TensorProjection, TransposeTensorProjection, _Projection

if TYPE_CHECKING:
    from ..nn import layers as pytorch


def to_torch(layer: _Projection, *, channels_first: bool = False) -> Any:
    """Return the PyTorch layer that computes the same.

    >>> layer = TensorProjection((6, 6, None))
    >>> layer.build((None, 12, 12, 32))
    >>> to_torch(layer, channels_first=True)
    TensorProjection((32, 12, 12) -> (32, 6, 6), eps=0.001, ..., 144 parameters)

    Args:
        layer: a layer of this module that has been built.
        channels_first: for a layer in a network of ``(height, width, channels)``: the PyTorch layer
            takes ``(channels, height, width)``: the last mode becomes the first.
    """
    import torch

    from ..nn import layers as pytorch

    if not isinstance(layer, _Projection):
        raise ProjectionTypeError(
            f"Expected a Keras TensorProjection or its transpose, got {type(layer).__name__}."
        )
    if not layer.built or layer.in_shape is None:
        raise ProjectionValueError(
            f"The layer {layer.name!r} has no weights yet. Call it once before to_torch()."
        )
    if None in layer.in_shape:
        raise ProjectionValueError(
            f"Expected every size of the input to be known, got {layer.in_shape}."
        )

    def order(modes: Any) -> list[Any]:
        return [modes[-1], *modes[:-1]] if channels_first else list(modes)

    cls = pytorch.TransposeTensorProjection if layer.transposed else pytorch.TensorProjection
    other = cls(
        order(layer.in_shape),
        order(layer._full_shape(layer.in_shape)),
        eps=order(layer.eps),
        eps_mode=layer.eps_mode,
        dtype=getattr(torch, layer.variable_dtype),
    )
    with torch.no_grad():
        for mine, W in zip(other.Ws, order(layer.Ws), strict=True):
            if mine is not None:
                mine.copy_(torch.from_numpy(keras.ops.convert_to_numpy(W).astype(np.float64)))
    return other


def from_torch(layer: pytorch._Projection, *, channels_last: bool = False, **kwargs: Any) -> Any:
    """Return the Keras layer that computes the same as a PyTorch layer.

    >>> import tensorprojection as tp
    >>> layer = from_torch(tp.TensorProjection((32, 12, 12), (20, 6, 6)), channels_last=True)
    >>> layer.compute_output_shape((None, 12, 12, 32))
    (None, 6, 6, 20)

    Args:
        layer: a :class:`tensorprojection.TensorProjection` or its transpose.
        channels_last: for a layer of ``(channels, height, width)``: the Keras layer takes
            ``(height, width, channels)``: the first mode becomes the last.
        kwargs: passed to the Keras layer, such as ``name``.
    """
    from ..nn import layers as pytorch

    if not isinstance(layer, pytorch._Projection):
        raise ProjectionTypeError(
            f"Expected a PyTorch TensorProjection or its transpose, got {type(layer).__name__}."
        )

    def order(modes: Any) -> list[Any]:
        return [*modes[1:], modes[0]] if channels_last else list(modes)

    cls = TransposeTensorProjection if layer.transposed else TensorProjection
    Ws = [W for W in order(layer.Ws) if W is not None]
    dtype = {"dtype": str(Ws[0].dtype).removeprefix("torch.")} if Ws else {}
    other = cls(
        order(layer.out_shape), eps=order(layer.eps), eps_mode=layer.eps_mode, **{**dtype, **kwargs}
    )
    other.build((None, *order(layer.in_shape)))
    other.set_weights([W.detach().double().cpu().numpy() for W in Ws])
    return other
