"""Estimate the time of the chest study's 30 trials, with cached and with recomputed features.

It measures an epoch of the head on cached features, and the frozen network on some of the images.
Both totals are extrapolated: recomputing everything would take days. The weights do not change the
time, so DenseNet121 has random ones.

    python benchmarks/chest_cache.py --data chest_160.npz
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch

from tensorprojection.studies.chest import CHEST
from tensorprojection.studies.config import resolve
from tensorprojection.studies.networks.backbones import BATCH, backbone, features_of
from tensorprojection.studies.training.job import Epoch, Job
from tensorprojection.studies.training.train import train


def random_densenet121(folder: Path) -> Path:
    """Write random weights of DenseNet121 to a file that the study reads; returns the file."""
    from monai.networks.nets import DenseNet121

    path = folder / "densenet121.pth"
    state = DenseNet121(spatial_dims=2, in_channels=3, out_channels=1000).features.state_dict()
    names = {name: f"features.{name.replace('.layers.', '.')}" for name in state}
    torch.save({names[name]: value for name, value in state.items()}, path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="phantoms")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        weights = None
        if options.backbone == "densenet121":
            weights = str(random_densenet121(Path(folder)))
        flags = {
            "data": options.data,
            "backbone": options.backbone,
            "weights": weights,
            "epochs": options.epochs,
        }
        config = resolve(CHEST, "paper", None, flags)
        started = time.perf_counter()
        inputs = CHEST.prepare(config, 2, lambda *_: None)
        print(
            f"preparing, from the cache where it was there: {time.perf_counter() - started:.1f} s"
        )
        data = CHEST.open(config, inputs)
        network = backbone(options.backbone, None if weights is None else Path(weights))
        some = data.originals.images[: 4 * BATCH]
        features_of(network, some)
        ends: dict[str, list[float]] = {}
        features = []
        for model in config.models:  # in turns with the frozen network
            times = ends.setdefault(model, [])
            train(
                Job(0, model),
                CHEST,
                config,
                data,
                lambda e, times=times: (
                    times.append(time.perf_counter()) if isinstance(e, Epoch) else None
                ),
            )
            started = time.perf_counter()
            features_of(network, some)
            features.append((time.perf_counter() - started) / len(some))
    training, validation, _ = data.split(0)
    images = len(training) + len(validation)
    every = len(data.features)
    head = sum(median(np.diff(times)) for times in ends.values())  # an epoch of both models
    image = median(features)
    cached = every * image + 30 * 20 * head
    anew = 30 * 20 * (head + len(ends) * images * image)
    print(f"frozen network: {1 / image:.0f} images/s; heads: {head:.2f} s for an epoch of both")
    print(
        f"30 trials × 20 epochs × {len(ends)} models, one core: {cached / 60:.0f} min with the "
        f"cache, {anew / 3600:.0f} h without: {anew / cached:.0f} ×"
    )


if __name__ == "__main__":
    main()
