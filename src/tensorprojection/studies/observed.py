"""What was observed of a network while it trained, read back; torch is not needed for it.

It is kept beside the network's rows, as ``trials/001/tpl1.observed.npz``. Runs of older versions
have none, and a run that was started by one has only later epochs: see which ones there are.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Which of the validation images are kept with their predictions, by their own Dice score.
CHOSEN = ("best", "median", "worst")


@dataclass(frozen=True)
class Observed:
    """The arrays by name. Those of all epochs have a row for each of ``epochs``.

    ==========================  =============================================================
    epochs                      the numbers of the epochs
    confusion                   (epochs, classes, classes): true class by row, predicted by column
    orthogonality/LAYER         largest ‖UᵀU − I‖ of the layer
    energy/LAYER                share of its input's energy that the projection lets through
    start/LAYER/K, U/LAYER/K    U of mode K before the first epoch, and after the last
    by_epoch/LAYER/K            (epochs, p, q): U of mode K after each epoch, where it is small
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
        """The arrays of a kind, by what follows it.

        >>> Observed({"epochs": np.arange(1), "U/pool/2": np.eye(2)}).named("U")
        {'pool/2': array([[1., 0.],
               [0., 1.]])}
        """
        begin = f"{kind}/"
        return {k.removeprefix(begin): v for k, v in self.arrays.items() if k.startswith(begin)}


def read_observed(path: Path) -> Observed | None:
    """The observations; None where there are none, or none that can be read."""
    try:
        # Through memory: NumPy leaves the handle of a damaged file open.
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return Observed(arrays) if "epochs" in arrays else None
