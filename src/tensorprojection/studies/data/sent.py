"""Folders of the cache whose content came from another machine, in memory that processes share.

Code that opens files of the cache looks here first; see ``stored.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Content = NDArray[Any] | str  # of an .npy file, or of a text
_received: dict[Path, dict[str, Content]] = {}


def content_of(folder: Path) -> dict[str, Content]:
    """All arrays and texts that a folder of the cache holds, mapped and not read."""
    found: dict[str, Content] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".npy":
            # A plain array: a mapped one would be sent with what it is mapped from.
            found[path.name] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        elif path.name == "class_names.json":
            found[path.name] = path.read_text()
    return found


def receive(folder: Path, content: Mapping[str, Content]) -> None:
    """From now on the folder has this content in this process, whatever the disk has."""
    _received[folder] = dict(content)


def is_received(folder: Path) -> bool:
    """Whether its content is in memory."""
    return folder in _received


def received(path: Path) -> Content | None:
    """The content of a file of such a folder; None where the disk is to be asked."""
    return _received.get(path.parent, {}).get(path.name)
