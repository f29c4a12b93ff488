"""Orthogonal weights for any module: the polar factor as a parametrization.

A drop-in replacement for `torch.nn.utils.parametrizations.orthogonal`, on the same machinery,
`torch.nn.utils.parametrize`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.rnn import RNNCellBase
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .eps import EpsMode, check_eps
from .errors import ProjectionValueError
from .nn.cache import EvalCache
from .nn.layers import TensorProjection, TransposeTensorProjection
from .ops.dtypes import back_like, check_floating, gathered, in_float64
from .ops.polar import projections

_TOLERANCE = 1e-3  # for an entry of QᵀQ - I: such a Q is assigned, or a weight kept, as it is

_CONVOLUTIONS = nn.Conv1d | nn.Conv2d | nn.Conv3d
_CONVOLUTIONS |= nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

AnyModule = TypeVar("AnyModule", bound=nn.Module)

__all__ = ["Polar", "orthogonal", "orthogonality_error"]


class Polar(nn.Module):
    r"""A parametrization that replaces W by its polar factor, the nearest orthonormal matrix.

    .. math::
        U = W (W^\top W + \epsilon^2 I)^{-1/2}

    For `torch.nn.utils.parametrize.register_parametrization`. :func:`orthogonal` registers it with
    the right ``blocks`` for each kind of module.

    >>> layer = torch.nn.Linear(8, 3)
    >>> layer = parametrize.register_parametrization(layer, "weight", Polar())
    >>> bool(torch.allclose(layer.weight @ layer.weight.T, torch.eye(3), atol=1e-5))
    True

    At registration W becomes the orthonormal matrix nearest to the current weight. Later,
    ``module.weight = Q`` takes an orthonormal Q and refuses any other.

    Args:
        blocks: the number of matrices that W's rows are split into, each orthonormal by itself; all
            axes of W but the first are flattened into columns. Default None: the last two axes are
            a matrix, and all others are batch axes.
        eps: the paper's ε. Default 1e-5, or 1e-3 with ``eps_mode="absolute"``.
        eps_mode: ``"relative"``, so that U does not depend on W's scale, or ``"absolute"``: see
            :func:`functional.polar`.
    """

    def __init__(
        self,
        *,
        blocks: int | None = None,
        eps: float | None = None,
        eps_mode: EpsMode = "relative",
    ) -> None:
        super().__init__()
        if blocks is not None and not (type(blocks) is int and blocks >= 1):
            raise ProjectionValueError(f"Expected blocks to be 1, 2, … or None, got {blocks!r}.")
        self.blocks = blocks
        self.eps = check_eps(eps, eps_mode)
        self.eps_mode: EpsMode = eps_mode
        self.shape: torch.Size | None = None  # of the weight, known from the registration on
        self._cache = EvalCache()

    def forward(self, W: Tensor) -> Tensor:
        (W,) = gathered([W])  # type: ignore[assignment]
        if self.training:
            return self._polar(W)
        settings = (self.blocks, self.eps, self.eps_mode)
        (U,) = self._cache.get_or_compute([W], settings, lambda Ws: [self._polar(Ws[0])])  # type: ignore[arg-type]
        return U  # type: ignore[return-value]

    def _polar(self, W: Tensor) -> Tensor:
        """Return U = W (WᵀW + ε²I)^(-1/2) for each matrix in W (Eq. 3)."""
        As = self.matrices(W)
        Us = projections(As, [self.eps] * len(As), self.eps_mode == "relative", W.dtype)
        return self._joined(Us, W)

    def matrices(self, W: Tensor) -> list[Tensor]:
        """Return the matrices in W, transposed if they are wide: each has orthonormal columns."""
        As = [W]
        if self.blocks is not None:
            As = list(W.reshape(self.blocks, W.shape[0] // self.blocks, -1).unbind())
        return [A.mT if A.shape[-2] < A.shape[-1] else A for A in As]

    def _joined(self, As: list[Tensor], W: Tensor) -> Tensor:
        """Return the weight, of W's shape, from the matrices that `matrices` returned."""
        A = As[0] if self.blocks is None else torch.stack(As)
        rows = W.shape[-2] if self.blocks is None else W.shape[0] // self.blocks
        return (A if A.shape[-2] == rows else A.mT).reshape(W.shape).contiguous()

    @torch.no_grad()
    def right_inverse(self, Q: Tensor) -> Tensor:
        """Return a W for which forward returns Q: an orthonormal Q is its own polar factor."""
        if self.shape is None:  # the registration: Q is the weight as it is
            self.shape = self._check_weight(Q)
            return Q.clone() if Q.is_meta else self._nearest(Q)
        if Q.shape != self.shape:
            raise ProjectionValueError(
                f"Expected an orthonormal Q of shape {tuple(self.shape)}, got {tuple(Q.shape)}."
            )
        check_floating(Q, "Q")
        error = self._error(Q)
        if not error <= max(_TOLERANCE, 4 * torch.finfo(Q.dtype).eps):
            raise ProjectionValueError(
                f"Expected a Q with orthonormal columns, or rows if it is wide, got |QᵀQ - I| up "
                f"to {error:.2g}. tp.functional.polar returns the orthonormal matrix nearest to Q."
            )
        return Q.clone()

    def _nearest(self, W: Tensor) -> Tensor:
        """Return the orthonormal weight nearest to W, or one of them if W has not full rank."""
        U = self._polar(W)
        if not self._error(U) > _TOLERANCE:  # or NaN, which propagates
            return U
        svds = [torch.linalg.svd(in_float64(A), full_matrices=False) for A in self.matrices(W)]
        return self._joined([back_like(P @ Vh, W) for P, _, Vh in svds], W)

    def _error(self, U: Tensor) -> float:
        errors = [_gram_error(A).abs().max() for A in self.matrices(U)]
        return float(torch.stack(errors).max())  # NaN if one is

    def _check_weight(self, W: Tensor) -> torch.Size:
        check_floating(W, "the weight")
        if W.ndim < 2 or W.numel() == 0:
            raise ProjectionValueError(
                f"Expected a weight of two or more axes, none of size 0, got {tuple(W.shape)}."
            )
        if self.blocks is not None and W.shape[0] % self.blocks:
            raise ProjectionValueError(
                f"Expected rows that can be split into {self.blocks} blocks, got {W.shape[0]} rows."
            )
        return W.shape

    def extra_repr(self) -> str:
        blocks = "" if self.blocks in (None, 1) else f"blocks={self.blocks}, "
        return f"{blocks}eps={self.eps}, eps_mode={self.eps_mode!r}"


