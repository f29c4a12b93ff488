"""Runs for tests of the page: made of random numbers in a moment, in the files of real ones."""

from pathlib import Path

import numpy as np

from tensorprojection.studies.registry import STUDIES, config_of
from tensorprojection.studies.results import JobFiles
from tensorprojection.studies.training.observer import encode_observed

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
                names = (epochs, class_names, channels_of_U)
                files.observed.write_bytes(_observed(rng, study, model, *names))
    return folder


def _observed(rng, study: str, model: str, epochs: int, class_names, channels) -> bytes:
    if study == "kvasir":
        arrays = {
            "images": rng.integers(0, 256, (3, 128, 128, 3), dtype=np.uint8),
            "masks": rng.integers(0, 2, (3, 128, 128)).astype(bool),
            "predictions": rng.integers(0, 2, (3, 128, 128)).astype(bool),
            "dice": np.array([0.9, 0.5, 0.1]),
        }
    else:
        arrays = {"confusion_matrix": rng.integers(0, 50, (4, 4)), "class_names": class_names}
    if model != "base":
        for mode, shape in ((1, channels), (2, (12, 6)), (3, (12, 6))):
            for kind in ("start", "U"):
                arrays[f"{kind}/pool4/{mode}"] = _orthonormal(rng, shape)
    return encode_observed(epochs, arrays)


def _orthonormal(rng, shape):
    noise = rng.normal(size=shape)
    # Tall noise is nearly orthogonal, and its decomposition takes long.
    U = noise / np.sqrt(len(noise)) if len(noise) > 1000 else np.linalg.qr(noise)[0]
    return U.astype(np.float16)
