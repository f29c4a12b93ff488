"""Layers that take their input shape from the first input, like torch's own lazy modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter, is_lazy

from ..eps import EpsMode
from ..errors import ProjectionValueError
from ..init import Init
from ..ops.dtypes import check_floating
from ..ops.layout import Matrices
from ..shapes import read_shape
from .layers import TensorProjection, TransposeTensorProjection, _Projection


class _Lazy(LazyModuleMixin, _Projection):
    """A projection that takes ``in_shape`` from its first input."""

    def __init__(
        self,
        out_shape: Sequence[int | None],
        *,
        eps: float | Sequence[float | None] | None = None,
        eps_mode: EpsMode = "absolute",
        init: Init | Sequence[Init] = "auto",
        init_scale: float | Sequence[float] | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        target = read_shape("out_shape", out_shape, none_allowed=True)
        # First as a layer that leaves every mode alone, then with uninitialized parameters.
        super().__init__(
            (1,) * len(target),
            (None,) * len(target),
            eps=eps,
            eps_mode=eps_mode,
            init=init,
            init_scale=init_scale,
        )
        self._target = target
        uninitialized: Any = UninitializedParameter  # torch's types for it are incomplete
        for k, size in enumerate(self._target, start=1):
            W = None if size is None else uninitialized(device=device, dtype=dtype)
            self.register_parameter(f"W{k}", W)

    def reset_parameters(self) -> None:
        if not any(W is not None and is_lazy(W) for W in self.Ws):
            super().reset_parameters()

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # A state that has other W's but not this one comes from a layer that left the mode alone.
        names = [f"W{k}" for k in range(1, self.order + 1)]
        if any(prefix + name in state_dict for name in names):
            for name in names:
                if prefix + name not in state_dict:
                    self.register_parameter(name, None)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _check_Ws(self, Ws: Matrices) -> None:
        raise ProjectionValueError(
            "This lazy layer has no shapes yet. Call it once with an input first."
        )

    def initialize_parameters(self, x: Tensor) -> None:
        """Take the shapes from the first input; torch calls this before the first forward."""
        check_floating(x, "the input")
        if x.ndim < self.order:
            raise ProjectionValueError(
                f"Expected an input with at least {self.order} axes, one per mode of "
                f"out_shape={self._target}, got shape {tuple(x.shape)}."
            )
        shape = tuple(int(n) for n in x.shape[x.ndim - self.order :])
        self._set_shapes(read_shape("the input's shape", shape, none_allowed=False), self._target)
        for k, W_shape in enumerate(self._W_shapes, start=1):
            self._initialize(k, W_shape)

    def _initialize(self, k: int, shape: tuple[int, int] | None) -> None:
        W = getattr(self, f"W{k}")
        if shape is None:
            self.register_parameter(f"W{k}", None)
        elif W is not None and is_lazy(W):
            W.materialize(shape)
            self._initialize_W(k)
        elif W is None or W.shape != shape:  # it came from a state dict
            loaded = "state has none" if W is None else f"one has {tuple(W.shape)}"
            raise ProjectionValueError(
                f"Expected W{k} of shape {shape} for an input of shape {self.in_shape}, but the "
                f"loaded {loaded}."
            )

    def extra_repr(self) -> str:
        return f"-> {self._target}, shapes from the first input"


class LazyTensorProjection(_Lazy, TensorProjection):
    """A :class:`TensorProjection` that takes ``in_shape`` from its first input.

    >>> layer = LazyTensorProjection((None, 6, 6))
    >>> layer(torch.randn(300, 32, 12, 12)).shape
    torch.Size([300, 32, 6, 6])
    >>> layer.in_shape
    (32, 12, 12)
    """

    cls_to_become: Any = TensorProjection


class LazyTransposeTensorProjection(_Lazy, TransposeTensorProjection):
    """A :class:`TransposeTensorProjection` that takes ``in_shape`` from its first input.

    >>> layer = LazyTransposeTensorProjection((None, 12, 12))
    >>> layer(torch.randn(300, 32, 6, 6)).shape
    torch.Size([300, 32, 12, 12])
    """

    cls_to_become: Any = TransposeTensorProjection
