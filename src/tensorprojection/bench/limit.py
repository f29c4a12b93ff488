"""The machine's limit for a case: least arithmetic at the GEMM rate, least traffic at the copy
rate, whichever takes longer. Both rates are measured in the run they are used in."""

from __future__ import annotations

from itertools import permutations
from math import prod

import torch
from torch import Tensor

from .cases import Case


def gemm(n: int = 1024) -> tuple[Tensor, Tensor]:
    return torch.randn(n, n), torch.randn(n, n)


def least_flops(case: Case) -> float:
    """Of forward and backward: three times the cheapest order of single-mode products."""
    large, small = sorted((case.source, case.target), key=prod, reverse=True)
    touched = [k for k in range(3) if large[k] != small[k]]
    best = float("inf")
    for order in permutations(touched):
        sizes, flops = list(large), 0.0
        for k in order:
            flops += 2.0 * prod(sizes) * small[k]
            sizes[k] = small[k]
        best = min(best, flops)
    return 3 * best * case.batch


def least_bytes(case: Case) -> float:
    """Input read twice and its gradient written, output written and its gradient read."""
    return 4.0 * case.batch * (3 * prod(case.source) + 2 * prod(case.target))


def limit_seconds(case: Case, gemm_seconds: float, gemm_size: int, copy_seconds: float) -> float:
    """The limit, from the times of one GEMM of that size and of one copy of the larger tensor."""
    flop_rate = 2.0 * gemm_size**3 / gemm_seconds
    larger = max(prod(case.source), prod(case.target))
    byte_rate = 2 * 4.0 * case.batch * larger / copy_seconds
    return max(least_flops(case) / flop_rate, least_bytes(case) / byte_rate)
