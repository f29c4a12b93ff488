"""How far apart the MPCA directions of different batches are, by the size of the batches.

    python benchmarks/mpca_batches.py --data oct_96.npz

The features are those before the OCT network's last pooling, of the training images of a trial: of
the initial network, and after some epochs of training with MaxPooling. For each pair of batches,
drawn at random, the largest principal angle between the subspaces of their directions is taken: for
channels (20 of 32) and height (6 of 12), the paper's sizes. It takes minutes.
"""

from __future__ import annotations

import argparse
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from tensorprojection import TensorProjection, init_from_data
from tensorprojection.studies.config import resolve
from tensorprojection.studies.oct import OCT
from tensorprojection.studies.report.tables import markdown
from tensorprojection.studies.training.job import Job
from tensorprojection.studies.training.train import Training, batches, set_up, train_epoch

SIZES = (16, 32, 64, 128, 300, 600)
BATCHES = 16  # of each size: 120 pairs
MODES = {"channels": 1, "height": 2}
LAYER = "relu4"


def features(now: Training) -> Tensor:
    """Return the features of all training images, as the network's last pooling receives them."""
    found: list[Tensor] = []
    handle = now.network.get_submodule(LAYER).register_forward_hook(
        lambda _, __, output: found.append(output)
    )
    now.network.eval()
    with torch.no_grad():
        for x, _ in batches(now.data, now.rows.train, now.config):
            now.network(x)
    handle.remove()
    return torch.cat(found)


def directions(x: Tensor) -> list[Tensor]:
    """Return the MPCA directions of a batch, as the network ``mpca-batch`` computes them."""
    shape = tuple(x.shape[1:])
    layer = TensorProjection(shape, (20, shape[1] // 2, shape[2] // 2))
    init_from_data(layer, x, sweeps=1)
    Us: list[Tensor] = [U.detach() for U in layer.projections()]
    return Us


def angle(U: Tensor, V: Tensor) -> float:
    """Return the largest principal angle between two subspaces in degrees."""
    cosine = torch.linalg.svdvals(U.double().mT @ V.double())[-1].clamp(max=1)
    return float(torch.rad2deg(torch.acos(cosine)))


def angles(x: Tensor, size: int, draw: np.random.Generator) -> dict[str, list[float]]:
    """Return the quartiles of the angles of all pairs of random batches, by mode."""
    drawn = [directions(x[draw.permutation(len(x))[:size]]) for _ in range(BATCHES)]
    found = {}
    for name, mode in MODES.items():
        each = [angle(one[mode - 1], two[mode - 1]) for one, two in combinations(drawn, 2)]
        found[name] = np.quantile(each, (0.25, 0.5, 0.75)).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="images of the OCT study")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    config = resolve(OCT, "paper", None, {"data": options.data, "split": "patient", "batch": 64})
    inputs = OCT.prepare(config, 1, lambda what, done, of: None)
    now = set_up(Job(0, "base"), OCT, config, OCT.open(config, inputs))
    columns: dict[str, list[str]] = {"batch": [str(size) for size in SIZES]}
    for epochs in (0, options.epochs):
        for epoch in range(1, epochs + 1):
            train_epoch(now, epoch)
        x = features(now)
        found = [angles(x, size, np.random.default_rng(size)) for size in SIZES]
        for mode in MODES:
            quartiles = (each[mode] for each in found)
            title = f"{mode}, after {epochs} epochs" if epochs else f"{mode}, initial network"
            columns[title] = [f"{q[1]:.0f}° [{q[0]:.0f}–{q[2]:.0f}]" for q in quartiles]
    pairs = BATCHES * (BATCHES - 1) // 2
    print(f"Features of {len(x)} images; medians and quartiles of {pairs} pairs of batches.")
    print(markdown(list(columns), list(zip(*columns.values(), strict=True)), texts=0))


if __name__ == "__main__":
    main()
