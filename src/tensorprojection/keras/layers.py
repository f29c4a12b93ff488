"""TensorProjection (Eq. 1) and TransposeTensorProjection (Eq. 13) as Keras layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras

from ..eps import EpsMode, check_eps
from ..errors import ProjectionTypeError, ProjectionValueError
from ..shapes import check_shape, complete, not_floating, per_mode, read_shape
from . import initializers, ops

Size = int | None  # None: not known, in a mode left alone


class _Multilinear(keras.layers.Layer):  # type: ignore[misc]
    """Base of the layers: checks the input before Keras calls `call`."""

    in_shape: tuple[Size, ...] | None = None  # None until the layer is built

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Keras wraps an error from `call` into a message of its own; from here it does not.
        for x in args[:1] or [kwargs.get("inputs")]:
            if hasattr(x, "dtype") and hasattr(x, "shape"):
                self._check(x)
        return super().__call__(*args, **kwargs)

    def _check(self, x: Any) -> None:
        dtype = keras.backend.standardize_dtype(x.dtype)
        if not keras.backend.is_float_dtype(dtype):
            raise not_floating("the input", dtype)
        if self.in_shape is None:
            return  # `build` checks the shape
        check_shape(tuple(x.shape), self.in_shape)
        if len(x.shape) != len(self.in_shape) + 1:
            raise ProjectionValueError(
                f"Expected one batch axis and {len(self.in_shape)} modes, got an input of shape "
                f"{tuple(x.shape)}."
            )


def _reconstruction_error(x: Any, z: Any, Us: Sequence[Any], transposed: bool) -> Any:
    """Return the mean over samples of the RMS of X minus the back-projection of Z."""
    return _mean_rms(x - ops.multilinear(z, Us, transposed=not transposed))


def _spread(x: Any, z: Any, Us: Sequence[Any], transposed: bool) -> Any:
    """Return the mean over samples of the RMS deviation of Z from its mean."""
    return _mean_rms(z - keras.ops.mean(z, axis=0, keepdims=True))


def _mean_rms(x: Any) -> Any:
    squares = keras.ops.mean(keras.ops.square(x), axis=tuple(range(1, len(x.shape))))
    # The root's gradient at 0 is infinite; here it is 0, as in PyTorch's `vector_norm`.
    positive = squares > 0
    roots = keras.ops.sqrt(keras.ops.where(positive, squares, keras.ops.ones_like(squares)))
    return keras.ops.mean(keras.ops.where(positive, roots, keras.ops.zeros_like(squares)))


# By the names of the paper's authors.
_PENALTIES: dict[str, Callable[[Any, Any, Sequence[Any], bool], Any]] = {
    "reconstruction_error": _reconstruction_error,
    "total_variation": _spread,
}


class _Projection(_Multilinear):
    """Base of the two layers: the W's, and the map made of them."""

    transposed: ClassVar[bool]

    def __init__(
        self,
        out_shape: Sequence[int | None],
        *,
        eps: float | Sequence[float | None] | None = None,
        eps_mode: EpsMode = "absolute",
        kernel_initializer: Any = "auto",
        kernel_regularizer: Any = None,
        regularization: str | None = None,
        rate: float = 0.1,
        **kwargs: Any,
    ) -> None:
        if "init" in kwargs:  # the PyTorch layer's name for it
            raise ProjectionTypeError(
                f"{type(self).__name__} has no argument 'init'. "
                f"Use kernel_initializer={kwargs['init']!r}."
            )
        super().__init__(**kwargs)
        self.out_shape = read_shape("out_shape", out_shape, none_allowed=True)
        self.eps_mode: EpsMode = eps_mode
        self.eps = tuple(check_eps(e, eps_mode) for e in per_mode("eps", eps, self.order))
        self.kernel_initializer = initializers.by_mode(kernel_initializer, self.order)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        if regularization is not None and regularization not in _PENALTIES:
            raise ProjectionValueError(
                f"Expected regularization to be None or one of "
                f"{', '.join(map(repr, _PENALTIES))}, got {regularization!r}."
            )
        self.regularization = regularization
        self.rate = rate

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.out_shape)

    @property
    def Ws(self) -> list[Any]:
        """The variables by mode, None for a mode left alone."""
        return [getattr(self, f"W{k}") for k in range(1, self.order + 1)]

    def build(self, input_shape: Sequence[Size]) -> None:
        in_shape = tuple(input_shape[1:])
        full = self._full_shape(in_shape)
        modes = zip(in_shape, full, self.kernel_initializer, strict=True)
        for k, (p, q, initializer) in enumerate(modes, start=1):
            W = None
            if p is not None and q is not None and p != q:
                W = self.add_weight(
                    name=f"W{k}",
                    shape=(max(p, q), min(p, q)),
                    initializer=initializer,
                    regularizer=self.kernel_regularizer,
                    autocast=False,  # U is computed in the variables' type; see `ops.polar`
                )
            setattr(self, f"W{k}", W)
        self.in_shape = in_shape
        self.built = True

    def _full_shape(self, in_shape: Sequence[Size]) -> tuple[Size, ...]:
        """Return out_shape with None filled in; raise if it does not fit the input's shape."""
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

    def call(self, inputs: Any) -> Any:
        if ops.is_exporting(inputs):
            return ops.multilinear(inputs, self._constants(), transposed=self.transposed)
        Us = self.projections()
        z = ops.multilinear(inputs, Us, transposed=self.transposed)
        if self.regularization is not None:
            x, y = (keras.ops.cast(t, self.variable_dtype) for t in (inputs, z))
            penalty = _PENALTIES[self.regularization](x, y, Us, self.transposed)
            self.add_loss(self.rate * keras.ops.log(penalty))
        return z

    def projections(self) -> list[Any]:
        """Return the U's by mode (``larger × smaller``), None for a mode left alone.

        They are differentiable functions of the W's.
        """
        return self._projections([None if W is None else W.value for W in self.Ws])

    def _projections(self, Ws: Sequence[Any]) -> list[Any]:
        return [
            None if W is None else ops.polar(W, eps, eps_mode=self.eps_mode)
            for W, eps in zip(Ws, self.eps, strict=True)
        ]

    def _constants(self) -> list[Any]:
        """Return the U's as NumPy arrays, also while an exporter traces the layer."""
        with ops.outside_trace():
            # Not `value`, which may be a tracer.
            Us = self._projections([None if W is None else W._value for W in self.Ws])
            return [None if U is None else keras.ops.convert_to_numpy(U) for U in Us]

    def freeze(self) -> FrozenProjection:
        """Return the layer as it is now, as a constant: nothing to train, the U's as weights."""
        if not self.built:
            raise ProjectionValueError(
                f"The layer {self.name!r} has no weights yet. Call it once before freeze()."
            )
        Us = self._constants()
        frozen = FrozenProjection(
            [None if U is None else U.shape for U in Us],
            self.transposed,
            name=self.name,
            dtype=self.dtype_policy,
        )
        frozen.set_weights([U for U in Us if U is not None])
        return frozen

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "out_shape": self.out_shape,
            "eps": self.eps,
            "eps_mode": self.eps_mode,
            "kernel_initializer": [*map(keras.initializers.serialize, self.kernel_initializer)],
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "regularization": self.regularization,
            "rate": self.rate,
        }


