"""The file of a kept network: safetensors, with its settings and results in the header.

So there is no second file to lose, and both are written whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from .errors import StudyError

if TYPE_CHECKING:
    from torch import Tensor

Keep = Literal["best", "last", "none"]

# Raised when a file's content changes its meaning.
FORMAT = "1"
AGAIN = "Remove it, and run the same command again."


def read_header(file: Path) -> dict[str, str]:
    """What is known of the network in that file; ``StudyError`` where it is not such a file."""
    try:
        with safe_open(file, "pt") as opened:
            header = dict(opened.metadata() or {})
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as error:
        raise StudyError(f"{file} is damaged ({error}). {AGAIN}") from None
    if header.get("format") != FORMAT:
        found = header.get("format", "none")
        raise StudyError(
            f"Expected a network of format {FORMAT} in {file}, got {found}: another version of "
            "tensorprojection, or another program, has written it. Use that one."
        )
    return header


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The network's values."""
    try:
        with safe_open(file, "pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StudyError(f"{file} is damaged ({error}). {AGAIN}") from None


def score(metrics: Mapping[str, Any]) -> float:
    """What decides which network is the best: the validation loss, where a study measures it."""
    found: float = metrics["loss"] if "loss" in metrics else metrics["train_loss"]
    return found


def as_header(known: Mapping[str, Any]) -> dict[str, str]:
    """A header of plain values, which are strings there or JSON."""
    return {"format": FORMAT} | {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in known.items()
    }
