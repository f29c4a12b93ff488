"""Parameter groups for an optimizer with weight decay."""

from __future__ import annotations

from typing import Any

from torch import nn

from .layers import TensorProjection, TransposeTensorProjection


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
