"""A network layer by layer, computed from the network itself.

A row is a layer under the paper's name for it, with its activation, the shape it gives with
channels last, and its parameters. Notes name the differences from the paper's tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from .unet import Join


@dataclass(frozen=True)
class LayerRow:
    """A layer: its class, its name in the network, its output without batch, its parameters."""

    layer: str
    name: str
    output: tuple[int, ...]
    parameters: int | None = None  # None: frozen, and so not counted
    note: str = ""


@dataclass(frozen=True)
class ModelTable:
    """One form of a study's network."""

    study: str
    form: str
    title: str
    rows: tuple[LayerRow, ...]

    @property
    def total(self) -> int:
        """All parameters that are trained."""
        return sum(row.parameters or 0 for row in self.rows)


def not_the_papers(title: str) -> str:
    return f"Not one of the paper's networks: {title}."


# The names of the paper, which are Keras's. Any other layer goes by the name of its class.
_NAMES: dict[type[nn.Module], str] = {
    nn.AvgPool2d: "AveragePooling2D",
    nn.BatchNorm2d: "BatchNormalization",
    nn.Conv2d: "Conv2D",
    nn.ConvTranspose2d: "Conv2DTranspose",
    nn.Linear: "Dense",
    nn.MaxPool2d: "MaxPooling2D",
    Join: "Concatenate",
}
_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu"}


def layer_rows(
    network: nn.Module, x: Tensor, last: str, notes: Mapping[str, str]
) -> list[LayerRow]:
    """Return a row for each layer in the order in which they run, with its activation.

    ``last`` is the activation that the loss puts after the last layer, ``notes`` those by layer.
    """
    rows: list[LayerRow] = []

    def look(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if type(layer) in _ACTIVATIONS:
            rows[-1] = _with_activation(rows[-1], _ACTIVATIONS[type(layer)])
            return
        title = _NAMES.get(type(layer), type(layer).__name__)
        counts = [p.numel() for p in layer.parameters() if p.requires_grad]
        frozen = not counts and any(True for _ in layer.parameters())
        parameters = None if frozen else sum(counts)
        output = output[0].movedim(0, -1)
        rows.append(LayerRow(title, name, tuple(output.shape), parameters, notes.get(name, "")))

    for name, layer in _layers(network):
        layer.register_forward_hook(partial(look, name))
    with torch.no_grad():
        network.eval()(x)
    if last:
        left = f"{rows[-1].note} The {last} is left to the loss; the network gives logits."
        rows[-1] = _with_activation(replace(rows[-1], note=left.strip()), last)
    return rows


def _with_activation(row: LayerRow, activation: str) -> LayerRow:
    return replace(row, layer=f"{row.layer} ({activation})")


def _layers(network: nn.Module, before: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the network's children; in place of a Sequential among them, its own."""
    for name, layer in network.named_children():
        if isinstance(layer, nn.Sequential):
            yield from _layers(layer, f"{before}{name}.")
        else:
            yield before + name, layer
