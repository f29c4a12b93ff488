"""The file of a saved network: safetensors, with its settings and metrics in the header.

The header also has a checksum of itself and of all values: a single changed byte can turn one class
into another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError

from .errors import StudyError

if TYPE_CHECKING:
    from torch import Tensor

Keep = Literal["best", "last", "none"]


class About(BaseModel):
    """A description of a saved network."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    config: dict[str, Any]  # the run's settings
    model: str
    trial: int  # from 1, as in the folders' names
    epoch: int
    metrics: dict[str, float]  # at that epoch
    class_names: tuple[str, ...]
    code: str  # its version
    keep: Keep


def score(metrics: Mapping[str, Any]) -> float:
    """Return the validation loss, or the training loss if a study has none; the lowest is best."""
    found: float = metrics["loss"] if "loss" in metrics else metrics["train_loss"]
    return found


def encode_network(about: About, values: Mapping[str, Tensor]) -> bytes:
    """Return the content of the network's file."""
    import torch
    from safetensors.torch import save

    # Copies, as safetensors does not take tensors that share their memory.
    tensors = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in values.items()
    }
    text = about.model_dump_json()
    return save(tensors, {"about": text, "sha256": _checksum(text, tensors)})


def read_network(file: Path) -> tuple[About, dict[str, Tensor]]:
    """Return the description and the values of the network in that file, all of it checked."""
    from safetensors.torch import load

    content = file.read_bytes()  # not mapped: values that are checked must not change afterwards
    try:
        tensors = load(content)
        end = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:end]).get("__metadata__", {})
        text = header.get("about", "")
        if header.get("sha256") != _checksum(text, tensors):
            raise ValueError("its checksum is another")
    except (SafetensorError, ValueError) as error:
        raise StudyError(
            f"{file} is corrupted, or another program has written it ({error}). Remove it, and run "
            "the same command as before: it trains this network again, to the same values."
        ) from None
    try:
        return About.model_validate_json(text), tensors
    except ValidationError as error:
        raise StudyError(f"Expected a network of tpl run in {file}: {error.errors()[0]}.") from None


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    from safetensors.torch import save

    return hashlib.sha256(text.encode() + save(dict(tensors))).hexdigest()
