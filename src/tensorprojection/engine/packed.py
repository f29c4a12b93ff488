"""U, G, V and s of all W's of a layer in two tensors, as the kernels write them.

One after the other, in the order in which the modes lie in memory: the U's in one tensor, G, V and
s of each in the other. Their sizes depend on the W's shapes alone, whoever computed them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .interface import Polar
from .layout import Matrices

Packed = tuple[Tensor, Tensor]
Modes = Sequence[int | None]


def pack(found: Sequence[Polar | None], modes: Modes, like: Tensor) -> Packed:
    """From U, G, V and s by mode; ``like`` says the U's type, and the device if there is no W."""
    present = [polar for k in modes if k is not None and (polar := found[k]) is not None]
    if not present:
        return like.new_empty(0), like.new_empty(0, dtype=torch.float64)
    Us = torch.cat([polar.U.reshape(-1) for polar in present])
    return Us, torch.cat([t.reshape(-1) for polar in present for t in polar[1:]])


def unpack(packed: Packed, Ws: Matrices, modes: Modes) -> list[Polar | None]:
    """U, G, V and s by mode."""
    Us, spectra = packed
    result: list[Polar | None] = [None] * len(Ws)
    entry = number = 0
    for k in modes:
        W = None if k is None else Ws[k]
        if k is None or W is None:
            continue
        p, q = W.shape
        G, V, s = spectra[number : number + (2 * q + 1) * q].split([q * q, q * q, q])
        result[k] = Polar(Us[entry : entry + p * q].view(p, q), G.view(q, q), V.view(q, q), s)
        entry, number = entry + p * q, number + (2 * q + 1) * q
    return result


def packed_sizes(Ws: Matrices) -> tuple[int, int]:
    """How many numbers the two tensors hold."""
    shapes = [W.shape for W in Ws if W is not None]
    return sum(p * q for p, q in shapes), sum((2 * q + 1) * q for _, q in shapes)
