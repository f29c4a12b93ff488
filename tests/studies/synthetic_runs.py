"""Runs for tests of the page: made of random numbers in a moment, in the files of real ones."""

import io
from pathlib import Path

import numpy as np

from tensorprojection.studies.data.images import ImageSet
from tensorprojection.studies.observed import write_samples
from tensorprojection.studies.registry import STUDIES, config_of
from tensorprojection.studies.results import JobFiles

METRICS = {
    name: ["train_loss", *(metric.name for metric in study.measured)]
    for name, study in STUDIES.items()
}


def synthetic_run(
    folder: Path,
    study="oct",
    models=("base", "tpl1", "tpl2"),
    trials=7,
    epochs=5,
    observed=True,
    class_names=("NORMAL", "CNV", "DME", "DRUSEN"),
    name_of="image",
    channels_of_U=(96, 8),
    **settings,
) -> Path:
    """A run's folder; ``observed`` False for one of an older version."""
    rng = np.random.default_rng(trials * 100 + epochs)
    folder.mkdir(parents=True)
    config = {"study": study, "models": list(models), "trials": trials, "epochs": epochs}
    config = {**STUDIES[study].presets["paper"], **config, **settings}
    (folder / "config.toml").write_bytes(config_of(config).as_toml())
    for trial in range(trials):
        for model in models:
            files = JobFiles.of(folder, trial, model)
            files.lines.parent.mkdir(parents=True, exist_ok=True)
            files.write(
                [
                    {"epoch": epoch}
                    | {metric: float(rng.uniform(0.1, 0.9)) for metric in METRICS[study]}
                    | {"seconds": 1.5, "train_images": 700, "validation_images": 300, "code": "1"}
                    for epoch in range(1, epochs + 1)
                ]
            )
            if observed:
                _observe(files.observed, rng, study, model, epochs, channels_of_U)
    if observed:
        gray = rng.integers(0, 256, (40, 128, 128), dtype=np.uint8)
        names = np.array([f"{name_of}-{k}.png" for k in range(40)])
        if study == "kvasir":
            colour = rng.integers(0, 256, (40, 128, 128, 3), dtype=np.uint8)
            write_samples(folder, ImageSet(colour, masks=gray // 128, names=names))
        else:
            labels = np.arange(40) % 4
            images = ImageSet(gray, labels=labels, class_names=class_names, names=names)
            write_samples(folder, images)
    return folder


def _observe(file: Path, rng, study: str, model: str, epochs: int, channels) -> None:
    arrays = {"epochs": np.arange(1, epochs + 1)}
    if study == "kvasir":
        arrays |= {
            "images": rng.integers(0, 256, (3, 128, 128, 3), dtype=np.uint8),
            "masks": rng.integers(0, 2, (3, 128, 128)).astype(bool),
            "predictions": rng.integers(0, 2, (3, 128, 128)).astype(bool),
            "dice": np.array([0.9, 0.5, 0.1]),
        }
    else:
        arrays["confusion"] = rng.integers(0, 50, (epochs, 4, 4))
    if model != "base":
        arrays["orthogonality/pool4"] = rng.uniform(1e-6, 1e-4, epochs)
        arrays["energy/pool4"] = rng.uniform(0, 1, epochs)
        for mode, shape in ((1, channels), (2, (12, 6)), (3, (12, 6))):
            for kind in ("start", "U"):
                arrays[f"{kind}/pool4/{mode}"] = _orthonormal(rng, shape)
            if mode > 1:
                path = np.stack([_orthonormal(rng, shape) for _ in range(epochs)])
                arrays[f"by_epoch/pool4/{mode}"] = path
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    file.write_bytes(buffer.getvalue())


def _orthonormal(rng, shape):
    noise = rng.normal(size=shape)
    # Tall noise is nearly orthogonal, and its decomposition takes long.
    U = noise / np.sqrt(len(noise)) if len(noise) > 1000 else np.linalg.qr(noise)[0]
    return U.astype(np.float16)
