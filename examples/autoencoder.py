"""A linear autoencoder with tied weights, without labels, against MPCA at the same dimensions.

The encoder is a TensorProjection, the decoder its transpose with the same W's, trained on the mean
squared error of OCT phantoms less their mean. MPCA solves the same problem directly, by alternating
eigendecompositions. On the training images its error is the one to reach: gradient descent has not
converged as long as the autoencoder's error is larger.

    python examples/autoencoder.py                  # prints the errors, draws autoencoder.png
    python examples/autoencoder.py --sides 12 12    # a smaller code

It needs the studies' packages: pip install ".[studies,sklearn]".
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import torch
from torch import Tensor, nn

import tensorprojection as tp
from tensorprojection.studies.data.phantoms import oct_phantoms

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def images(n: int, seed: int) -> Tensor:
    """Return phantoms in 0 … 1."""
    return torch.from_numpy(oct_phantoms(n, seed).images).float() / 255


def train(model: nn.Module, x: Tensor, epochs: int, batch: int = 50) -> None:
    """Run Adam on the mean squared error, with a learning rate that falls to 0."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = epochs * -(-len(x) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), x[rows]).backward()
            optimizer.step()
            schedule.step()


def lost(x: Tensor, reconstructed: Tensor) -> float:
    """Return the share of the images' variation about the mean that the reconstruction lacks."""
    return ((x - reconstructed).square().sum() / x.square().sum()).item()


def draw(path: Path, columns: dict[str, Tensor]) -> None:
    """Draw one row per image and one column per method, all on one grey scale."""
    rows = len(next(iter(columns.values())))
    size = (2.2 * len(columns), 2.2 * rows + 0.3)
    figure, axes = plt.subplots(rows, len(columns), figsize=size, squeeze=False)
    for j, (title, pictures) in enumerate(columns.items()):
        axes[0, j].set_title(title, fontsize=10)
        for i, picture in enumerate(pictures):
            axes[i, j].imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1)
            axes[i, j].set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A tied autoencoder against MPCA, on phantoms.")
    parser.add_argument("--sides", type=int, nargs=2, default=[24, 24], help="of the code")
    parser.add_argument("--train", type=int, default=1000, help="phantoms to train on")
    parser.add_argument("--test", type=int, default=300, help="phantoms held out")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("autoencoder.png"))
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    seen, held_out = images(options.train, seed=0), images(options.test, seed=1)
    mean = seen.mean(0)
    seen, held_out = seen - mean, held_out - mean
    shape, code = tuple(mean.shape), tuple(options.sides)

    encoder = tp.TensorProjection(shape, code, init="orthogonal")
    autoencoder = nn.Sequential(encoder, encoder.transpose(tied=True))
    start = lost(held_out, autoencoder(held_out))
    train(autoencoder, seen, options.epochs)
    mpca = tp.MPCA(n_components=code, center=False).fit(seen)

    def by_mpca(x: Tensor) -> Tensor:
        reconstructed: Tensor = mpca.inverse_transform(mpca.transform(x))
        return reconstructed

    with torch.no_grad():
        print(f"{len(seen)} phantoms of {shape} to a code of {code}; the share of their variation")
        print("that is lost:        training  held out")
        print(f"  random projection            {start:9.5f}")
        for name, both in (("tied autoencoder", autoencoder), ("MPCA", by_mpca)):
            errors = lost(seen, both(seen)), lost(held_out, both(held_out))
            print(f"  {name:17} {errors[0]:10.5f} {errors[1]:9.5f}")
        four = held_out[:4]
        columns = {"phantom": four, "autoencoder": autoencoder(four), "MPCA": by_mpca(four)}
        draw(options.out, {title: x + mean for title, x in columns.items()})
    print(f"pictures: {options.out}")


if __name__ == "__main__":
    main()
