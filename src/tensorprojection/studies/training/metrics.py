"""Metrics of a validation set that comes in batches, computed after each epoch.

Both classes are used alike: ``update`` with each batch, then ``compute``. Counts and sums are in
float64, so the result does not depend on how the set is divided into batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .losses import dice_loss_of_sums, dice_sums


@dataclass(frozen=True)
class Metric:
    """A metric: its name in a run's rows, its title, and the direction that is better.

    >>> Metric("accuracy", "validation accuracy", higher_is_better=True).title
    'validation accuracy'

    ``higher_is_better`` is None for a metric of an own study whose code is not at hand.
    """

    name: str
    title: str
    higher_is_better: bool | None


TRAIN_LOSS = Metric("train_loss", "training loss", False)
CLASSIFICATION = (
    Metric("loss", "validation loss", False),
    Metric("accuracy", "validation accuracy", True),
    Metric("f1", "validation F1 score, weighted", True),
    Metric("sensitivity", "validation sensitivity, mean of classes", True),
    Metric("specificity", "validation specificity, mean of classes", True),
    Metric("auc", "validation AUC, mean of classes", True),
)
SEGMENTATION = (
    Metric("loss", "validation loss", False),
    Metric("dice", "validation Dice score", True),
    Metric("iou", "validation IoU", True),
    Metric("sensitivity", "validation sensitivity, all pixels", True),
    Metric("specificity", "validation specificity, all pixels", True),
)


def metric_by_name(name: str) -> Metric:
    """Return the metric that a column of that name holds in any study.

    >>> metric_by_name("dice").higher_is_better, metric_by_name("kappa").higher_is_better
    (True, None)
    """
    known = {metric.name: metric for metric in (*SEGMENTATION, *CLASSIFICATION)}
    return known.get(name, Metric(name, name, None))


class Classification:
    """Mean cross-entropy, accuracy, weighted F1, and sensitivity, specificity and AUC by class.

    F1 is weighted by the classes' numbers of images; a class that is never predicted rightly has
    F1 = 0. The last three are one class against all others, averaged over the classes that are
    there; they are NaN if no class is, or no other.

    >>> import torch
    >>> metrics = Classification(classes=3)
    >>> metrics.update(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 2]))
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'loss': 1.24, 'accuracy': 0.5, 'f1': 0.5, 'sensitivity': 0.5, 'specificity': 1.0, 'auc': 0.75}
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._loss = 0.0
        # By actual and predicted class. Torchmetrics gives the same scores, and takes longer to
        # import than torch does: every process that trains would wait for it.
        self._confusion = torch.zeros(classes, classes, dtype=torch.int64)
        self._probabilities: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits ``(N, classes)`` and labels ``(N,)``."""
        logits, labels = logits.detach().cpu().double(), labels.cpu()
        self._check(logits, labels)
        if len(labels) == 0:
            return
        cells = labels * self._classes + logits.argmax(dim=1)
        counts = torch.bincount(cells, minlength=self._classes**2)
        self._confusion += counts.view_as(self._confusion)
        self._loss += cross_entropy(logits, labels, reduction="sum").item()
        self._probabilities.append(logits.softmax(dim=1))
        self._labels.append(labels)

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
        """Return the metrics by name, over all batches."""
        images = int(self._confusion.sum())
        if images == 0:
            raise ValueError("Expected at least one image before compute, got none.")
        right = self._confusion.diagonal().double()
        actual, predicted = self._confusion.sum(dim=1), self._confusion.sum(dim=0)
        f1 = 2 * right / (actual + predicted).clamp(min=1)  # of each class; 0/0 is 0
        others = images - actual
        both = (actual > 0) & (others > 0)
        sensitivity = right / actual
        specificity = (others - predicted + right) / others
        return {
            "loss": self._loss / images,
            "accuracy": right.sum().item() / images,
            "f1": (f1 * actual).sum().item() / images,
            "sensitivity": sensitivity[both].mean().item(),
            "specificity": specificity[both].mean().item(),
            "auc": self.auc()[both].mean().item(),
        }

    def auc(self) -> Tensor:
        """Return the area under the ROC curve of each class against all others; NaN for none.

        This is the share of pairs of an image of the class and another image in which the first has
        the higher probability; a tie counts half. It follows from the sum of ranks.
        """
        probabilities, labels = torch.cat(self._probabilities), torch.cat(self._labels)
        found = []
        for label, scores in enumerate(probabilities.T):
            _, which, ties = scores.unique(return_inverse=True, return_counts=True)
            ranks = (ties.cumsum(0) - (ties - 1) / 2)[which].double()
            own = labels == label
            count, others = own.sum(), (~own).sum()
            found.append((ranks[own].sum() - count * (count + 1) / 2) / (count * others))
        return torch.stack(found)


class Segmentation:
    """Dice loss, and scores of the masks at p > 0.5, of all pixels of the set together.

    If there is no object and none is found, Dice and IoU are 1, as the loss is 0; so is the
    sensitivity without an object, and the specificity without a background.

    >>> import torch
    >>> metrics = Segmentation()
    >>> metrics.update(torch.tensor([[9.0, 9.0, -9.0]]), torch.tensor([[1, 0, 0]]))
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'loss': 0.25, 'dice': 0.667, 'iou': 0.5, 'sensitivity': 1.0, 'specificity': 0.5}
    """

    def __init__(self, smooth: float = 1.0) -> None:
        self._smooth = smooth
        self._pixels = 0
        self._overlap = self._found = self._there = 0.0  # Σpy, Σp, Σy
        self._right = self._false = self._missed = 0  # pixels at p > 0.5

    def update(self, logits: Tensor, masks: Tensor) -> None:
        """Add a batch: logits and masks of one shape, masks 1 inside and 0 outside."""
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
        """Return the metrics by name, over all batches."""
        if self._pixels == 0:
            raise ValueError("Expected at least one image before compute, got none.")
        right, wrong = self._right, self._false + self._missed
        nothing = right + wrong == 0
        there = right + self._missed
        background = self._pixels - there
        return {
            "loss": dice_loss_of_sums(self._overlap, self._found, self._there, self._smooth),
            "dice": 1.0 if nothing else 2 * right / (2 * right + wrong),
            "iou": 1.0 if nothing else right / (right + wrong),
            "sensitivity": right / there if there else 1.0,
            "specificity": 1 - self._false / background if background else 1.0,
        }
