"""A study: its images, networks and protocol, declared in the same way for all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol

import torch
from torch import Tensor, nn

from .config import C, RunConfig
from .data.images import ImageKind
from .errors import StudyError
from .inputs import Copies, Data, Frozen, Progress, RunInputs, open_samples, prepare
from .networks.backbones import BACKBONES, backbone, find_backbone
from .networks.layer_rows import LayerRow, ModelTable, layer_rows
from .training.metrics import (
    CLASSIFICATION,
    SEGMENTATION,
    Classification,
    Metric,
    Segmentation,
    dice_loss,
)

ADAM_EPS = 1e-7  # Keras's, which the paper used; torch's is 1e-8
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class Metrics(Protocol):
    """Measures a network on the validation set; see training/metrics.py."""

    def update(self, output: Tensor, target: Tensor, /) -> None: ...

    def compute(self) -> dict[str, float]: ...


Direction = Literal["lower", "higher", "equal"]
Measure = Literal["first", "each", "last", "rise", "late", "spread"]


@dataclass(frozen=True)
class Claim:
    """A network is better, worse or as good as another by some metric at some epochs.

    Args:
        text: the claim as the paper makes it, in one sentence.
        metric: the name of the metric.
        model: the network that the claim is about.
        than: the network that it is compared with; the same one if it is "late".
        direction: of the difference, model minus the other: "lower", "higher", or "equal".
        measure: the mean over the "first" epochs, "each" epoch, the "last" one, the "rise" of a
            loss from its lowest value to its last, a "late" rise of one network's loss (its last
            value minus that at the epoch with the lowest mean in the other trials), or the "spread"
            of the trials, which is the mean width of the quartile band over the first epochs.
        margin: for "equal": the largest difference that still counts as equal.
        after: the claim is about epochs after this one; shorter runs decide nothing.
        channels: if given, the claim is only about networks with this many channels.
    """

    text: str
    metric: str
    model: str
    than: str
    direction: Direction
    measure: Measure = "last"
    margin: float = 0.0
    after: int = 0
    channels: int | None = None


@dataclass(frozen=True)
class Source:
    """The file or module of a user's own study, and the sha256 of its code."""

    reference: str
    sha256: str


