"""Kept networks on images that they never saw, as the results of a run: same table, same page."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from ..data.images import ImageSet
from ..data.sources import open_images
from ..errors import StudyError
from ..files import write_whole
from ..inputs import Rows
from ..registry import find_study
from ..results import HELD_OUT, UnitFiles, write_results
from ..samples import write_samples
from ..trial.observer import Observer
from ..trial.precision import output_of
from .deploy import BATCH, pixels
from .networks import KeptNetwork, check_is_run, load_network, run_config, trials_of

CHUNK = 4 * BATCH


@dataclass(frozen=True)
class HeldOutData:
    """Images that nothing was trained on, as pixels, and their classes or masks."""

    images: ImageSet

    def sides(self, trial: int) -> tuple[Rows, Rows]:
        return np.arange(0), np.arange(len(self.images))

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        x = pixels(np.asarray(self.images.images[rows]))
        if self.images.labels is not None:
            return x, torch.from_numpy(np.asarray(self.images.labels[rows]))
        assert self.images.masks is not None
        return x, torch.from_numpy(np.asarray(self.images.masks[rows]))[:, None].float()


def evaluate(
    run: Path, data: Path, out: Path, progress: Callable[[int, int], None] = lambda n, of: None
) -> Path:
    """Measure every network of the run on these images; returns the folder of the results.

    The folder is like that of a run of one epoch, which is the one that each network was kept at.

    Args:
        run: the folder of the run.
        data: images, as ``tpl run`` takes them.
        out: a folder that is not there yet.
        progress: called with the number of images done and of all.
    """
    check_is_run(run)
    if out.exists():
        raise StudyError(f"{out} is there already. Remove it, or choose another `out`.")
    config = run_config(run)
    study = find_study(config.study)
    opened = open_images(study.images, data, size=config.size)
    networks = [
        load_network(run, model, trial)
        for model in config.models
        for trial in trials_of(run, model)
    ]
    if not networks:
        raise StudyError(f"Expected kept networks in {run}, got none.")
    _check_classes(networks[0], opened.images)
    # Nothing but predictions is looked at: the layers are those of the run's own page.
    observers = [
        Observer(nn.Identity(), UnitFiles.of(out, kept.about.trial - 1, kept.about.model).observed)
        for kept in networks
    ]
    held_out = HeldOutData(opened.images)
    measured = _measure(networks, observers, held_out, progress)
    rows = []
    for kept, metrics in zip(networks, measured, strict=True):
        about = kept.about
        named = {"study": study.name, "model": about.model, "trial": about.trial, "epoch": 1}
        then = {"train_loss": about.metrics["train_loss"], "kept_at_epoch": about.epoch}
        rows.append({**named, **metrics, **then, "code": about.code})
    out.mkdir(parents=True)
    for observer in observers:
        observer.file.parent.mkdir(parents=True, exist_ok=True)
        observer.keep(1, held_out, np.arange(len(opened.images)))
    # One set of images for all trials, which is what this split stands for.
    own = {"split": "as-shipped", "epochs": 1, "data": str(data)}
    write_whole(out / "config.toml", config.model_copy(update=own).as_toml())
    write_whole(out / HELD_OUT, data.name.encode())
    write_results(out, pl.DataFrame(rows))
    write_samples(out, opened.images)
    return out


def _check_classes(kept: KeptNetwork, images: ImageSet) -> None:
    """Numbers of classes mean the same; their order may be another in another file."""
    if images.labels is not None and tuple(images.class_names) != kept.about.class_names:
        raise StudyError(
            f"Expected the classes {', '.join(kept.about.class_names)} in this order, as in the "
            f"images of the run, got {', '.join(images.class_names)}."
        )


def _measure(
    networks: list[KeptNetwork],
    observers: list[Observer],
    data: HeldOutData,
    progress: Callable[[int, int], None],
) -> list[dict[str, float]]:
    """All networks at once, as what comes before them may take longer than they do."""
    config = networks[0].about.config
    study = find_study(config.study)
    front = study.front(config).eval()
    metrics = [study.metrics() for _ in networks]
    count = len(data.images)
    with torch.inference_mode(), ExitStack() as looking:
        for observer in observers:
            looking.enter_context(observer.looking())
        for start in range(0, count, CHUNK):
            rows = np.arange(start, min(start + CHUNK, count))
            x, y = data.batch(rows)
            x = front(x)
            for kept, own, observer in zip(networks, metrics, observers, strict=True):
                output = output_of(kept.network, x, config)
                own.update(output, y)
                observer.update(output, y)
            progress(int(rows[-1]) + 1, count)
    return [own.compute() for own in metrics]
