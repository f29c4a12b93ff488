"""The paper's model tables, computed from the networks themselves (sections 3.1.2, 3.2.2, 3.3.2).

A row is a layer under the paper's name for it, with its activation, the shape it gives with
channels last, and its parameters. Footnotes say where the paper prints something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
from rich import box, table, text
from rich.console import Group
from torch import Tensor, nn

from ..config import StudyName
from ..models.backbones import BACKBONES
from ..models.chest_head import HEADS as CHEST_HEADS
from ..models.chest_head import chest_head
from ..models.oct_cnn import HEADS as OCT_HEADS
from ..models.oct_cnn import oct_cnn
from ..models.unet import FORMS, Join, unet


@dataclass(frozen=True)
class Row:
    """A layer: what it is, its name in the network, its output without n, its parameters."""

    layer: str
    name: str
    output: tuple[int, ...]
    parameters: int | None  # None: frozen, and so not counted
    note: str = ""


@dataclass(frozen=True)
class Table:
    """One form of a study's network."""

    study: StudyName
    form: str
    title: str
    rows: tuple[Row, ...]

    @property
    def total(self) -> int:
        """All parameters that are trained."""
        return sum(row.parameters or 0 for row in self.rows)


# The studies


def tables(
    study: StudyName,
    *,
    size: int | None = None,
    channels: int | None = None,
    backbone: str | None = None,
) -> list[Table]:
    """A table for every form of the study's network.

    >>> [(table.form, table.total) for table in tables("chest")]
    [('base', 476484), ('tpl', 476420), ('tpl-mpca', 476420), ('tcl', 476420)]

    Args:
        study: "oct", "chest" or "kvasir".
        size: of the images; 96 (oct), 160 (chest) or 128 (kvasir) unless given.
        channels: of the U-Net's first convolution, kvasir only; 16 unless given.
        backbone: chest only, one of ``BACKBONES``; "densenet121" unless given.
    """
    if study not in get_args(StudyName):
        raise ValueError(f"Expected a study of {_listed(get_args(StudyName))}, got {study!r}.")
    if channels is not None and study != "kvasir":
        raise ValueError(f"Expected channels for 'kvasir' only, got {channels} for {study!r}.")
    if backbone is not None and study != "chest":
        raise ValueError(f"Expected a backbone for 'chest' only, got {backbone!r} for {study!r}.")
    # Nothing is computed on the meta device, shapes apart; the largest U-Net takes no time there.
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        if study == "oct":
            return list(_oct(96 if size is None else size))
        if study == "chest":
            return list(_chest(160 if size is None else size, backbone or "densenet121"))
        return list(_kvasir(128 if size is None else size, 16 if channels is None else channels))


def _oct(size: int) -> Iterator[Table]:
    for form in OCT_HEADS:
        notes = {"dense2": _left_to_the_loss("softmax")}
        if form not in ("base", "tpl1", "tpl2"):
            notes[OCT_HEADS[form].name] = _not_the_papers(OCT_HEADS[form].title)
        if (form, size) == ("tpl2", 96):
            notes["flatten"] = "The paper prints 1152, but 6 · 6 · 20 = 720."
            notes["dense1"] = "The paper prints 295,168, but 720 · 256 + 256 = 184,576."
        rows = _rows(oct_cnn(form, size=size), (3, size, size), "softmax", notes)
        yield Table("oct", form, f"OCT, {size} × {size}: {form}", rows)


def _chest(size: int, backbone: str) -> Iterator[Table]:
    if backbone not in BACKBONES:
        raise ValueError(f"Expected a backbone of {_listed(BACKBONES)}, got {backbone!r}.")
    if size < 32 or size % 32:
        raise ValueError(f"Expected a size divisible by 32, got {size}.")
    frozen, side = BACKBONES[backbone], size // 32
    features = Row(frozen.title, "backbone", (side, side, frozen.channels), None)
    notes = {
        "dropout": "Not in the paper, but in its authors' code.",
        "dense2": "The paper prints 7 outputs and 1,799, but there are 4 classes: 256 · 4 + 4 = "
        f"1,028. {_left_to_the_loss('softmax')}",
    }
    for form in CHEST_HEADS:
        own = {}
        if form not in ("base", "tpl"):
            own[CHEST_HEADS[form].name] = _not_the_papers(CHEST_HEADS[form].title)
        head = chest_head(form, frozen.channels, side)
        rows = _rows(head, (frozen.channels, side, side), "softmax", notes | own)
        title = f"Chest X-ray, {size} × {size}, {frozen.title}: {form}"
        yield Table("chest", form, title, (features, *rows))


