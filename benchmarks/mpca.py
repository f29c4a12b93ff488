"""Time MPCA and TensorLy's partial Tucker decomposition on the same data, ranks and sweeps.

    python benchmarks/mpca.py
    python benchmarks/mpca.py --sweeps 5 --rounds 7 --json runs/mpca.json

The contenders take turns, so that other load on the machine affects both. A ratio is the median
over rounds of TensorLy's time / MPCA's in the same round, with its smallest and largest. Set
OMP_NUM_THREADS=1 on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import tensorly
import torch
from tensorly.decomposition import partial_tucker

import tensorprojection as tp

SHAPE, RANKS = (32, 32, 16), (16, 16, 8)


def data(samples: int) -> np.ndarray:
    """Return smooth random tensors plus noise, float32, centred."""
    random = np.random.default_rng(0)
    x = random.standard_normal((samples, *SHAPE), dtype=np.float32)
    for axis, size in enumerate(SHAPE, start=1):
        decay = (1.0 / np.arange(1, size + 1)).astype(np.float32)
        mixing = np.linalg.qr(random.standard_normal((size, size)))[0].astype(np.float32)
        x = np.moveaxis(np.moveaxis(x, axis, -1) * decay @ mixing, -1, axis)
    x += 0.01 * random.standard_normal(x.shape, dtype=np.float32)
    return np.ascontiguousarray(x - x.mean(0))


def by_mpca(x: np.ndarray, sweeps: int) -> float:
    mpca = tp.MPCA(RANKS, max_iter=sweeps, tol=0.0).fit(x)
    assert mpca.n_iter_ == sweeps, f"{mpca.n_iter_} sweeps, not {sweeps}"
    return float(mpca.captured_energy_ratio_)


def by_tensorly(x: np.ndarray, sweeps: int, backend: str) -> float:
    with tensorly.backend_context(backend):
        tensor = tensorly.tensor(x)
        (core, _), _ = partial_tucker(
            tensor, rank=RANKS, modes=[1, 2, 3], n_iter_max=sweeps, init="svd", tol=0
        )
    return _energy(np.asarray(core)) / _energy(x)


def _energy(x: np.ndarray) -> float:
    return float(np.square(x, dtype=np.float64).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--sweeps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    x, sweeps = data(options.samples), options.sweeps
    contenders: dict[str, Callable[[], float]] = {
        "MPCA": lambda: by_mpca(x, sweeps),
        "TensorLy, NumPy": lambda: by_tensorly(x, sweeps, "numpy"),
        "TensorLy, torch": lambda: by_tensorly(x, sweeps, "pytorch"),
    }
    energies = {name: run() for name, run in contenders.items()}  # the first calls, not timed
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)

    shape = " × ".join(map(str, (options.samples, *SHAPE)))
    print(
        f"{shape} float32 -> {RANKS}, {sweeps} sweeps, {options.rounds} rounds, "
        f"{torch.get_num_threads()} threads"
    )
    result = {}
    for name, seconds in times.items():
        ratios = [s / ours for s, ours in zip(seconds, times["MPCA"], strict=True)]
        result[name] = {
            "seconds": median(seconds),
            "ratio": median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
            "energy": energies[name],
        }
        print(
            f"{name:16} {median(seconds):8.3f} s   {median(ratios):6.1f} times MPCA's "
            f"({min(ratios):.1f} to {max(ratios):.1f})   energy kept {energies[name]:.7f}"
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
