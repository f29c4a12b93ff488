"""What is measured after each epoch, over a whole validation set that comes in batches.

Both kinds are used alike: ``update`` with each batch, then ``compute``. What is kept between
batches is counts and sums in float64, so the result does not depend on how the set is divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .losses import dice_loss_of_sums, dice_sums


@dataclass(frozen=True)
class Metric:
    """What is measured: its name in a run's rows, its title, and whether more is better.

    >>> Metric("accuracy", "validation accuracy", higher_is_better=True).title
    'validation accuracy'
    """

    name: str
    title: str
    higher_is_better: bool


CLASSIFICATION = (
    Metric("loss", "validation loss", False),
    Metric("accuracy", "validation accuracy", True),
    Metric("f1", "validation F1 score, weighted", True),
)
SEGMENTATION = (
    Metric("loss", "validation loss", False),
    Metric("dice", "validation Dice score", True),
    Metric("iou", "validation IoU", True),
)


class Classification:
    """Mean cross-entropy, accuracy and the F1 score weighted by the classes' numbers of images.

    A class that is neither there nor predicted has no weight; one that is never predicted rightly
    has F1 = 0.

    >>> import torch
    >>> metrics = Classification(classes=3)
    >>> metrics.update(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 2]))
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'loss': 1.24, 'accuracy': 0.5, 'f1': 0.5}
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._loss = 0.0
        # By actual and predicted class. Torchmetrics gives the same scores, and takes longer to
        # import than torch does: every process that trains would wait for it.
        self._confusion = torch.zeros(classes, classes, dtype=torch.int64)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in a batch: logits ``(N, classes)`` and labels ``(N,)``."""
        logits, labels = logits.detach().cpu().double(), labels.cpu()
        self._check(logits, labels)
        if len(labels) == 0:
            return
        cells = labels * self._classes + logits.argmax(dim=1)
        counts = torch.bincount(cells, minlength=self._classes**2)
        self._confusion += counts.view_as(self._confusion)
        self._loss += cross_entropy(logits, labels, reduction="sum").item()

    def _check(self, logits: Tensor, labels: Tensor) -> None:
        if labels.ndim != 1 or logits.shape != (len(labels), self._classes):
            raise ValueError(
                f"Expected logits of shape (N, {self._classes}) and labels of shape (N,), "
                f"got {tuple(logits.shape)} and {tuple(labels.shape)}."
            )
        outside = labels[(labels < 0) | (labels >= self._classes)]
        if len(outside):
            raise ValueError(f"Expected labels 0 … {self._classes - 1}, got {outside[0].item()}.")

    def compute(self) -> dict[str, float]:
        """The metrics by name, over all that was taken in."""
        images = int(self._confusion.sum())
        if images == 0:
            raise ValueError("Expected at least one image before compute, got none.")
        right = self._confusion.diagonal().double()
        actual, predicted = self._confusion.sum(dim=1), self._confusion.sum(dim=0)
        f1 = 2 * right / (actual + predicted).clamp(min=1)  # of each class; 0/0 is 0
        return {
            "loss": self._loss / images,
            "accuracy": right.sum().item() / images,
            "f1": (f1 * actual).sum().item() / images,
        }


class Segmentation:
    """Dice loss, and Dice and IoU of the masks at p > 0.5, of all pixels of the set together.

    Where there is no object and none is found, Dice and IoU are 1, as the loss is 0.

    >>> import torch
    >>> metrics = Segmentation()
    >>> metrics.update(torch.tensor([[9.0, 9.0, -9.0]]), torch.tensor([[1, 0, 0]]))
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'loss': 0.25, 'dice': 0.667, 'iou': 0.5}
    """

    def __init__(self, smooth: float = 1.0) -> None:
        self._smooth = smooth
        self._pixels = 0
        self._overlap = self._found = self._there = 0.0  # Σpy, Σp, Σy
        self._right = self._false = self._missed = 0  # pixels at p > 0.5

    def update(self, logits: Tensor, masks: Tensor) -> None:
        """Take in a batch: logits and masks of one shape, masks 1 inside and 0 outside."""
        if ((masks != 0) & (masks != 1)).any():
            raise ValueError(f"Expected masks of 0 and 1, got values up to {masks.max().item()}.")
        overlap, found, there = dice_sums(logits.detach().double(), masks)
        self._overlap += overlap.item()
        self._found += found.item()
        self._there += there.item()
        predicted, actual = logits > 0, masks > 0  # the sigmoid is above 0.5 where the logit is > 0
        self._right += int((predicted & actual).sum())
        self._false += int((predicted & ~actual).sum())
        self._missed += int((~predicted & actual).sum())
        self._pixels += masks.numel()

    def compute(self) -> dict[str, float]:
        """The metrics by name, over all that was taken in."""
        if self._pixels == 0:
            raise ValueError("Expected at least one image before compute, got none.")
        right, wrong = self._right, self._false + self._missed
        nothing = right + wrong == 0
        return {
            "loss": dice_loss_of_sums(self._overlap, self._found, self._there, self._smooth),
            "dice": 1.0 if nothing else 2 * right / (2 * right + wrong),
            "iou": 1.0 if nothing else right / (right + wrong),
        }
