"""The machine's limit for a case: least arithmetic at the GEMM rate, least traffic at the copy
rate, whichever takes longer. Both rates are measured in the run they are used in."""

from __future__ import annotations

from itertools import permutations
from math import prod

import torch
from torch import Tensor

from .cases import TRAIN, Case


def gemm(n: int = 1024) -> tuple[Tensor, Tensor]:
    return torch.randn(n, n), torch.randn(n, n)


def least_flops(case: Case, task: str = TRAIN) -> float:
    """Of the cheapest order of single-mode products; of forward and backward, three times that."""
    large, small = sorted((case.source, case.target), key=prod, reverse=True)
    touched = [k for k in range(len(large)) if large[k] != small[k]]
    best = float("inf")
    for order in permutations(touched):
        sizes, flops = list(large), 0.0
        for k in order:
            flops += 2.0 * prod(sizes) * small[k]
            sizes[k] = small[k]
        best = min(best, flops)
    return (3 if task == TRAIN else 1) * best * case.batch


def least_bytes(case: Case, task: str = TRAIN) -> float:
    """Input read and output written; in training, the input read again, both gradients as well."""
    inputs, outputs = (3, 2) if task == TRAIN else (1, 1)
    return 4.0 * case.batch * (inputs * prod(case.source) + outputs * prod(case.target))


def limit_seconds(
    case: Case, task: str, gemm_seconds: float, gemm_size: int, copy_seconds: float
) -> float:
    """The limit, from the times of one GEMM of that size and of one copy of the larger tensor."""
    flop_rate = 2.0 * gemm_size**3 / gemm_seconds
    larger = max(prod(case.source), prod(case.target))
    byte_rate = 2 * 4.0 * case.batch * larger / copy_seconds
    return max(least_flops(case, task) / flop_rate, least_bytes(case, task) / byte_rate)
