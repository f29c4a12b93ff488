"""Event files beside a run, for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from ..studies.errors import StudyError
from ..studies.training.job import Epoch, Event, Job


class Events:
    """Writes every epoch's numbers to ``RUN/tensorboard/MODEL/TRIAL``; used as a context."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise StudyError(
                "--tensorboard needs TensorBoard: pip install 'tensorprojection[tensorboard]'."
            ) from None
        self.folder = run / "tensorboard"
        self.make = SummaryWriter
        self.writers: dict[Job, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers.values():
            writer.close()

    def show(self, event: Event) -> None:
        """Write the event, if it is an epoch."""
        if not isinstance(event, Epoch):
            return
        job = event.job
        if job not in self.writers:
            place = self.folder / job.model / f"{job.trial + 1:03d}"
            # An epoch that is trained again, after a kill, takes the place of the first.
            self.writers[job] = self.make(str(place), purge_step=event.row["epoch"])
        for name, value in event.row.items():
            if isinstance(value, float):
                self.writers[job].add_scalar(name, value, event.row["epoch"])
        self.writers[job].flush()
