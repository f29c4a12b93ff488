"""Keeps a unit's network beside its rows.

A network is kept before its epoch's checkpoint is: see Note [Observed before the checkpoint] in
observer.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import nn

from ..config import RunConfig
from ..errors import StudyError
from ..files import write_whole
from ..network_file import Keep, as_header, read_header, score
from ..results import EpochRow, UnitFiles
from .unit import Unit


class Keeper:
    """Keeps a unit's network after an epoch, if it is to be kept.

    Args:
        keep: which one: of the epoch with the lowest validation loss, the last, or none.
        run: the folder of the run.
        config: its settings.
        unit: whose network it is.
        class_names: those of the run's images, for whoever uses the network.
    """

    def __init__(
        self, keep: Keep, run: Path, config: RunConfig, unit: Unit, class_names: Sequence[str]
    ) -> None:
        self.keep, self.config, self.unit = keep, config, unit
        self.class_names = list(class_names)
        self.file = UnitFiles.of(run, unit.trial, unit.model).network

    def take(self, network: nn.Module, row: EpochRow) -> None:
        """The network after this epoch: the last is always kept, the best where it is better."""
        if self.keep == "none" or (self.keep == "best" and self._is_better_there(row)):
            return
        header = as_header(
            {
                "config": self.config.as_settings(),
                "model": self.unit.model,
                "trial": self.unit.trial + 1,
                "epoch": row["epoch"],
                "metrics": {k: v for k, v in row.items() if k not in ("epoch", "seconds", "code")},
                "class_names": self.class_names,
                "code": str(row["code"]),
                "keep": self.keep,
            }
        )
        # Copies, as the file's format has no tensors that share their memory.
        tensors = {
            name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, value in network.state_dict().items()
        }
        write_whole(self.file, save(tensors, header))

    def _is_better_there(self, row: EpochRow) -> bool:
        """Whether an earlier epoch was better; by the file itself, which a kill leaves whole.

        A file of this epoch or a later one is of a process that was killed, or of a training that
        was lost; what it would have kept comes again.
        """
        try:
            header = read_header(self.file)
            epoch, there = int(header["epoch"]), score(json.loads(header["metrics"]))
        except (StudyError, FileNotFoundError, KeyError, ValueError):
            return False
        return bool(epoch < row["epoch"] and there <= score(row))
