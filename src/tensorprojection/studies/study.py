"""What a study is: its images, networks and protocol, declared in the same way for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol

from torch import Tensor, nn

from .claims import Claim
from .config import C, RunConfig
from .data.kinds import ImageKind
from .image_data import open_image_data, prepare_images
from .inputs import Data, Progress, Rows, RunInputs
from .models.layer_rows import ModelTable, tables_of
from .trial.metrics import CLASSIFICATION, Classification, Metric

__all__ = ["Data", "Metrics", "ModelChoice", "Progress", "Rows", "RunInputs", "Study"]


class Metrics(Protocol):
    """What is measured after each epoch; see trial/metrics.py."""

    def update(self, output: Tensor, target: Tensor, /) -> None: ...

    def compute(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class ModelChoice:
    """A shortcut for `models`: a flag of the command line, and the models for each value."""

    name: str
    description: str
    models: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Study(Generic[C]):
    """A study, such as one of the paper's section 3; all that is known about it is here.

    >>> study = Study(
    ...     name="stripes",
    ...     title="Stripes",
    ...     images=ImageKind("stripes", ("across", "down")),
    ...     models={"base": "a linear layer"},
    ...     network=lambda config, model, first: nn.Sequential(nn.Flatten(), nn.LazyLinear(2)),
    ...     presets={"small": {"size": 32, "trials": 3, "epochs": 5, "batch": 16}},
    ... )
    >>> [metric.name for metric in study.measured]
    ['loss', 'accuracy', 'f1']

    Args:
        name: as in ``tpl run NAME``; also that of a user's own, for folders and tables.
        title: as in headings.
        images: what its images are, where they come from, how folders of them look.
        models: the networks' names, and what they are; "base" is what others are compared with.
        network: a network by its name, started from torch's random numbers; where it starts from
            data as well, from the first training images.
        presets: settings by preset. The paper's studies have smoke, small and paper.
        settings: the model of its settings, with those that only this study has.
        prepare: makes what all trials share, with the given number of processes: images, copies,
            features. By default the images alone.
        open: the samples, in a process that trains. By default the images and their labels or
            masks.
        loss: what is minimised.
        metrics: makes the object that measures, after each epoch.
        measured: the names of its metrics, with what they mean.
        penalty: a regularization term that is added to the loss, None for most networks.
        channels_last: whether to train in torch's channels_last memory format.
        sees_images: whether batches are images; False where they are something smaller.
        copies: how many augmented copies of each image these settings ask for, at least.
        describe: what distinguishes a run with these settings, for headings.
        choices: shortcuts for `models`.
        tables: the networks layer by layer, with notes on the paper.
        claims: what the paper claims of it, which a run's page holds against its results.
        front: what comes before the network for images that it has not seen: from pixels in [0, 1],
            ``(N, 1, size, size)`` of gray images or ``(N, 3, size, size)``, to the network's input.
        reference: where another process finds the study again; set by the registry.
    """

    name: str
    title: str
    images: ImageKind
    models: Mapping[str, str]
    network: Callable[[C, str, Tensor], nn.Module]
    presets: Mapping[str, Mapping[str, Any]]
    settings: type[C] = RunConfig  # type: ignore[assignment]
    prepare: Callable[[C, int, Progress], RunInputs] = None  # type: ignore[assignment]
    open: Callable[[C, RunInputs], Data] = open_image_data
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    metrics: Callable[[], Metrics] = None  # type: ignore[assignment]
    measured: tuple[Metric, ...] = CLASSIFICATION
    penalty: Callable[[nn.Module], Tensor | None] = lambda network: None
    channels_last: bool = True
    sees_images: bool = True
    copies: Callable[[C], int] = lambda config: 0
    describe: Callable[[C], tuple[str, ...]] = lambda config: (f"{config.size} × {config.size}",)
    choices: tuple[ModelChoice, ...] = ()
    tables: Callable[[C], Iterable[ModelTable]] = None  # type: ignore[assignment]
    claims: tuple[Claim, ...] = ()
    front: Callable[[C], nn.Module] = lambda config: nn.Identity()
    reference: str = ""

    def __post_init__(self) -> None:
        classes = len(self.images.class_names)
        usual = {
            "prepare": partial(prepare_images, self.images),
            "metrics": partial(Classification, classes),
            "tables": partial(tables_of, self.title, self.images, self.models, self.network),
            "reference": self.name,
        }
        for name, value in usual.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)

    @property
    def row_metrics(self) -> tuple[str, ...]:
        """The names of all numbers that an epoch is measured by, the training loss first."""
        return ("train_loss", *(metric.name for metric in self.measured))