def _kvasir(size: int, channels: int) -> Iterator[Table]:
    notes = {
        "output": "The paper draws this network and prints no parameters. "
        + _left_to_the_loss("sigmoid")
    }
    for form in FORMS:
        own = {}
        if form not in ("base", "tpl", "tpl-aggressive"):
            own["down4"] = _not_the_papers(FORMS[form].title)
        rows = _rows(unet(form, channels, size), (3, size, size), "sigmoid", notes | own)
        title = f"Kvasir-SEG, {size} × {size}, {channels} channels: {form}"
        yield Table("kvasir", form, title, rows)


def _not_the_papers(title: str) -> str:
    return f"Not one of the paper's networks: {title}."


def _left_to_the_loss(activation: str) -> str:
    return f"The {activation} is left to the loss; the network gives logits."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


# A network's rows

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
_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.LeakyReLU: "leaky relu"}


def _rows(
    network: nn.Module, shape: tuple[int, ...], last: str, notes: Mapping[str, str]
) -> tuple[Row, ...]:
    """A row for each layer in the order they run, their activations with them.

    ``last`` is the activation that the loss puts after the last layer, ``notes`` those by layer.
    """
    rows: list[Row] = []

    def look(name: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if type(layer) in _ACTIVATIONS:
            rows[-1] = _with_activation(rows[-1], _ACTIVATIONS[type(layer)])
            return
        title = _NAMES.get(type(layer), type(layer).__name__)
        counts = [p.numel() for p in layer.parameters() if p.requires_grad]
        frozen = not counts and any(True for _ in layer.parameters())
        parameters = None if frozen else sum(counts)
        output = output[0].movedim(0, -1)
        rows.append(Row(title, name, tuple(output.shape), parameters, notes.get(name, "")))

    for name, layer in _layers(network):
        layer.register_forward_hook(partial(look, name))
    with torch.no_grad():
        network.to("meta").eval()(torch.empty(1, *shape))
    rows[-1] = _with_activation(rows[-1], last)
    return tuple(rows)


def _with_activation(row: Row, activation: str) -> Row:
    return replace(row, layer=f"{row.layer} ({activation})")


def _layers(network: nn.Module, before: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The network's children; in place of a Sequential among them, its own."""
    for name, layer in network.named_children():
        if isinstance(layer, nn.Sequential):
            yield from _layers(layer, f"{before}{name}.")
        else:
            yield before + name, layer


# What is seen


def render(tables: Sequence[Table]) -> Group:
    """The tables one below the other, with their footnotes, for a rich console."""
    notes = list(dict.fromkeys(row.note for t in tables for row in t.rows if row.note))
    footnotes = (text.Text(f"[{k}] {note}") for k, note in enumerate(notes, start=1))
    return Group(*(_render(t, notes) for t in tables), *footnotes)


def _render(shown: Table, notes: Sequence[str]) -> table.Table:
    # Narrow enough for 80 columns with the U-Net's longest names.
    result = table.Table(
        title=shown.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for title in ("Layer (activation)", "Name", "Output shape", "Param #"):
        justify: Literal["left", "right"] = "right" if title == "Param #" else "left"
        result.add_column(title, justify=justify, no_wrap=True)
    for row in shown.rows:
        mark = f" [{notes.index(row.note) + 1}]" if row.note else ""
        result.add_row(
            text.Text(row.layer + mark),
            row.name,
            f"({', '.join(map(str, ('n', *row.output)))})",
            "-" if row.parameters is None else f"{row.parameters:,}",
        )
    result.add_section()
    result.add_row("Total", "", "", f"{shown.total:,}")
    return result


def as_json(tables: Sequence[Table]) -> str:
    """The tables as JSON: a list of objects with study, form, title, rows and total."""
    return json.dumps([{**asdict(t), "total": t.total} for t in tables], indent=1)