@dataclass(frozen=True)
class Study(Generic[C]):
    """A study, such as one of the paper's section 3.

    A study of images, classes or masks needs its fields only. One that trains on something else,
    or with another loss, is a subclass that overrides the methods.

    >>> study = Study(
    ...     name="stripes",
    ...     title="Stripes",
    ...     images=ImageKind("stripes", ("across", "down")),
    ...     models={"base": "a linear layer"},
    ...     network=lambda config, model, first: nn.Sequential(nn.Flatten(), nn.LazyLinear(2)),
    ...     presets={"small": {"size": 32, "trials": 3, "epochs": 5, "batch": 16}},
    ... )
    >>> [metric.name for metric in study.measured]
    ['loss', 'accuracy', 'f1', 'sensitivity', 'specificity', 'auc']

    Args:
        name: as in ``tpl run NAME``, and in names of folders.
        title: as in headings.
        images: what its images are, where they come from, how folders of them look.
        models: the networks' names, and what they are; "base" is what others are compared with.
            A name is also that of files: letters, digits, "-", "_" and ".", no "." at its start.
        network: makes a network by its name, initialized from torch's random numbers and, if it is
            initialized from data, from the first training images.
        presets: settings by preset. The paper's studies have smoke, small and paper.
        settings: the model of its settings, with those that only this study has.
        claims: the paper's claims, which a run's page compares with its results.
        source: where a user's own study was imported from; set by the registry.
    """

    name: str
    title: str
    images: ImageKind
    models: Mapping[str, str]
    network: Callable[[C, str, Tensor], nn.Module]
    presets: Mapping[str, Mapping[str, Any]]
    settings: type[C] = RunConfig  # type: ignore[assignment]
    claims: tuple[Claim, ...] = ()
    source: Source | None = None

    # Batches are images, which train fastest in torch's channels_last memory format.
    sees_images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in (self.name, *self.models):
            if not (isinstance(name, str) and FILE_NAME.fullmatch(name) and len(name) <= 100):
                raise StudyError(
                    "Expected names of studies and models of at most 100 letters, digits, '-', '_' "
                    f"and '.', with no '.' at the start, got {name!r}."
                )

    @property
    def reference(self) -> str:
        """The name by which a configuration and another process find the study."""
        return self.name if self.source is None else self.source.reference

    def title_of(self, model: str) -> str:
        """Return the title of a network; ``StudyError`` if the study has none of that name.

        A study may have more networks than ``models`` lists, such as those with a size in the name.
        """
        if model not in self.models:
            raise StudyError(f"Expected models of {', '.join(self.models)}, got {model}.")
        return self.models[model]

    # The data

    def for_data(self, settings: Mapping[str, Any], file: Path | None) -> Study[Any]:
        """Return the study for the data of these settings, and of a file with more of them."""
        return self

    def prepare(self, config: C, jobs: int, progress: Progress) -> RunInputs:
        """Compute what all trials share, with so many processes: images, copies, features."""
        copies, frozen = self.copies(config), self.frozen(config)
        if frozen is not None and type(self).preprocess is not Study.preprocess:
            raise StudyError(
                "A study with a frozen network cannot override preprocess: the frozen network "
                "alone computes the features. Override frozen or preprocess, not both."
            )
        return prepare(self.images, config, jobs, progress, copies, frozen)

    def open(self, config: C, inputs: RunInputs) -> Data:
        """Return the samples, in a process that trains."""
        # Features need no layers before the network.
        before = nn.Identity() if self.frozen(config) else self.preprocess(config)
        return open_samples(config, inputs, before)

    def copies(self, config: C) -> Copies | None:
        """Return the augmented copies that train beside their originals; default none."""
        return None

    def frozen(self, config: C) -> Frozen | None:
        """Return the frozen network on whose features the networks train; default none."""
        return None

    def preprocess(self, config: C) -> nn.Module:
        """Return the layers before the network: the frozen network, or none.

        They take pixels in [0, 1], ``(N, 1, size, size)`` of gray images or ``(N, 3, size, size)``.
        """
        frozen = self.frozen(config)
        return nn.Identity() if frozen is None else backbone(frozen.name, frozen.weights)

    # Training

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss that is minimized."""
        if self.images.masks:
            return dice_loss(output, target)
        return nn.functional.cross_entropy(output, target)

    def penalty(self, network: nn.Module) -> Tensor | None:
        """Return a regularization term that is added to the loss."""
        return None

    def optimizer(self, network: nn.Module, config: C) -> torch.optim.Optimizer:
        """Return the optimizer of the network's parameters."""
        if config.optimizer == "adamw":
            decay = config.weight_decay
            return torch.optim.AdamW(
                network.parameters(), lr=config.learning_rate, eps=ADAM_EPS, weight_decay=decay
            )
        return torch.optim.Adam(network.parameters(), lr=config.learning_rate, eps=ADAM_EPS)

    def metrics(self) -> Metrics:
        """Return a new object that measures, after each epoch."""
        return Segmentation() if self.images.masks else Classification(len(self.images.class_names))

    @property
    def measured(self) -> tuple[Metric, ...]:
        """The metrics, with what they mean."""
        return SEGMENTATION if self.images.masks else CLASSIFICATION

    # For the reader

    def describe(self, config: C) -> tuple[str, ...]:
        """Return what distinguishes a run with these settings, for headings."""
        return (f"{config.size} × {config.size}",)

    def notes(self, config: C, model: str) -> Mapping[str, str]:
        """Return notes on layers of a network, such as differences from the paper, by their names.

        The note on the last layer is followed by one on its activation.
        """
        return {}

    # The networks

    def example(self, config: C) -> Tensor:
        """Return random inputs of the networks: two images after the preprocessing, or features."""
        frozen, size = self.frozen(config), config.size
        if frozen is None:
            channels = 3 if self.images.mode == "RGB" else 1
            return self.preprocess(config)(torch.rand(2, channels, size, size))  # type: ignore[no-any-return]
        if size % 32:
            raise StudyError(f"Expected a size divisible by 32, got {size}.")
        return torch.rand(2, find_backbone(frozen.name).channels, size // 32, size // 32)

    def tables(self, config: C) -> list[ModelTable]:
        """Return the networks of these settings, layer by layer; ``StudyError`` if one fails.

        Nothing but shapes is computed, on the meta device: the largest U-Net takes no time there.
        """
        found, last, frozen = [], "", self.frozen(config)
        if type(self).loss is Study.loss:
            last = "sigmoid" if self.images.masks else "softmax"
        try:
            with torch.device("meta"), torch.random.fork_rng(devices=[]):
                x = self.example(config)
                for model in config.models:
                    network = self.network(config, model, x)
                    rows = layer_rows(network, x, last, self.notes(config, model))
                    if frozen is not None:
                        output = (*x.shape[2:], x.shape[1])
                        rows.insert(0, LayerRow(BACKBONES[frozen.name].title, "backbone", output))
                    title = f"{self.title}, {', '.join(self.describe(config))}: {model}"
                    found.append(ModelTable(self.name, model, title, tuple(rows)))
        except StudyError:
            raise
        except Exception as error:  # of an own study's code: it may not take images
            first = (str(error).splitlines() or [""])[0]
            raise StudyError(
                f"The networks of {self.name} could not be called with an image of {config.size} × "
                f"{config.size} ({type(error).__name__}: {first}). A study of other samples "
                "overrides `example`."
            ) from error
        return found

    def check_networks(self, config: C) -> None:
        """Raise a ``StudyError`` for a network that fails on two random images.

        Only an own study of images computes their outputs; one of other samples is not checked.
        """
        if self.source is None:
            self.tables(config)
            return
        if type(self).open is not Study.open:
            return
        size, classes = config.size, len(self.images.class_names)
        shape = (2, 1, size, size) if self.images.masks else (2, classes)
        for model in config.models:
            try:
                with torch.random.fork_rng(devices=[]), torch.no_grad():
                    x = self.example(config)
                    network = self.network(config, model, x)
                    found = tuple(network.eval()(x).shape)
            except Exception as error:
                first = (str(error).splitlines() or [""])[0]
                raise StudyError(
                    f"{model} fails for images of {size} × {size}: {type(error).__name__}: {first}"
                ) from error
            if not any(p.requires_grad for p in network.parameters()):
                raise StudyError(f"{model} has no parameters, so there is nothing to train.")
            if type(self).loss is Study.loss and found != shape:
                raise StudyError(
                    f"Expected {model} to give shape {shape} for two images, got {found}."
                )
