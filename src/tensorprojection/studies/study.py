"""What a study is: its images, networks and protocol, in the same words for all three."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from .claims import Claim
from .config import RunConfig
from .data.cache import digest_of
from .data.sources import Opened, open_images

Rows = NDArray[np.int64]
Progress = Callable[[str, int, int], None]  # what is being made, how much of it, out of how much


class Data(Protocol):
    """A study's samples, by row: images or features, originals and copies alike."""

    def sides(self, trial: int) -> tuple[Rows, Rows]:
        """The rows that train and the rows that validate in that trial."""

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """What goes into the network for these rows, and what should come out."""


class Metrics(Protocol):
    """What is measured after each epoch; see metrics.py."""

    def update(self, output: Tensor, target: Tensor, /) -> None: ...

    def compute(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class Prepared:
    """What had to be made before the first trial, and where it lies; small enough to be sent."""

    folders: dict[str, Path]
    source: str
    unreadable: tuple[str, ...] = ()
    weights: str | None = None  # of a frozen network: their sha256

    def identity(self) -> dict[str, str]:
        """What the results depend on, by content; a folder made anew elsewhere has the same."""
        found: dict[str, str] = {}
        for name in ("images", "copies"):
            if name in self.folders:
                found[name] = digest_of(self.folders[name])
        return found if self.weights is None else {**found, "weights": self.weights}


@dataclass(frozen=True)
class Study:
    """One study of the paper's section 3.

    Args:
        name: as in ``tpl run NAME``.
        title: as in headings.
        presets: settings by preset; "paper" has the paper's numbers.
        models: the networks' names, and what they are.
        prepare: makes what all trials share, with so many processes: images, copies, features.
        open: the samples, in a process that trains.
        network: a network by its name, started from torch's random numbers; where it starts from
            data as well, from the first training images.
        loss: what is minimised.
        penalty: what is added to it for the network's own sake, None for most.
        metrics: what is measured.
        channels_last: whether the network is quicker with the channels innermost in memory.
        claims: what the paper claims of it, which a run's page holds against its results.
        front: what comes before the network for images it has not seen: from RGB pixels in [0, 1],
            ``(N, 3, size, size)``, to the network's input.
    """

    name: str
    title: str
    presets: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, str]
    prepare: Callable[[RunConfig, int, Progress], Prepared]
    open: Callable[[RunConfig, Prepared], Data]
    network: Callable[[RunConfig, str, Tensor], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[], Metrics]
    penalty: Callable[[nn.Module], Tensor | None] = lambda network: None
    channels_last: bool = True
    claims: tuple[Claim, ...] = ()
    front: Callable[[RunConfig], nn.Module] = lambda config: nn.Identity()


def open_asked_for(config: RunConfig) -> Opened:
    """The images that a run asks for."""
    return open_images(
        config.study,
        config.data,
        size=config.size,
        count=config.images,
        seed=config.seed,
        skip_unreadable=config.skip_unreadable,
    )