def orthogonal(
    module: AnyModule,
    name: str = "weight",
    *,
    blocks: int | None = None,
    eps: float | None = None,
    eps_mode: EpsMode = "relative",
) -> AnyModule:
    """Make a weight of a module orthogonal, and keep it so while it is trained.

    The columns of the weight are orthonormal, or its rows if it has fewer rows than columns. The
    weight becomes ``Polar()`` of a parameter of the same shape, `module.parametrizations`. It
    starts as the orthonormal matrix nearest to the current weight.

    >>> import torch, tensorprojection as tp
    >>> conv = tp.orthogonal(torch.nn.Conv2d(16, 32, 3))
    >>> filters = conv.weight.flatten(1)  # 32 × 144: the rows are orthonormal
    >>> bool(torch.allclose(filters @ filters.T, torch.eye(32), atol=1e-5))
    True
    >>> rotation = tp.orthogonal(torch.nn.Linear(4, 4, bias=False))
    >>> rotation.weight = torch.eye(4)
    >>> gru = tp.orthogonal(torch.nn.GRU(8, 16), "weight_hh_l0")
    >>> float(tp.orthogonality_error(gru)) < 1e-5
    True

    What counts as a matrix depends on the module:

    - Linear, Embedding: the weight.
    - Convolutions, transposed ones too: the weight flattened to ``shape[0] × rest``, each group of
      channels by itself.
    - RNN, LSTM, GRU and their cells: in ``weight_ih…`` and ``weight_hh…``, the block of each gate
      by itself.
    - MultiheadAttention: in ``in_proj_weight`` the blocks of query, key and value by themselves.
    - Any other module: the last two axes; all axes before them are batch axes.

    Args:
        module: it is changed in place.
        name: the parameter or buffer.
        blocks: the number of blocks of rows, each orthogonal by itself, for an own module: 3 for
            the Linear of a fused query, key and value. Default: as above.
        eps, eps_mode: see :func:`functional.polar`. The default, a relative ε of 1e-5, leaves
            the weight orthonormal to about 1e-7 even if weight decay shrinks W.

    Returns:
        The module.

    `torch.nn.utils.parametrize` does the rest: ``remove_parametrizations(module, name)`` leaves a
    plain orthogonal weight, to deploy or export; inside ``cached()``, the weight is computed once
    per block, which an RNN needs: it reads its weight four times per call. A state dict of the
    plain module can be loaded: its weight becomes W.

    The arguments ``orthogonal_map`` and ``use_trivialization`` of torch's function do not exist
    here: there is one map, and it reaches every orthonormal matrix.
    """
    weight = _check_name(module, name)
    if blocks is None:
        blocks = _blocks(module, name, weight)
    parametrization = Polar(blocks=blocks, eps=eps, eps_mode=eps_mode)
    parametrize.register_parametrization(module, name, parametrization)
    module.register_load_state_dict_pre_hook(partial(_load_plain_weight, name))  # type: ignore[no-untyped-call]
    return module


