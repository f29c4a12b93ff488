"""HOPE, which the paper compares with in its introduction: orthogonality as a penalty.

Zhang, Jiang & Dai (2016); for convolutional networks, Pan & Jiang (2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from .. import penalties
from ..errors import ProjectionDeviceError, ProjectionTypeError, ProjectionValueError
from ..functional import vec
from ..init import normal_, orthogonal_
from ..ops.dtypes import cast, check_input, map_dtype, no_autocast
from ..shapes import Shape, read_shape

INITS = {"normal": normal_, "orthogonal": orthogonal_}


class HOPE(nn.Module):
    r"""Project vectors, ``z = Uᵀx``, with unit columns that a penalty makes orthogonal.

    The vectors are a tensor's local patches, as in a convolution, or the whole tensor.

    >>> pool = HOPE((32, 12, 12), 32, patch=2)  # in place of MaxPool2d(2)
    >>> pool
    HOPE((32, 12, 12) -> (32, 6, 6), patch=(2, 2), stride=(2, 2), init='normal', 4,096 parameters)
    >>> pool(torch.randn(300, 32, 12, 12)).shape
    torch.Size([300, 32, 6, 6])
    >>> HOPE((32, 12, 12), 64)(torch.randn(300, 32, 12, 12)).shape
    torch.Size([300, 64])

    Train it with ``loss = task_loss + beta * pool.penalty()`` and a β of your choice.

    Vectors, and patches ``(channels, height, width)``, are Fortran-ordered, the first mode fastest,
    as in :func:`functional.vec`. On patches the layer is a convolution with filters of norm 1,
    without bias and padding.

    Args:
        in_shape: sizes of the feature axes, without batch axes: any number of them, or
            ``(channels, height, width)`` with a ``patch``. All leading axes of an input are batch
            axes.
        features: q, the length of z: the output is ``(q,)``, or ``(q, height', width')``.
        patch: the window's side, or height and width; None projects the whole tensor.
        stride: the window's step. Default: its own size, so that patches do not overlap.
        init: the initialization of U: ``"normal"`` or ``"orthogonal"``.
        device, dtype: of the parameter.

    Attributes:
        U: the parameter, ``p × q``; p is the vectors' length. The map and the penalty depend on
            the directions of its columns only.
    """

    in_shape: Shape
    out_shape: Shape

    def __init__(
        self,
        in_shape: Sequence[int],
        features: int,
        *,
        patch: int | Sequence[int] | None = None,
        stride: int | Sequence[int] | None = None,
        init: str = "normal",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_shape = read_shape("in_shape", in_shape, none_allowed=False)
        (self.features,) = read_shape("features", (features,), none_allowed=False)
        self.patch = None if patch is None else _pair("patch", patch)
        self.stride = self.patch if stride is None else _pair("stride", stride)
        vector, places = self._vector_and_places()
        self.out_shape = (self.features, *places)
        if self.features > prod(vector):
            raise ProjectionValueError(
                f"Expected at most {prod(vector)} features, the length of a vectorised {vector}: "
                f"no more columns can be orthogonal, got {self.features}."
            )
        if init not in INITS:
            raise ProjectionValueError(
                f"Expected init to be one of {', '.join(map(repr, INITS))}, got {init!r}."
            )
        if dtype is not None and not dtype.is_floating_point:
            raise ProjectionTypeError(f"Expected a real floating-point dtype, got {dtype}.")
        self.init = init
        self.U = nn.Parameter(torch.empty(prod(vector), self.features, device=device, dtype=dtype))
        self.reset_parameters()

    def _vector_and_places(self) -> tuple[Shape, Shape]:
        """Return the shape of one vector as a tensor, and the number along each spatial axis."""
        if self.patch is None or self.stride is None:
            if self.stride is not None:
                raise ProjectionValueError(
                    f"Expected a stride only with a patch, got stride={self.stride} and no patch."
                )
            return self.in_shape, ()
        if len(self.in_shape) != 3:
            raise ProjectionValueError(
                f"Expected in_shape (channels, height, width) with a patch, got {self.in_shape}."
            )
        channels, *sides = self.in_shape
        if any(k > n for k, n in zip(self.patch, sides, strict=True)):
            raise ProjectionValueError(
                f"Expected a patch that fits into {tuple(sides)}, got {self.patch}."
            )
        places = [(n - k) // s + 1 for n, k, s in zip(sides, self.patch, self.stride, strict=True)]
        return (channels, *self.patch), tuple(places)

    def reset_parameters(self) -> None:
        """Initialize U again with ``init``."""
        INITS[self.init](self.U)

    def columns(self) -> Tensor:
        """Return U with columns of length 1, differentiable; a column of zeros does not learn."""
        with no_autocast(self.U):
            return penalties.unit_columns(self.U)

    def penalty(self) -> Tensor:
        """Return D(U), to add to a loss with a weight β > 0; see :func:`penalties.hope`."""
        return penalties.hope(self.U)

    def filters(self) -> Tensor:
        """Return the unit columns as filters: ``(features, channels, *patch)``."""
        if self.patch is None:
            raise ProjectionValueError("Expected a layer with a patch: only that has filters.")
        height, width = self.patch
        filters = self.columns().mT.reshape(self.features, width, height, self.in_shape[0])
        return filters.permute(0, 3, 2, 1)  # a column is Fortran-ordered

    def forward(self, x: Tensor) -> Tensor:
        check_input(x, self.in_shape)
        if self.U.device != x.device:
            raise ProjectionDeviceError(
                f"Expected the input and the layer on one device, got the input on {x.device} "
                f"and U on {self.U.device}."
            )
        dtype = map_dtype(x)
        x, batch = cast(x, dtype), x.shape[: x.ndim - len(self.in_shape)]
        with no_autocast(x):
            if self.patch is None or self.stride is None:
                return vec(x, batch_dims=len(batch)) @ cast(self.columns(), dtype)
            z = nn.functional.conv2d(
                x.reshape(-1, *self.in_shape), cast(self.filters(), dtype), stride=self.stride
            )
            return z.reshape(*batch, *self.out_shape)

    def extra_repr(self) -> str:
        window = "" if self.patch is None else f"patch={self.patch}, stride={self.stride}, "
        return (
            f"{self.in_shape} -> {self.out_shape}, {window}init={self.init!r}, "
            f"{self.U.numel():,} parameters"
        )


def _pair(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    pair = read_shape(name, (value, value) if isinstance(value, int) else value, none_allowed=False)
    if len(pair) != 2:
        raise ProjectionValueError(f"Expected {name} to be one size or two, got {value!r}.")
    return pair[0], pair[1]
