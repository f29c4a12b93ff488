"""TensorProjection (Eq. 1) and TransposeTensorProjection (Eq. 13) as Keras layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from ..eps import EpsMode, check_eps
from ..errors import ProjectionValueError
from ..shapes import check_shape, complete, not_floating, per_mode, read_shape
from . import ops
from .export import constants, is_exporting
from .frozen import FrozenProjection
from .penalties import PENALTIES, check_penalty
from .starts import get_start

Size = int | None  # None: not known, in a mode left alone


class _Projection(keras.layers.Layer):  # type: ignore[misc]
    """What the two layers share: the W's, and the map made of them."""

    transposed: ClassVar[bool]

    def __init__(
        self,
        out_shape: Sequence[int | None],
        *,
        eps: float | Sequence[float | None] | None = None,
        eps_mode: EpsMode = "absolute",
        kernel_initializer: Any = "normal",
        kernel_regularizer: Any = None,
        regularization: str | None = None,
        rate: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.out_shape = read_shape("out_shape", out_shape, none_allowed=True)
        self.eps_mode: EpsMode = eps_mode
        self.eps = tuple(check_eps(e, eps_mode) for e in per_mode("eps", eps, self.order))
        starts = per_mode("kernel_initializer", kernel_initializer, self.order)
        self.kernel_initializer = tuple(map(get_start, starts))
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.regularization = check_penalty(regularization, type(self).__name__)
        self.rate = rate
        self.in_shape: tuple[Size, ...] | None = None
        self.W_names = tuple(f"W{k}" for k in range(1, self.order + 1))

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.out_shape)

    @property
    def Ws(self) -> list[Any]:
        """The variables by mode, None for a mode left alone."""
        return [getattr(self, name) for name in self.W_names]

    def build(self, input_shape: Sequence[Size]) -> None:
        self.in_shape = tuple(input_shape[1:])
        full = self._full_shape(self.in_shape)
        for name, p, q, start in zip(
            self.W_names, self.in_shape, full, self.kernel_initializer, strict=True
        ):
            W = None
            if p is not None and q is not None and p != q:
                W = self.add_weight(
                    name=name,
                    shape=(max(p, q), min(p, q)),
                    # A copy per mode: one initializer would draw the same values twice.
                    initializer=start.clone() if hasattr(start, "clone") else start,
                    regularizer=self.kernel_regularizer,
                    autocast=False,  # U is computed in the variables' type; see `ops.polar`
                )
            setattr(self, name, W)
        self.built = True

    def _full_shape(self, in_shape: Sequence[Size]) -> tuple[Size, ...]:
        """out_shape with None filled in, and checked against the input's shape."""
        if len(in_shape) == self.order:
            for k, (p, q) in enumerate(zip(in_shape, self.out_shape, strict=True), start=1):
                if p is None and q is not None:
                    raise ProjectionValueError(
                        f"Expected the input's size to be known in mode {k}, which becomes {q}, "
                        f"got {tuple(in_shape)}."
                    )
        known = tuple(1 if p is None else p for p in in_shape)
        full = complete(known, self.out_shape, transposed=self.transposed)
        return tuple(None if p is None else q for p, q in zip(in_shape, full, strict=True))

    def compute_output_shape(self, input_shape: Sequence[Size]) -> tuple[Size, ...]:
        return (input_shape[0], *self._full_shape(input_shape[1:]))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Checked here, before Keras wraps what `call` raises into a message of its own.
        for x in args[:1] or [kwargs.get("inputs")]:
            if hasattr(x, "dtype") and hasattr(x, "shape"):
                self._check(x)
                if self.built and not ops.is_symbolic(x):
                    for name, W in zip(self.W_names, self.Ws, strict=True):
                        ops.check_weight(name, W, self.eps_mode)
        return super().__call__(*args, **kwargs)

    def _check(self, x: Any) -> None:
        dtype = keras.backend.standardize_dtype(x.dtype)
        if not keras.backend.is_float_dtype(dtype):
            raise not_floating("the input", dtype)
        if self.in_shape is None:
            return  # `build` checks it
        check_shape(tuple(x.shape), self.in_shape)
        if len(x.shape) != self.order + 1:
            raise ProjectionValueError(
                f"Expected one batch axis and {self.order} modes, got an input of shape "
                f"{tuple(x.shape)}."
            )

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        if is_exporting(inputs):
            map_by = ops.back_project if self.transposed else ops.project
            return map_by(inputs, constants(self))
        Ws = [None if W is None else W.value for W in self.Ws]
        z = ops.project_by_weights(inputs, Ws, self.eps, self.eps_mode, transposed=self.transposed)
        if self.regularization is not None:
            penalty = PENALTIES[self.regularization](self, inputs, z)
            self.add_loss(self.rate * keras.ops.log(penalty))
        return z

    def projections(self) -> list[Any]:
        """The U's by mode (``larger × smaller``), None for a mode left alone; differentiable."""
        return [
            None if W is None else ops.polar(W.value, e, eps_mode=self.eps_mode)
            for W, e in zip(self.Ws, self.eps, strict=True)
        ]

    def freeze(self) -> FrozenProjection:
        """The layer as it is now, as a constant: nothing to train, the U's as its weights."""
        if not self.built:
            raise ProjectionValueError(
                f"Expected a layer that has been built, got {self.name}: call it once before."
            )
        return FrozenProjection.of(self, constants(self))

    def get_config(self) -> dict[str, Any]:
        starts = [keras.initializers.serialize(start) for start in self.kernel_initializer]
        return {
            **super().get_config(),
            "out_shape": self.out_shape,
            "eps": self.eps,
            "eps_mode": self.eps_mode,
            "kernel_initializer": starts,
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "regularization": self.regularization,
            "rate": self.rate,
        }