def orthogonality_error(module: nn.Module) -> Tensor:
    """Return the largest ``‖UᵀU − I‖`` (spectral norm) in a module and its children.

    Of all weights that :func:`orthogonal` made orthogonal and all projections of TensorProjection
    layers.

    >>> import torch, tensorprojection as tp
    >>> model = torch.nn.Sequential(tp.orthogonal(torch.nn.Linear(9, 5)), torch.nn.Linear(5, 2))
    >>> float(tp.orthogonality_error(model)) < 1e-6
    True
    """
    errors: list[Tensor] = []
    with torch.no_grad():
        for child in module.modules():
            if isinstance(child, TensorProjection | TransposeTensorProjection):
                errors.append(child.orthogonality_error())
            elif isinstance(child, parametrize.ParametrizationList):
                errors += _errors(child)
    if not errors:
        raise ProjectionValueError(
            f"Expected a module with an orthogonal weight, got {type(module).__name__} without "
            "one: tp.orthogonal(module) makes its weight orthogonal."
        )
    return torch.stack([error.cpu() for error in errors]).max()


def _errors(parametrizations: parametrize.ParametrizationList) -> list[Tensor]:
    """Return the error of each matrix that a `Polar` in the list returns."""
    tensors: list[Tensor] = [*parametrizations.parameters(recurse=False)]
    tensors += parametrizations.buffers(recurse=False)
    errors: list[Tensor] = []
    for step in parametrizations:
        tensors = [step(*tensors)]
        if isinstance(step, Polar):
            for E in map(_gram_error, step.matrices(tensors[0])):
                norm = torch.linalg.matrix_norm(E, 2) if E.isfinite().all() else E.sum()  # NaN
                errors.append(norm.max())
    return errors


def _check_name(module: nn.Module, name: str) -> Tensor:
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        names = [n for n, _ in module.named_parameters(recurse=False)]
        raise ProjectionValueError(
            f"Expected the name of a parameter of {type(module).__name__}, "
            f"{' or '.join(map(repr, names)) or 'which has none'}, got {name!r}."
        )
    if is_lazy(weight):
        raise ProjectionValueError(
            f"This {type(module).__name__} has no shapes yet. Call it once with an input before "
            "tp.orthogonal."
        )
    if getattr(module, "sparse", False):
        raise ProjectionValueError(
            "Expected an Embedding with sparse=False: all of an orthogonal weight has a gradient."
        )
    if parametrize.is_parametrized(module, name) and any(
        isinstance(step, Polar)
        for step in module.parametrizations[name]  # type: ignore[index]
    ):
        raise ProjectionValueError(
            f"{name!r} is orthogonal already. To change its options, call "
            f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}) first."
        )
    return weight


def _blocks(module: nn.Module, name: str, weight: Tensor) -> int | None:
    """Return how many matrices lie below one another in a weight of torch's modules."""
    if isinstance(module, _CONVOLUTIONS):
        return module.groups
    if isinstance(module, nn.RNNBase | RNNCellBase) and name.startswith(("weight_ih", "weight_hh")):
        return weight.shape[0] // module.hidden_size
    if isinstance(module, nn.MultiheadAttention) and name == "in_proj_weight":
        return 3
    return None


def _load_plain_weight(
    name: str, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any
) -> None:
    """Let a state dict of the plain module be loaded: its weight is W."""
    plain, original = f"{prefix}{name}", f"{prefix}parametrizations.{name}.original"
    if parametrize.is_parametrized(module, name) and original not in state_dict:
        state_dict.update({original: state_dict.pop(plain)} if plain in state_dict else {})


def _gram_error(U: Tensor) -> Tensor:
    A = in_float64(U)
    return A.mT @ A - torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
