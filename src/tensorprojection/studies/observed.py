"""Observations of a network's training, read back; torch is not needed for it.

They are beside the network's rows, as ``trials/001/tpl1.observed.npz``. The zip format has a
checksum of each array.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# The validation images that are saved with their predictions, by the Dice score of each.
CHOSEN = ("best", "median", "worst")


@dataclass(frozen=True)
class Observed:
    """The arrays by name. Those of all epochs have a row for each of ``epochs``.

    ==========================  =============================================================
    epochs                      the numbers of the epochs
    confusion                   (epochs, classes, classes): true class by row, predicted by column
    orthogonality/LAYER         largest ‖UᵀU − I‖ of the layer
    energy/LAYER                share of its input's energy that the projection passes
    start/LAYER/K, U/LAYER/K    U of mode K before the first epoch, and after the last
    by_epoch/LAYER/K            (epochs, p, q): U of mode K after each epoch, if it is small
    images, masks, predictions  the images of ``CHOSEN``, at the last epoch
    dice                        their Dice scores
    ==========================  =============================================================
    """

    arrays: Mapping[str, Array]

    @property
    def epochs(self) -> list[int]:
        return [int(epoch) for epoch in self.arrays["epochs"]]

    def get(self, name: str) -> Array | None:
        return self.arrays.get(name)

    def named(self, kind: str) -> dict[str, Array]:
        """Return the arrays of a kind, by what follows it.

        >>> Observed({"epochs": np.arange(1), "U/pool/2": np.eye(2)}).named("U")
        {'pool/2': array([[1., 0.],
               [0., 1.]])}
        """
        begin = f"{kind}/"
        return {k.removeprefix(begin): v for k, v in self.arrays.items() if k.startswith(begin)}


def read_observed(path: Path) -> Observed | None:
    """Return the observations of that file; None if it is missing or corrupted."""
    return parse_observed(path.read_bytes()) if path.is_file() else None


def parse_observed(content: bytes) -> Observed | None:
    """Return the observations of a file's content; None if it is corrupted."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception:  # zipfile, zlib and NumPy raise many kinds
        return None
    return Observed(arrays) if "epochs" in arrays else None
