"""Weights that someone else trained: found or fetched, checked, and read as plain tensors."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import torch
from torch import Tensor, nn

from ..errors import StudyError

# torchvision's rule, and others': model-0123abcd.pth has a sha256 that begins with 0123abcd.
HASH = re.compile(r"-([0-9a-f]{8})\.")


def sha256(path: Path) -> str:
    """The file's sha256. Where its name carries eight digits of one, they must be its own."""
    try:
        got = _digest(path)
    except OSError as error:
        raise StudyError(f"Could not read the weights {path}: {error.strerror}.") from error
    named = HASH.search(path.name)
    if named and not got.startswith(named[1]):
        raise StudyError(
            f"Expected a file whose sha256 begins with {named[1]}, as its name says, got {path} "
            f"with {got[:8]}: it is damaged, or another file under that name. Fetch it again."
        )
    return got


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(url: str, otherwise: str) -> Path:
    """The file behind the address, from torch.hub's folder or else downloaded into it.

    Args:
        url: its last part is a name that carries the hash.
        otherwise: a sentence that says what to do where it cannot be had.
    """
    place = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[1]
    if place.exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole and right, so that what is in place is.
        with tempfile.TemporaryDirectory(dir=place.parent) as beside:
            part = Path(beside) / place.name
            _download(url, part)
            named = HASH.search(place.name)
            if named and not _digest(part).startswith(named[1]):
                raise HTTPException(f"what came has no sha256 that begins with {named[1]}")
            part.rename(place)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise StudyError(f"Could not download {place.name} ({reason}). {otherwise}") from error
    return place


def _download(url: str, place: Path) -> None:
    # torch.hub's own has no time limit, and leaves connections open.
    try:
        with urlopen(url, timeout=30) as answer, open(place, "wb") as file:
            shutil.copyfileobj(answer, file)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise


def read(path: Path) -> dict[str, Tensor]:
    """The tensors in the file, by name. Nothing but tensors is let in."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises whatever its bytes happen to mean
        raise StudyError(
            f"Expected a file of weights as torch.save writes it, got {path}, which is damaged or "
            "something else. Fetch it again."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise StudyError(f"Expected tensors by name in {path}, got something else.")
    return dict(state)


def load(network: nn.Module, state: dict[str, Tensor], name: str, path: Path) -> None:
    """Give the network these weights, every one of them; no other and none of another shape."""
    # Files from before 2018 do not count batches, and a frozen network does not need to.
    wanted = {k: v for k, v in network.state_dict().items() if "num_batches" not in k}
    given = {k: v for k, v in state.items() if "num_batches" not in k}
    wrong = (
        [f"{k} is missing" for k in wanted if k not in given]
        + [f"{k} is not part of it" for k in given if k not in wanted]
        + [
            f"{k} has shape {tuple(given[k].shape)}, not {tuple(v.shape)}"
            for k, v in wanted.items()
            if k in given and given[k].shape != v.shape
        ]
    )
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise StudyError(f"Expected the weights of {name} in {path}, but {wrong[0]}{more}.")
    network.load_state_dict(given, strict=False)
