"""Measure the errors of U and its gradient with matrix products only, as on accelerators.

    python benchmarks/device_accuracy.py

For each condition of W it prints the worst over scales of W of 1e-3, 1 and 1e3, both kinds of ε
and some sizes: the largest error of an entry of U, and the relative error of dL/dW, both before any
rounding to float32. The reference is NumPy's singular value decomposition of W in float64, which
never squares the condition; `tests/ops/test_polar.py` compares it with 60 digits.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from numpy.typing import NDArray

from tensorprojection.ops.matmul_only import polar_gradients, polar_values

Matrix = NDArray[np.float64]

SIZES = [(12, 6), (20, 1), (32, 31), (64, 64), (256, 64)]
CONDITIONS = [10.0**k for k in range(7)]
SCALES = [1e-3, 1.0, 1e3]
EPS = {"absolute": 1e-3, "relative": 1e-5}


def with_condition(p: int, q: int, condition: float, scale: float) -> Matrix:
    random = np.random.default_rng(0)
    left = np.linalg.qr(random.standard_normal((p, q)))[0]
    right = np.linalg.qr(random.standard_normal((q, q)))[0]
    sigma = scale * np.logspace(0, -np.log10(condition), q)
    return (left * sigma @ right).astype(np.float32).astype(np.float64)


def exact(W: Matrix, D: Matrix, eps: float, relative: bool) -> tuple[Matrix, Matrix]:
    """Return U, and dL/dW for D = dL/dU, from W's singular value decomposition."""
    left, sigma, right = np.linalg.svd(W, full_matrices=False)
    q = len(sigma)
    s = np.sqrt(sigma**2 + eps**2 * (np.mean(sigma**2) if relative else 1.0))
    C = right @ (W.T @ D) @ right.T
    grad_M = -right.T @ (C / (np.outer(s, s) * np.add.outer(s, s))) @ right
    grad = D @ (right.T / s @ right) + W @ (grad_M + grad_M.T)
    if relative:
        grad += np.trace(grad_M) * eps**2 / q * 2 * W
    return left * (sigma / s) @ right, grad


def errors(p: int, q: int, condition: float, scale: float, eps_mode: str) -> tuple[float, float]:
    """Return the largest error of an entry of U, and the relative error of the gradient."""
    W = with_condition(p, q, condition, scale)
    D = np.random.default_rng(1).standard_normal((p, q))
    eps, relative = EPS[eps_mode], eps_mode == "relative"
    Ws, Ds = [torch.from_numpy(W)], [torch.from_numpy(D)]
    U, *saved = polar_values(Ws, [eps], relative, torch.float64)
    (grad,) = polar_gradients(Ws, Ds, saved, [eps], relative)
    U_exact, grad_exact = exact(W, D, eps, relative)
    of_grad = np.linalg.norm(grad.numpy() - grad_exact) / np.linalg.norm(grad_exact)
    return float(np.abs(U.numpy() - U_exact).max()), float(of_grad)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    print(f"{'condition':>9}  {'U':>8}  {'gradient':>8}")
    for condition in CONDITIONS:
        found = [
            errors(p, q, condition, scale, eps_mode)
            for p, q in SIZES
            for scale in SCALES
            for eps_mode in EPS
        ]
        of_U, of_grad = (max(column) for column in zip(*found, strict=True))
        print(f"{condition:9.0e}  {of_U:8.1e}  {of_grad:8.1e}")


if __name__ == "__main__":
    main()
