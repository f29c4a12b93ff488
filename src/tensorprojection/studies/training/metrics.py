"""The Dice loss, and metrics of a validation set that comes in batches, after each epoch.

Both classes of metrics are used alike: ``update`` with each batch, then ``compute``. Counts and
sums are in float64, so the result does not depend on how the set is divided into batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

T = TypeVar("T", float, Tensor)


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
# No Hausdorff distance: MONAI's at 95 % takes a quarter to a half of the time of a validation pass.
SEGMENTATION = (
    Metric("loss", "validation loss", False),
    Metric("dice", "validation Dice coefficient", True),
    Metric("iou", "validation IoU", True),
    Metric("mdice", "validation Dice at 0.5, mean of images", True),
    Metric("miou", "validation IoU at 0.5, mean of images", True),
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
    F1 = 0. The last three are one class against all others; ``compute`` has their means over the
    classes that are there. They are NaN for a class without images, or without images of others.

    >>> import torch
    >>> metrics = Classification(classes=3)
    >>> metrics.update(torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 2]))
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'loss': 1.24, 'accuracy': 0.5, 'f1': 0.5, 'sensitivity': 0.5, 'specificity': 1.0, 'auc': 0.75}
    >>> metrics.by_class()["sensitivity"]
    [1.0, nan, 0.0]
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
        if labels.ndim != 1 or logits.shape != (len(labels), self._classes):
            raise ValueError(
                f"Expected logits of shape (N, {self._classes}) and labels of shape (N,), "
                f"got {tuple(logits.shape)} and {tuple(labels.shape)}."
            )
        outside = labels[(labels < 0) | (labels >= self._classes)]
        if len(outside):
            raise ValueError(f"Expected labels 0 … {self._classes - 1}, got {outside[0].item()}.")
        if len(labels) == 0:
            return
        cells = labels * self._classes + logits.argmax(dim=1)
        counts = torch.bincount(cells, minlength=self._classes**2)
        self._confusion += counts.view_as(self._confusion)
        self._loss += cross_entropy(logits, labels, reduction="sum").item()
        self._probabilities.append(logits.softmax(dim=1))
        self._labels.append(labels)

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, over all batches."""
        images = int(self._confusion.sum())
        if images == 0:
            raise ValueError("Expected at least one image before compute, got none.")
        right = self._confusion.diagonal().double()
        actual, predicted = self._confusion.sum(dim=1), self._confusion.sum(dim=0)
        f1 = 2 * right / (actual + predicted).clamp(min=1)  # of each class; 0/0 is 0
        both = (actual > 0) & (actual < images)
        means = {name: values[both].mean().item() for name, values in self._by_class().items()}
        return {
            "loss": self._loss / images,
            "accuracy": right.sum().item() / images,
            "f1": (f1 * actual).sum().item() / images,
            **means,
        }

    def by_class(self) -> dict[str, list[float]]:
        """Return sensitivity, specificity and AUC of each class against all others."""
        return {name: values.tolist() for name, values in self._by_class().items()}

    def _by_class(self) -> dict[str, Tensor]:
        right = self._confusion.diagonal().double()
        actual, predicted = self._confusion.sum(dim=1), self._confusion.sum(dim=0)
        others = actual.sum() - actual
        return {
            "sensitivity": right / actual,
            "specificity": (others - predicted + right) / others,
            "auc": self._auc(),
        }

    def _auc(self) -> Tensor:
        """Return the area under the ROC curve of each class against all others.

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
    """Dice loss and soft Dice coefficient, and scores of the masks at p > 0.5.

    ``dice`` is the paper's coefficient, 1 minus the loss. It and ``iou``, ``sensitivity`` and
    ``specificity`` are of all pixels of the set together; ``mdice`` and ``miou`` are means over the
    images. If there is no object and none is found, Dice and IoU are 1, as the loss is 0; so is the
    sensitivity without an object, and the specificity without a background.

    >>> import torch
    >>> metrics = Segmentation()
    >>> metrics.update(torch.tensor([[9.0, 9.0, -9.0]]), torch.tensor([[1, 0, 0]]))
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'loss': 0.25, 'dice': 0.75, 'iou': 0.5, 'mdice': 0.667, 'miou': 0.5, 'sensitivity': 1.0, \
'specificity': 0.5}
    """

    def __init__(self, smooth: float = 1.0) -> None:
        self._smooth = smooth
        self._pixels = 0
        self._overlap = self._found = self._there = 0.0  # Σpy, Σp, Σy
        self._right = self._false = self._missed = 0  # pixels at p > 0.5
        self._dice: list[float] = []  # of each image at p > 0.5
        self._iou: list[float] = []

    def update(self, logits: Tensor, masks: Tensor) -> None:
        """Add a batch: logits and masks of one shape, masks 1 inside and 0 outside."""
        if ((masks != 0) & (masks != 1)).any():
            raise ValueError(f"Expected masks of 0 and 1, got values up to {masks.max().item()}.")
        overlap, found, there = _dice_sums(logits.detach().double(), masks)
        self._overlap += overlap.item()
        self._found += found.item()
        self._there += there.item()
        predicted, actual = logits > 0, masks > 0  # the sigmoid is above 0.5 if the logit is > 0
        right = (predicted & actual).flatten(1).sum(dim=1)
        false = (predicted & ~actual).flatten(1).sum(dim=1)
        missed = (~predicted & actual).flatten(1).sum(dim=1)
        wrong, empty = false + missed, right + false + missed == 0
        dice, iou = 2 * right.double() / (2 * right + wrong), right.double() / (right + wrong)
        self._dice += dice.masked_fill(empty, 1).tolist()
        self._iou += iou.masked_fill(empty, 1).tolist()
        self._right += int(right.sum())
        self._false += int(false.sum())
        self._missed += int(missed.sum())
        self._pixels += masks.numel()

    def compute(self) -> dict[str, float]:
        """Return the metrics by name, over all batches."""
        if self._pixels == 0:
            raise ValueError("Expected at least one image before compute, got none.")
        right, wrong = self._right, self._false + self._missed
        nothing = right + wrong == 0
        there = right + self._missed
        background = self._pixels - there
        loss = _dice_loss(self._overlap, self._found, self._there, self._smooth)
        return {
            "loss": loss,
            "dice": 1 - loss,
            "iou": 1.0 if nothing else right / (right + wrong),
            "mdice": math.fsum(self._dice) / len(self._dice),
            "miou": math.fsum(self._iou) / len(self._iou),
            "sensitivity": right / there if there else 1.0,
            "specificity": 1 - self._false / background if background else 1.0,
        }


def dice_loss(logits: Tensor, masks: Tensor, smooth: float = 1.0) -> Tensor:
    """Return 1 minus the Dice coefficient of all pixels of the batch together (section 3.3.2).

    With p the sigmoid of the logits and y the masks: ``1 − (2 Σpy + smooth) / (Σp + Σy + smooth)``.

    >>> import torch
    >>> dice_loss(torch.tensor([[9.0, -9.0]]), torch.tensor([[1, 0]])).item() < 1e-3
    True

    Args:
        logits: floating point, of any shape. Half precision is summed in float32.
        masks: of the same shape, 1 inside the object and 0 outside; any type.
        smooth: keeps the quotient defined if there is no object and none is found.
    """
    return _dice_loss(*_dice_sums(logits, masks), smooth)


def _dice_sums(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σpy, Σp and Σy, with p the sigmoid of the logits."""
    if logits.shape != masks.shape:
        lacks_axis = masks.ndim > 0 and logits.shape == masks[:, None].shape
        raise ValueError(
            f"Expected masks of the logits' shape {tuple(logits.shape)}, got {tuple(masks.shape)}."
            + (" Pass masks[:, None]." if lacks_axis else "")
        )
    p = (logits if logits.dtype.itemsize > 2 else logits.float()).sigmoid()
    y = masks.to(p.dtype)
    return (p * y).sum(), p.sum(), y.sum()


def _dice_loss(overlap: T, found: T, there: T, smooth: float) -> T:
    return 1 - (2 * overlap + smooth) / (found + there + smooth)