@keras.saving.register_keras_serializable(package="tensorprojection")
class TensorProjection(_Projection):
    r"""Shrinks a feature tensor along every mode at once by learned orthonormal projections.

    .. math::
        \mathcal Z = \mathcal X \times_1 U_1^\top \times_2 U_2^\top \cdots, \qquad
        U_k = W_k (W_k^\top W_k + \epsilon^2 I)^{-1/2}

    >>> layer = TensorProjection((6, 6, 20))  # in place of MaxPooling2D
    >>> layer(keras.ops.ones((2, 12, 12, 32))).shape[1:] == (6, 6, 20)
    True
    >>> layer.count_params()
    784

    Args:
        out_shape: the sizes to reach, one per axis after the batch axis, of any number. None, or
            the input's size, leaves a mode alone: it has no weight then.
        eps: the paper's ε (ε² is added to WᵀW), one number or one per mode. Default 1e-3, the
            paper's; 1e-5 with ``eps_mode="relative"``.
        eps_mode: ``"absolute"``, the paper's, or ``"relative"``: ε² times tr(WᵀW)/q.
        kernel_initializer: the start of W, one or one per mode: ``"normal"`` (standard deviation
            0.05, the paper's); ``"orthogonal"``; ``"block"``, average pooling up to a factor;
            ``"blur"``, the closest to anti-aliased pooling; ``"dct"``, spectral pooling; or an
            initializer of Keras's.
        kernel_regularizer: a penalty on every W.
        regularization: an activity penalty of the paper's authors, added to the model's loss as
            ``rate * log(…)``: ``"reconstruction_error"``, the root mean square of what the
            back-projection misses; or ``"total_variation"``, the spread of the outputs.
        rate: the penalty's factor.

    Attributes:
        W1, W2, …: variables by mode, ``p_k × q_k``; None for a mode left alone.
    """

    transposed = False


@keras.saving.register_keras_serializable(package="tensorprojection")
class TransposeTensorProjection(_Projection):
    r"""Enlarges a feature tensor along every mode at once: the transpose of a projection.

    .. math::
        \mathcal Z = \mathcal X \times_1 U_1 \times_2 U_2 \cdots, \qquad
        U_k = W_k (W_k^\top W_k + \epsilon^2 I)^{-1/2}

    >>> layer = TransposeTensorProjection((16, 16, None))
    >>> layer(keras.ops.ones((2, 8, 8, 128))).shape[1:] == (16, 16, 128)
    True

    The arguments are those of :class:`TensorProjection`, with ``out_shape`` the larger side;
    ``W_k`` is ``out_k × in_k``.
    """

    transposed = True
