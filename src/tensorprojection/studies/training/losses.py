"""The Dice loss of the paper's segmentation study (section 3.3.2)."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

T = TypeVar("T", float, Tensor)


def dice_loss(logits: Tensor, masks: Tensor, smooth: float = 1.0) -> Tensor:
    """1 minus the Dice coefficient of all pixels of the batch together, from logits.

    With p the sigmoid of the logits and y the masks: ``1 − (2 Σpy + smooth) / (Σp + Σy + smooth)``.

    >>> import torch
    >>> dice_loss(torch.tensor([[9.0, -9.0]]), torch.tensor([[1, 0]])).item() < 1e-3
    True

    Args:
        logits: floating point, of any shape. Half precision is summed in float32.
        masks: of the same shape, 1 inside the object and 0 outside; any type.
        smooth: keeps the quotient defined where there is nothing and nothing is found.
    """
    overlap, found, there = dice_sums(logits, masks)
    return dice_loss_of_sums(overlap, found, there, smooth)


def dice_sums(logits: Tensor, masks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σpy, Σp and Σy, with p the sigmoid of the logits: what the Dice loss needs of a batch."""
    if logits.shape != masks.shape:
        lacks_axis = masks.ndim > 0 and logits.shape == masks[:, None].shape
        raise ValueError(
            f"Expected masks of the logits' shape {tuple(logits.shape)}, got {tuple(masks.shape)}."
            + (" Pass masks[:, None]." if lacks_axis else "")
        )
    p = (logits if logits.dtype.itemsize > 2 else logits.float()).sigmoid()
    y = masks.to(p.dtype)
    return (p * y).sum(), p.sum(), y.sum()


def dice_loss_of_sums(overlap: T, found: T, there: T, smooth: float) -> T:
    """The Dice loss from Σpy, Σp and Σy."""
    return 1 - (2 * overlap + smooth) / (found + there + smooth)
