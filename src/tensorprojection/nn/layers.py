"""TensorProjection (Eq. 1) and TransposeTensorProjection (Eq. 13): plain modules that hold W."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, fx, nn

from ..eps import EpsMode, check_eps
from ..errors import ProjectionDeviceError, ProjectionTypeError, ProjectionValueError
from ..functional import back_project
from ..init import Init, init_name, initialize, resolve
from ..ops.dtypes import (
    back_like,
    check_input,
    derivative_dtype,
    gathered,
    in_float64,
    is_distributed,
    map_dtype,
)
from ..ops.layout import Matrices
from ..ops.multilinear import multilinear
from ..ops.polar import projections
from ..ops.tracing import outside_jit_trace
from ..shapes import Shape, complete, per_mode, read_shape
from .cache import EvalCache
from .distributed import run_distributed
from .frozen import FrozenProjection

Other = TypeVar("Other", bound="_Projection")


class _Projection(nn.Module):
    """The base of both layers: holds the W's, and computes and inspects the U's."""

    transposed: ClassVar[bool]

    in_shape: Shape
    out_shape: Shape

    if TYPE_CHECKING:  # W1, W2, … as many as there are modes; None for a mode left alone
        W1: nn.Parameter
        W2: nn.Parameter
        W3: nn.Parameter
        W4: nn.Parameter
        W5: nn.Parameter

    def __init__(
        self,
        in_shape: Sequence[int],
        out_shape: Sequence[int | None],
        *,
        eps: float | Sequence[float | None] | None = None,
        eps_mode: EpsMode = "absolute",
        init: Init | Sequence[Init] = "auto",
        init_scale: float | Sequence[float] | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        source = read_shape("in_shape", in_shape, none_allowed=False)
        self._set_shapes(source, read_shape("out_shape", out_shape, none_allowed=True))
        self._read_options(len(self.in_shape), eps, eps_mode, init, init_scale)
        for k, shape in enumerate(self._W_shapes, start=1):
            W = None if shape is None else nn.Parameter(_empty(shape, device, dtype))
            self.register_parameter(f"W{k}", W)
        self.reset_parameters()

    def _set_shapes(self, in_shape: Shape, out: Sequence[int | None]) -> None:
        self.in_shape = in_shape
        self.out_shape = complete(in_shape, out, transposed=self.transposed)
        # (larger, smaller) of each W; None for a mode left alone
        self._W_shapes = [
            None if p == q else (max(p, q), min(p, q))
            for p, q in zip(in_shape, self.out_shape, strict=True)
        ]

    def _read_options(
        self, order: int, eps: Any, eps_mode: EpsMode, init: Any, init_scale: Any
    ) -> None:
        self._eps_mode: EpsMode = eps_mode
        self._eps = tuple(check_eps(e, eps_mode) for e in per_mode("eps", eps, order))
        self.init, self.init_scale = resolve(init, init_scale, order)
        self._names = tuple(f"W{k}" for k in range(1, order + 1))
        self._cache = EvalCache()

    @property
    def order(self) -> int:
        """Return the number of modes."""
        return len(self.init)

    @property
    def eps(self) -> tuple[float, ...]:
        """ε by mode; assign one number or one per mode."""
        return self._eps

    @eps.setter
    def eps(self, eps: float | Sequence[float | None] | None) -> None:
        self._eps = tuple(check_eps(e, self.eps_mode) for e in per_mode("eps", eps, self.order))

    @property
    def eps_mode(self) -> EpsMode:
        """``"absolute"`` or ``"relative"``."""
        return self._eps_mode

    @eps_mode.setter
    def eps_mode(self, eps_mode: EpsMode) -> None:
        for eps in self.eps:
            check_eps(eps, eps_mode)
        self._eps_mode = eps_mode

    @property
    def Ws(self) -> list[Tensor | None]:
        """The parameters by mode, None for a mode left alone.

        Read as attributes, so that a parametrization of W, or a replica of the layer, is seen.
        """
        return [getattr(self, name) for name in self._names]

    def reset_parameters(self) -> None:
        """Initialize every W again with ``init``."""
        for k in range(1, self.order + 1):
            self._initialize_W(k)

    def _initialize_W(self, k: int) -> None:
        W = getattr(self, f"W{k}")
        if W is not None:
            initialize(W, self.init[k - 1], self.init_scale[k - 1], f"W{k}")

    def set_projections(self, Us: Sequence[Tensor | None]) -> None:
        """Set the W's so that :meth:`projections` returns these U's, up to ε²/2.

        >>> layer = TensorProjection((8, 6), (4, None))
        >>> U = torch.linalg.qr(torch.randn(8, 4))[0]
        >>> layer.set_projections([U, None])
        >>> bool(torch.allclose(layer.projections()[0], U, atol=1e-5))
        True

        Args:
            Us: one matrix with orthonormal columns per mode, None for a mode left alone.
        """
        if len(Us) != self.order:
            raise ProjectionValueError(
                f"Expected one U or None per mode ({self.order}), got {len(Us)}."
            )
        for k, (U, shape) in enumerate(zip(Us, self._W_shapes, strict=True), start=1):
            found = None if U is None else tuple(U.shape)
            if found != shape:
                raise ProjectionValueError(f"Expected U{k} of shape {shape}, got {found}.")
            if U is not None:
                check_orthonormal(U, f"U{k}")
        with torch.no_grad():
            for W, U in zip(self.Ws, Us, strict=True):
                if W is not None and U is not None:
                    W.copy_(U)

    def projections(self, dtype: torch.dtype | None = None) -> list[Tensor | None]:
        """Return the U's by mode (``larger × smaller``, orthonormal columns), None for a mode left
        alone.

        They are differentiable functions of the W's.
        """
        Ws = self.Ws
        self._check_Ws(Ws)
        own = next((W.dtype for W in Ws if W is not None), torch.float32)
        settings = self._eps, self._eps_mode == "relative", dtype or own
        return projections(gathered(Ws), *settings, constant=not self.training)

    def _Us(self, Ws: Matrices, x: Tensor) -> list[Tensor | None]:
        """Return the U's for an input x, cached in eval mode: see Note [When U is cached]."""
        dtype = derivative_dtype(map_dtype(x))  # see Note [The derivative in float32]
        settings = self._eps, self._eps_mode == "relative", dtype
        if self.training:
            return projections(Ws, *settings)
        return self._cache.get_or_compute(
            Ws, settings, lambda Ws: projections(Ws, *settings, constant=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, fx.Proxy):
            return self._fx_leaf(x)
        Ws = self.Ws  # read once: each read evaluates a parametrization
        self._check(x, Ws)
        if is_distributed(x):
            return run_distributed(self, x, Ws)
        # As functional.project and back_project, whose checks are made above.
        return multilinear(x, self._Us(gathered(Ws), x), transposed=self.transposed)

    def _fx_leaf(self, x: fx.Proxy) -> Any:
        """Record one call of a module in a graph of torch.fx, as torch's own layers do."""
        tracer: Any = x.tracer
        if tracer.root is self:
            raise ProjectionTypeError(
                "torch.fx cannot trace this layer alone. Trace a model that contains it, or trace "
                "layer.freeze()."
            )
        return tracer.create_proxy("call_module", tracer.path_of_module(self), (x,), {})

    def _check(self, x: Tensor, Ws: Matrices) -> None:
        """Check the input, and the W's, which anybody may have replaced."""
        with outside_jit_trace():  # a comparison of sizes is not part of a trace
            self._check_Ws(Ws)
            check_input(x, self.in_shape)
            for k, W in enumerate(Ws, start=1):
                if W is not None and W.device != x.device:
                    raise ProjectionDeviceError(
                        f"Expected the input and the layer on one device, got the input on "
                        f"{x.device} and W{k} on {W.device}."
                    )

    def _check_Ws(self, Ws: Matrices) -> None:
        for k, (W, shape) in enumerate(zip(Ws, self._W_shapes, strict=True), start=1):
            found = None if W is None else W.shape
            if found != shape:
                raise ProjectionValueError(
                    f"Expected W{k} of shape {shape} for a layer {self.in_shape} -> "
                    f"{self.out_shape}, got {None if found is None else tuple(found)}."
                )

    def freeze(self) -> FrozenProjection:
        """Return the layer as it is now, as a constant: no parameters, the U's as buffers."""
        with torch.no_grad():
            Us = self.projections()
        frozen = FrozenProjection(self.in_shape, self.out_shape, Us, transposed=self.transposed)
        return frozen.train(self.training)

    def orthogonality_error(self) -> Tensor:
        """Return the largest ``‖UᵀU − I‖`` (spectral norm) of all modes.

        In exact arithmetic it is ε²/(σ² + ε²), with σ W's smallest singular value: about 1e-4 with
        the paper's init and ε; 1e-6 or less if orthonormal, or with ``eps_mode="relative"``.
        """
        with torch.no_grad():
            Us = [in_float64(U) for U in self.projections() if U is not None]
            errors = [U.mT @ U - torch.eye(U.shape[1], dtype=U.dtype, device=U.device) for U in Us]
            if not all(bool(E.isfinite().all()) for E in errors):
                return torch.tensor(torch.nan, dtype=torch.float64)
            norms = [torch.linalg.matrix_norm(E, 2) for E in errors]
        return torch.stack(norms).max() if norms else torch.zeros((), dtype=torch.float64)

    def extra_repr(self) -> str:
        parts = [f"{self.in_shape} -> {self.out_shape}"]
        parts.append(f"eps={_same_for_all(self.eps)}")
        if self.eps_mode != "absolute":
            parts.append(f"eps_mode={self.eps_mode!r}")
        parts.append(f"init={_same_for_all(tuple(map(init_name, self.init)))!r}")
        if any(scale != 1 for scale in self.init_scale):
            parts.append(f"init_scale={_same_for_all(self.init_scale)}")
        count = sum(W.numel() for W in self.Ws if W is not None)
        parts.append(f"{count:,} parameters")
        return ", ".join(parts)

    def _mirror(self, cls: type[Other], tied: bool) -> Other:
        """Return the layer that maps back, with this layer's W's or with its own."""
        Ws = self.Ws
        self._check_Ws(Ws)
        W = next((W for W in Ws if W is not None), None)
        other = cls(
            self.out_shape,
            self.in_shape,
            eps=self.eps,
            eps_mode=self.eps_mode,
            init=self.init,
            init_scale=self.init_scale,
            device=None if W is None else W.device,
            dtype=None if W is None else W.dtype,
        )
        if tied:
            for k in range(1, self.order + 1):
                other.register_parameter(f"W{k}", self._parameters[f"W{k}"])
        return other.train(self.training)


class TensorProjection(_Projection):
    r"""Shrinks a feature tensor along every mode at once by learned orthonormal projections.

    .. math::
        \mathcal Z = \mathcal X \times_1 U_1^\top \times_2 U_2^\top \cdots, \qquad
        U_k = W_k (W_k^\top W_k + \epsilon^2 I)^{-1/2}

    >>> layer = TensorProjection((32, 12, 12), (20, 6, 6))  # in place of MaxPool2d(2)
    >>> layer.init, layer.init_scale
    (('normal', 'block', 'block'), (1.0, 3.0, 3.0))
    >>> layer(torch.randn(300, 32, 12, 12)).shape
    torch.Size([300, 20, 6, 6])

    Args:
        in_shape: sizes of the feature axes, without batch axes; any number of them. All leading
            axes of an input are batch axes: none, one or several.
        out_shape: the sizes to reach. None, or the input's size, leaves a mode alone: it has no
            parameter then.
        eps: the paper's ε (ε² is added to WᵀW), one number or one per mode. Default 1e-3, the
            paper's; 1e-5 with ``eps_mode="relative"``.
        eps_mode: ``"absolute"``, the paper's, or ``"relative"``: ε² times tr(WᵀW)/q. If the next
            layer is scale-invariant (for example BatchNorm), weight decay can shrink W without
            bound. With an absolute ε, U then loses orthonormality; with a relative ε it does not.
        init: the initialization of W, one for all modes or one per mode: ``"auto"``; ``"normal"``
            (standard deviation 0.05, the paper's for all modes); ``"orthogonal"``; ``"block"``,
            average pooling up to a factor; ``"blur"``, the closest to anti-aliased pooling, local
            and smooth; ``"dct"``, the lowest cosine frequencies, so spectral pooling; or a function
            that fills a tensor in place, such as ``torch.nn.init.orthogonal_``. ``"auto"`` is for
            ``(channels, height, width)`` and the like: ``"normal"`` for the first of three or more
            modes, ``"block"`` for the others; all ``"normal"`` for one or two modes. For another
            layout (channels last, volumes without channels, tokens) give one per mode.
        init_scale: multiplies the initialization, one number or one per mode. Default 1, and 3 for
            the ``"block"`` of ``"auto"``. U does not depend on it, but how fast U turns does: from
            ``"orthogonal"``, 100 steps of Adam at 1e-3 turned it by 1.32, 0.75 and 0.26 radians
            for 0.3, 1 and 3. See `tensorprojection.init`.
        device, dtype: of the parameters.

    Attributes:
        W1, W2, …: parameters by mode, ``p_k × q_k``; None for a mode left alone.
    """

    transposed = False

    def transpose(self, tied: bool = True) -> TransposeTensorProjection:
        """Return the up-sampling layer from ``out_shape`` to ``in_shape``.

        With ``tied=True`` it shares this layer's parameters (an autoencoder with tied weights);
        otherwise it has its own, newly initialized.
        """
        return self._mirror(TransposeTensorProjection, tied)

    def captured_energy(self, x: Tensor) -> Tensor:
        """Return ‖Z‖² / ‖X‖² for each sample: the share of the input that the projection keeps.

        It is 1 for a sample that is all zeros.
        """
        axes = tuple(range(-self.order, 0))
        z = in_float64(self(x)).square().sum(axes)
        total = in_float64(x).square().sum(axes)
        is_zero = total == 0
        # Divide by 1 there: the gradient of 0/0 is NaN even behind a torch.where.
        return back_like(torch.where(is_zero, 1.0, z / torch.where(is_zero, 1.0, total)), x)

    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the back-projection of the projection: the part of x in the U's column spaces."""
        return back_project(self(x), self._Us(gathered(self.Ws), x))


class TransposeTensorProjection(_Projection):
    r"""Enlarges a feature tensor along every mode at once: the transpose of a projection.

    .. math::
        \mathcal Z = \mathcal X \times_1 U_1 \times_2 U_2 \cdots, \qquad
        U_k = W_k (W_k^\top W_k + \epsilon^2 I)^{-1/2}

    >>> layer = TransposeTensorProjection((128, 8, 8), (None, 16, 16))
    >>> layer(torch.randn(50, 128, 8, 8)).shape
    torch.Size([50, 128, 16, 16])

    The arguments are those of :class:`TensorProjection`, with ``out_shape`` the larger side;
    ``W_k`` is ``out_k × in_k``.
    """

    transposed = True

    def transpose(self, tied: bool = True) -> TensorProjection:
        """Return the projection from ``out_shape`` to ``in_shape``, tied or with its own W's."""
        return self._mirror(TensorProjection, tied)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: weight decay for all but the W's of projections.

    U does not depend on W's scale, so decay does not regularize a projection: it shrinks W until
    an absolute ε counts.

    >>> import torch, tensorprojection as tp
    >>> model = torch.nn.Sequential(tp.TensorProjection((8,), (4,)), torch.nn.Linear(4, 2))
    >>> groups = tp.parameter_groups(model, weight_decay=0.01)
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(2, 0.01), (1, 0.0)]
    >>> optimizer = torch.optim.AdamW(groups, lr=1e-3)
    """
    layers = (TensorProjection, TransposeTensorProjection)
    Ws = {id(W): W for m in model.modules() if isinstance(m, layers) for W in m.parameters()}
    others = [p for p in model.parameters() if id(p) not in Ws]
    return [
        {"params": others, "weight_decay": weight_decay},
        {"params": list(Ws.values()), "weight_decay": 0.0},
    ]


def check_orthonormal(U: Tensor, name: str, tolerance: float = 1e-3) -> None:
    """Refuse a U whose columns are not orthonormal, and report by how much."""
    A = in_float64(U.detach())
    error = (A.mT @ A - torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)).abs().max().item()
    if not error <= tolerance:
        raise ProjectionValueError(
            f"Expected {name} with orthonormal columns, got |UᵀU - I| up to {error:.2g}."
        )


def _empty(
    shape: tuple[int, int], device: torch.device | str | int | None, dtype: torch.dtype | None
) -> Tensor:
    if dtype is not None and not dtype.is_floating_point:
        raise ProjectionTypeError(f"Expected a real floating-point dtype, got {dtype}.")
    return torch.empty(shape, device=device, dtype=dtype)


def _same_for_all(values: tuple[Any, ...]) -> Any:
    return values[0] if len(set(values)) == 1 else values