@keras.saving.register_keras_serializable(package="tensorprojection")
class TensorProjection(_Projection):
    r"""Shrink a feature tensor along every mode at once by learned orthonormal projections.

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
        kernel_initializer: initialization of W, one for all modes or one per mode. ``"auto"``: from
            three modes on, ``BlockInitializer(gain=3)`` for every mode but the last, the channels,
            which get ``"normal"``; with one or two modes ``"normal"``. For data without channels,
            or with channels elsewhere, give one per mode: ``"normal"`` (standard deviation 0.05,
            the paper's for all modes); ``"orthogonal"``; ``"block"``, average pooling up to a
            factor; ``"blur"``, the closest to anti-aliased pooling; ``"dct"``, spectral pooling; or
            a Keras initializer.
        kernel_regularizer: a penalty on every W.
        regularization: an activity penalty of the paper's authors, added to the model's loss as
            ``rate * log(…)``: ``"reconstruction_error"``, the root mean square of what the
            back-projection misses; or ``"total_variation"``, the spread of the outputs.
        rate: the penalty's factor.

    Attributes:
        kernel_initializer: the initializers, one per mode.
        W1, W2, …: variables by mode, ``p_k × q_k``; None for a mode left alone.
    """

    transposed = False


@keras.saving.register_keras_serializable(package="tensorprojection")
class TransposeTensorProjection(_Projection):
    r"""Enlarge a feature tensor along every mode at once: the transpose of a projection.

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


@keras.saving.register_keras_serializable(package="tensorprojection")
class FrozenProjection(_Multilinear):
    """The result of ``layer.freeze()``: the same map, with U's as weights that are not trained.

    >>> layer = TensorProjection((6, 6, None))
    >>> layer.build((None, 12, 12, 32))
    >>> frozen = layer.freeze()
    >>> frozen(keras.ops.ones((2, 12, 12, 32))).shape[1:] == (6, 6, 32)
    True
    >>> frozen.trainable_weights
    []

    Args:
        shapes: of the U's by mode, ``larger × smaller``; None for a mode left alone.
        transposed: True for the map of a transposed projection.
    """

    def __init__(
        self, shapes: Sequence[Sequence[int] | None], transposed: bool, **kwargs: Any
    ) -> None:
        super().__init__(trainable=kwargs.pop("trainable", False), **kwargs)
        self.shapes = [None if shape is None else tuple(shape) for shape in shapes]
        self.transposed = transposed
        self.in_shape = tuple(None if U is None else U[transposed] for U in self.shapes)
        self.Us = [
            None
            if shape is None
            else self.add_weight(
                name=f"U{k}", shape=shape, initializer="zeros", trainable=False, autocast=False
            )
            for k, shape in enumerate(self.shapes, start=1)
        ]

    def call(self, inputs: Any) -> Any:
        Us = [None if U is None else U.value for U in self.Us]
        return ops.multilinear(inputs, Us, transposed=self.transposed)

    def compute_output_shape(self, input_shape: Sequence[Size]) -> tuple[Size, ...]:
        sizes = zip(input_shape[1:], self.shapes, strict=True)
        return (
            input_shape[0],
            *(n if U is None else U[not self.transposed] for n, U in sizes),
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shapes": self.shapes, "transposed": self.transposed}


# The layers with the names and signatures of the paper's authors: only the import changes.


class _Authors(_Projection):
    """``q1, q2, q3, regularization='None', rate=0.1``, and the paper's initialization of W."""

    def __init__(
        self,
        q1: int,
        q2: int,
        q3: int,
        regularization: str = "None",
        rate: float = 0.1,
        kernel_initializer: Any = "normal",
        **kwargs: Any,
    ) -> None:
        self.q1, self.q2, self.q3 = q1, q2, q3
        penalty = None if regularization == "None" else regularization
        super().__init__(
            (q1, q2, q3),
            kernel_initializer=kernel_initializer,
            regularization=penalty,
            rate=rate,
            **kwargs,
        )

    def _full_shape(self, in_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        # The authors' layer leaves a mode alone if it would not get smaller (transposed: larger).
        if len(in_shape) == self.order:
            beyond = max if self.transposed else min
            self.out_shape = tuple(
                q if p is None else beyond(p, q)
                for p, q in zip(in_shape, (self.q1, self.q2, self.q3), strict=True)
            )
        return super()._full_shape(in_shape)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["out_shape"]
        penalty = config.pop("regularization")
        sizes = {"q1": self.q1, "q2": self.q2, "q3": self.q3}
        return {**config, **sizes, "regularization": penalty or "None"}


@keras.saving.register_keras_serializable(package="tensorprojection")
class TensorProjectionLayer(_Authors, TensorProjection):
    """:class:`TensorProjection` of order three, with the signature of the authors' layer.

    >>> layer = TensorProjectionLayer(6, 6, 32)
    >>> _ = layer.build((None, 12, 12, 32))
    >>> [W.name for W in layer.weights]  # 32 channels stay
    ['W1', 'W2']
    """


@keras.saving.register_keras_serializable(package="tensorprojection")
class TransposeTensorProjectionLayer(_Authors, TransposeTensorProjection):
    """:class:`TransposeTensorProjection` of order three, with the signature of the authors' layer.

    >>> layer = TransposeTensorProjectionLayer(16, 16, 128)
    >>> layer(keras.ops.ones((2, 8, 8, 128))).shape[1:] == (16, 16, 128)
    True
    """
