"""The U's of a layer in eval mode, for torch.export.

Note [U in an exported graph]
    An exporter puts stand-ins without values in the parameters' place. Where a stand-in is simply
    that of a parameter, U is computed from the parameter's values, by real arithmetic, and is a
    constant of the graph. Where W is itself computed (a hypernetwork, a parametrization), so is U,
    by operations that every runtime knows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..algebra.polar import polar_by_svd
from ..engine import torch_private
from ..engine.layout import Matrices
from ..engine.tracing import in_dynamo, is_strict_parameter

# U of the W of that number: as it is, or of these values.
OfParameter = Callable[[int, torch.dtype], Tensor]
OfValues = Callable[[int, Tensor, torch.dtype], Tensor]


def exported_projections(
    Ws: Matrices,
    eps: tuple[float, ...],
    relative: bool,
    dtype: torch.dtype,
    of_parameter: OfParameter,
    of_values: OfValues,
) -> list[Tensor | None]:
    """The U's by mode; ``of_parameter`` is a constant to Dynamo, ``of_values`` an ordinary call."""
    Us: list[Tensor | None] = []
    for k, W in enumerate(Ws, start=1):
        if W is None:
            Us.append(None)
        elif is_strict_parameter(W):
            Us.append(of_parameter(k, dtype))
        else:
            real = None if in_dynamo() else torch_private.real_tensor(W)
            if real is not None:
                with torch_private.without_modes():
                    Us.append(of_values(k, real.detach(), dtype))
            else:
                Us.append(polar_by_svd(W, eps[k - 1], relative, dtype))
    return Us
