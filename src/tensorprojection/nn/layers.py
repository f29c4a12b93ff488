"""TensorProjection (Eq. 1) and TransposeTensorProjection (Eq. 13): plain modules that hold W."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Never, TypeVar

import torch
from torch import Tensor, fx, nn

from ..algebra.multilinear import back_project, project
from ..algebra.polar import polar
from ..algebra.starts import INITS, check_scale
from ..engine import torch_private
from ..engine.device.flag import DeviceFlag
from ..engine.dispatch import by_products
from ..engine.dtypes import back_like, check_input, in_float64, map_dtype
from ..engine.interface import LayerOptions
from ..engine.layout import Matrices
from ..engine.tracing import in_compiler, in_jit_trace, is_exported
from ..eps import EpsMode, check_eps
from ..errors import ProjectionTypeError, ProjectionValueError
from ..shapes import Shape, complete, per_mode, read_shape
from .compiled import can_be_one_operator, project_by_weights, run_as_operator
from .distributed import gathered, is_distributed, run_distributed
from .eval_cache import CachedProjections, may_keep, renew
from .exported import exported_projections
from .frozen import FrozenProjection
from .fused import can_be_one_node

Other = TypeVar("Other", bound="_Projection")


class _Projection(nn.Module):
    """What the two layers share: the W's, the U's made of them, and methods to inspect them."""

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
        init: str | Sequence[str] = "normal",
        init_scale: float | Sequence[float] = 1.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        **unknown: Never,
    ) -> None:
        super().__init__()
        if unknown:  # Python's own message would name a class that nobody knows
            raise ProjectionTypeError(
                f"{type(self).__name__} has no option {next(iter(unknown))!r}; its options are "
                "eps, eps_mode, init, init_scale, device and dtype."
            )
        self.in_shape = read_shape("in_shape", in_shape, none_allowed=False)
        out = read_shape("out_shape", out_shape, none_allowed=True)
        self.out_shape = complete(self.in_shape, out, transposed=self.transposed)
        self._read_options(len(self.in_shape), eps, eps_mode, init, init_scale)
        for k, shape in enumerate(self._W_shapes(), start=1):
            W = None if shape is None else nn.Parameter(_empty(shape, device, dtype))
            self.register_parameter(f"W{k}", W)
        self.reset_parameters()

    def _read_options(
        self, order: int, eps: Any, eps_mode: EpsMode, init: Any, init_scale: Any
    ) -> None:
        self.eps_mode: EpsMode = eps_mode
        self.eps = tuple(check_eps(e, eps_mode) for e in per_mode("eps", eps, order))
        self.init: tuple[str, ...] = per_mode("init", init, order)
        for start in self.init:
            if start not in INITS:
                raise ProjectionValueError(
                    f"Expected init to be one of {', '.join(map(repr, INITS))}, got {start!r}."
                )
        self.init_scale = tuple(map(check_scale, per_mode("init_scale", init_scale, order)))
        self._names = tuple(f"W{k}" for k in range(1, order + 1))
        self._kept: CachedProjections | None = None
        self._flag = DeviceFlag()

    def _W_shapes(self) -> list[tuple[int, int] | None]:
        """Shape (larger, smaller) of each W; None for a mode left alone."""
        return [
            None if p == q else (max(p, q), min(p, q))
            for p, q in zip(self.in_shape, self.out_shape, strict=True)
        ]

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.init)

    @property
    def Ws(self) -> list[Tensor | None]:
        """The parameters by mode, None for a mode left alone.

        Read as attributes, so that a parametrization of W, or a replica of the layer, is seen.
        """
        return [getattr(self, name) for name in self._names]

    def reset_parameters(self) -> None:
        """Start every W anew, as ``init`` says."""
        for k in range(1, self.order + 1):
            self._start(k)

    def _start(self, k: int) -> None:
        W = getattr(self, f"W{k}")
        if W is not None:
            INITS[self.init[k - 1]](W)
            if self.init_scale[k - 1] != 1:
                with torch.no_grad():
                    W.mul_(self.init_scale[k - 1])

    def projections(self, dtype: torch.dtype | None = None) -> list[Tensor | None]:
        """The U's by mode (``larger × smaller``, orthonormal columns), None for a mode left alone.

        They are differentiable functions of the W's.
        """
        return self._projections(self.Ws, dtype)

    def _projections(self, Ws: Matrices, dtype: torch.dtype | None) -> list[Tensor | None]:
        self._check_Ws(Ws)
        Ws = gathered(Ws)  # see Note [W is gathered]
        return [None if W is None else self._polar(k, W, dtype) for k, W in enumerate(Ws, start=1)]

    def _polar(self, k: int, W: Tensor, dtype: torch.dtype | None) -> Tensor:
        return polar(W, self.eps[k - 1], eps_mode=self.eps_mode, dtype=dtype, name=f"W{k}")

    def forward(self, x: Tensor) -> Tensor:
        if in_compiler():
            Ws = self.Ws
            if can_be_one_operator(x, Ws, self.in_shape, self._W_shapes()):
                relative = self.eps_mode == "relative"
                options = (self.transposed, self.eps, relative)
                return run_as_operator(x, Ws, *options, training=self.training)
        if isinstance(x, fx.Proxy):
            return self._as_leaf(x)
        with torch_private.without_jit_trace():  # a comparison of sizes is no part of a trace
            check_input(x, self.in_shape)
        Ws = self.Ws
        self._check_device(x, Ws)
        if is_distributed(x):
            return run_distributed(self._forward, x, Ws, self.order)
        return self._forward(x, gathered(Ws))

    def _forward(self, x: Tensor, Ws: Matrices) -> Tensor:
        if can_be_one_node(x, Ws) and not self._keeps(Ws):
            self._check_Ws(Ws)
            return project_by_weights(x, Ws, self._options(Ws))
        Us = self._matrices(Ws, map_dtype(x))
        return back_project(x, Us) if self.transposed else project(x, Us)

    def _options(self, Ws: Matrices) -> LayerOptions:
        options = LayerOptions(self.transposed, self.eps, self.eps_mode, self._names)
        if in_compiler() or not by_products(*Ws):
            return options
        self._flag.check()
        return options._replace(flag=self._flag)

    def _as_leaf(self, x: fx.Proxy) -> Any:
        """One call of a module in a graph of torch.fx, as torch's own layers are."""
        tracer: Any = x.tracer
        if tracer.root is self:
            raise ProjectionTypeError(
                "torch.fx traces a model that contains this layer, or the layer after freeze(), "
                "not the layer alone."
            )
        return tracer.create_proxy("call_module", tracer.path_of_module(self), (x,), {})

    def _check_device(self, x: Tensor, Ws: Matrices) -> None:
        for k, W in enumerate(Ws, start=1):
            if W is not None and W.device != x.device:
                raise ProjectionTypeError(
                    f"Expected the input and the layer on one device, got the input on {x.device} "
                    f"and W{k} on {W.device}."
                )

    def _check_Ws(self, Ws: Matrices) -> None:
        """Somebody may have assigned another W."""
        for k, (W, shape) in enumerate(zip(Ws, self._W_shapes(), strict=True), start=1):
            found = None if W is None else tuple(W.shape)
            if found != shape:
                raise ProjectionValueError(
                    f"Expected W{k} of shape {shape} for a layer {self.in_shape} -> "
                    f"{self.out_shape}, got {found}."
                )

    # Keeping U: see Note [When U is kept] in eval_cache.py.

    def _matrices(self, Ws: Matrices, dtype: torch.dtype) -> list[Tensor | None]:
        if self.training:
            return self._projections(Ws, dtype)
        if is_exported():
            options = (self.eps, self.eps_mode == "relative", dtype)
            return exported_projections(Ws, *options, self._constant, self._polar)
        if in_jit_trace():
            with torch_private.without_jit_trace(), torch.no_grad():
                return self._kept_or_new(Ws, dtype)  # a constant of the traced graph
        return self._kept_or_new(Ws, dtype)

    def _keeps(self, Ws: Matrices) -> bool:
        """Whether U is taken from what is kept, or kept from now on."""
        return not self.training and may_keep([W for W in Ws if W is not None])

    def _kept_or_new(self, Ws: Matrices, dtype: torch.dtype) -> list[Tensor | None]:
        present = [W for W in Ws if W is not None]
        if not may_keep(present):
            return self._projections(Ws, dtype)

        def compute(copies: Sequence[Tensor]) -> list[Tensor | None]:
            by_mode = iter(copies)
            return self._projections([None if W is None else next(by_mode) for W in Ws], dtype)

        # Other threads may replace it, so it is read once and written once.
        kept = renew(self._kept, present, (dtype, self.eps, self.eps_mode), compute)
        self._kept = kept
        return kept.Us

    @torch_private.mark_constant
    def _constant(self, k: int, dtype: torch.dtype) -> Tensor:
        """U as Dynamo asks for it: outside of its trace, so W is the parameter itself."""
        with torch_private.without_modes():
            return self._polar(k, getattr(self, f"W{k}").detach(), dtype)

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle starts without the kept U's.
        return {**self.__dict__, "_kept": None}

    def freeze(self) -> FrozenProjection:
        """The layer as it is now, as a constant: no parameters, the U's as buffers."""
        with torch.no_grad():
            Us = self.projections()
        frozen = FrozenProjection(self.in_shape, self.out_shape, Us, transposed=self.transposed)
        return frozen.train(self.training)

    def orthogonality_error(self) -> Tensor:
        """The largest ``‖UᵀU − I‖`` (spectral norm) of all modes.

        In exact arithmetic it is ε²/(σ² + ε²), with σ W's smallest singular value: some 1e-4 with
        the paper's start and ε; 1e-6 or less if orthonormal, or with ``eps_mode="relative"``.
        """
        with torch.no_grad():
            errors = [
                torch.linalg.matrix_norm(
                    U.mT @ U - torch.eye(U.shape[1], dtype=U.dtype, device=U.device), 2
                )
                for U in (None if U is None else in_float64(U) for U in self.projections())
                if U is not None
            ]
        return torch.stack(errors).max() if errors else torch.zeros((), dtype=torch.float64)

    def extra_repr(self) -> str:
        parts = [f"{self.in_shape} -> {self.out_shape}"]
        parts.append(f"eps={_same_for_all(self.eps)}")
        if self.eps_mode != "absolute":
            parts.append(f"eps_mode={self.eps_mode!r}")
        parts.append(f"init={_same_for_all(self.init)!r}")
        if any(scale != 1 for scale in self.init_scale):
            parts.append(f"init_scale={_same_for_all(self.init_scale)}")
        count = sum(W.numel() for W in self.Ws if W is not None)
        parts.append(f"{count:,} parameters")
        return ", ".join(parts)

    def _mirror(self, cls: type[Other], tied: bool) -> Other:
        """The layer that maps the other way, with this one's W's or with its own."""
        Ws = self.Ws
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
    >>> layer
    TensorProjection((32, 12, 12) -> (20, 6, 6), eps=0.001, init='normal', 784 parameters)
    >>> layer(torch.randn(300, 32, 12, 12)).shape
    torch.Size([300, 20, 6, 6])

    Args:
        in_shape: sizes of the feature axes, without batch axes; any number of them. All leading
            axes of an input are batch axes: none, one or several.
        out_shape: the sizes to reach. None, or the input's size, leaves a mode alone: it has no
            parameter then.
        eps: the paper's ε (ε² is added to WᵀW), one number or one per mode. Default 1e-3, the
            paper's; 1e-5 with ``eps_mode="relative"``.
        eps_mode: ``"absolute"``, the paper's, or ``"relative"``: ε² times tr(WᵀW)/q. U hardly
            depends on W's scale. Where what follows does not either (a BatchNorm), nothing holds W
            against a strong weight decay, and an absolute ε in the end eats U's singular values; a
            relative one shrinks along.
        init: the start of W, one name or one per mode: ``"normal"`` (standard deviation 0.05, the
            paper's); ``"orthogonal"``; ``"block"``, average pooling up to a factor; ``"blur"``, the
            closest to anti-aliased pooling, local and smooth; or ``"dct"``, the lowest cosine
            frequencies, so spectral pooling.
        init_scale: multiplies the start, one number or one per mode. U does not depend on it, but
            how fast U turns does: from ``"orthogonal"``, 100 steps of Adam at 1e-3 turned it by
            1.32, 0.75 and 0.26 radians for 0.3, 1 and 3. See ``algebra/starts.py``.
        device, dtype: of the parameters.

    Attributes:
        W1, W2, …: parameters by mode, ``p_k × q_k``; None for a mode left alone.
    """

    transposed = False

    def transpose(self, tied: bool = True) -> TransposeTensorProjection:
        """The up-sampling layer from ``out_shape`` to ``in_shape``.

        With ``tied=True`` it shares this layer's parameters (an autoencoder with tied weights);
        else it has its own, started anew.
        """
        return self._mirror(TransposeTensorProjection, tied)

    def captured_energy(self, x: Tensor) -> Tensor:
        """‖Z‖² / ‖X‖² for each sample: the share of the input that the projection keeps.

        It is 1 for a sample that is all zeros.
        """
        axes = tuple(range(-self.order, 0))
        z = in_float64(self(x)).square().sum(axes)
        total = in_float64(x).square().sum(axes)
        return back_like(torch.where(total == 0, 1.0, z / total), x)

    def reconstruct(self, x: Tensor) -> Tensor:
        """The back-projection of the projection: x as far as the kept subspace holds it."""
        return back_project(self(x), self._matrices(gathered(self.Ws), map_dtype(x)))


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
        """The projection from ``out_shape`` to ``in_shape``, with this layer's W's or its own."""
        return self._mirror(TensorProjection, tied)


def _empty(
    shape: tuple[int, int], device: torch.device | str | int | None, dtype: torch.dtype | None
) -> Tensor:
    if dtype is not None and not dtype.is_floating_point:
        raise ProjectionTypeError(f"Expected a real floating-point dtype, got {dtype}.")
    return torch.empty(shape, device=device, dtype=dtype)


def _same_for_all(values: tuple[Any, ...]) -> Any:
    return values[0] if len(set(values)) == 1 else values
