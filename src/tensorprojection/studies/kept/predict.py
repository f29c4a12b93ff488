"""Classes or masks of image files, by a kept or an exported network."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data.decode import UnreadableError, fit, open_image
from ..errors import StudyError
from ..files import write_whole
from .deploy import in_batches, pixels, preprocessing, read_exported, whole
from .networks import load_network

CHUNK = 64  # images in memory at once


@dataclass(frozen=True)
class Predictor:
    """From pixels to logits, and how images become pixels."""

    run: Callable[[Tensor], Tensor]
    known: dict[str, Any]

    @property
    def class_names(self) -> list[str]:
        return list(self.known["class_names"])

    @property
    def masks(self) -> bool:
        return bool(self.known["masks"])


@dataclass(frozen=True)
class Prediction:
    """Of one file: probabilities by class, or the mask at the image's own size."""

    file: Path
    probabilities: tuple[float, ...] = ()
    mask: Image.Image | None = None


def open_predictor(source: Path, model: str | None, trial: int | str) -> Predictor:
    """Of an exported file, or of a run's folder and a network's name."""
    if source.is_dir():
        if model is None:
            raise StudyError(f"Expected `model` beside the folder of a run, {source}, got none.")
        if isinstance(trial, str) and trial != "best":
            raise StudyError(f"Expected a trial's number or best, got {trial!r}.")
        kept = load_network(source, model, "best" if isinstance(trial, str) else trial)
        return Predictor(whole(kept.network, kept.about), preprocessing(kept.about))
    if model is not None or trial != "best":
        raise StudyError(
            f"`model` and `trial` are for the folder of a run; {source} has one network."
        )
    return Predictor(*read_exported(source))


def image_files(given: Sequence[Path]) -> list[Path]:
    """The files that are named, and those in the folders that are named."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        else:
            found.append(path)
    if not found:
        raise StudyError("Expected image files, or folders of them, got none.")
    return found


def predict(
    predictor: Predictor, files: Sequence[Path]
) -> tuple[list[Prediction], list[tuple[Path, str]]]:
    """What the network says of each file, and the files that are no images, with the reason."""
    found: list[Prediction] = []
    unreadable: list[tuple[Path, str]] = []
    for start in range(0, len(files), CHUNK):
        images, read, sizes = [], [], []
        for file in files[start : start + CHUNK]:
            try:
                image = open_image(file.read_bytes())
                images.append(fit(image, predictor.known["size"], predictor.known["mode"]))
            except UnreadableError as error:
                unreadable.append((file, str(error)))
            except OSError as error:
                unreadable.append((file, f"cannot be read ({error.strerror})"))
            else:
                read.append(file)
                sizes.append(image.size)
        if images:
            logits = in_batches(predictor.run, pixels(np.stack(images)))
            found += _told(predictor, logits, read, sizes)
    return found, unreadable


def _told(
    predictor: Predictor, logits: Tensor, files: list[Path], sizes: list[tuple[int, int]]
) -> list[Prediction]:
    if not predictor.masks:
        shares = torch.softmax(logits.double(), dim=1).tolist()
        return [Prediction(f, tuple(p)) for f, p in zip(files, shares, strict=True)]
    masks = [Image.fromarray(np.where(m, 255, 0).astype(np.uint8)) for m in (logits[:, 0] > 0)]
    return [
        Prediction(file, mask=mask.resize(size, Image.Resampling.NEAREST))
        for file, mask, size in zip(files, masks, sizes, strict=True)
    ]


def as_csv(predictor: Predictor, found: Sequence[Prediction]) -> str:
    """A line for each file: its class, and the probability of every class."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["file", "class", *predictor.class_names])
    for p in found:
        best = predictor.class_names[int(np.argmax(p.probabilities))]
        writer.writerow([p.file, best, *(f"{share:.6f}" for share in p.probabilities)])
    return buffer.getvalue()


def write_masks(found: Sequence[Prediction], folder: Path) -> list[Path]:
    """Write each mask as ``NAME_mask.png``; a file that is there already is left alone."""
    targets = [folder / f"{p.file.stem}_mask.png" for p in found]
    repeated = {path for path in targets if targets.count(path) > 1}
    if taken := [path for path in targets if path.exists() or path in repeated]:
        why = "two images would have it" if taken[0] in repeated else "it is there already"
        raise StudyError(f"Could not write {taken[0]}: {why}. Choose another `out`.")
    folder.mkdir(parents=True, exist_ok=True)
    for prediction, target in zip(found, targets, strict=True):
        assert prediction.mask is not None
        buffer = io.BytesIO()
        prediction.mask.save(buffer, "PNG")
        write_whole(target, buffer.getvalue())
    return targets
