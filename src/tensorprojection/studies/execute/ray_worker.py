"""The process on a Ray node that trains: it is given a unit and what is kept of it, sends every
epoch back, and writes nothing of the run's folder.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data.cache import DIGEST
from ..data.sent import is_received, receive
from ..data.sums import damage
from ..results import UnitFiles
from ..trial.unit import Epoch, GatheredSteps, Notice, Step, Unit
from .protocol import Done, Failed, Task, UnitTrainer
from .state import State, state_of, write_state

# Steps are sent less often than by local processes: a driver may have a thousand workers.
SAY_SECONDS = 1.0
UNSENT = 16  # messages that may wait for the driver before the training does


@dataclass(frozen=True)
class KeptEpoch:
    """An epoch is done; it counts once the driver has kept its state."""

    epoch: Epoch
    state: State


@dataclass(frozen=True)
class UnitEnd:
    """The unit's last message: it is done, or failed."""

    unit: Unit
    lines: bytes
    how: Done | Failed


Message = Step | Notice | KeptEpoch | UnitEnd


class Trainer:
    """A Ray actor. Training runs in a thread of its own while the driver fetches messages."""

    def __init__(self, task: Task) -> None:
        # In place of the run's own folder: a unit keeps its epochs in one way everywhere.
        self._run = Path(tempfile.mkdtemp(prefix="tpl-"))
        self._task = replace(task, run=self._run)
        self._trainer: UnitTrainer | None = None
        self._messages: queue.Queue[Message] = queue.Queue(UNSENT)

    def lacks(self, folders: Mapping[Path, str], paths: bool) -> list[Path]:
        """Those of these folders, given with their digests, that this process cannot read.

        Args:
            folders: where the driver has them, and the digest of what they hold.
            paths: whether folders of the same path are looked at, and used if they hold the same.
        """
        return [
            folder
            for folder, digest in folders.items()
            if not (is_received(folder) or (paths and _holds(folder, digest)))
        ]

    def receive(self, sent: Mapping[Path, Mapping[str, Any]]) -> None:
        """Take folders out of Ray's object store, where they lie once per node; nothing is copied.

        Args:
            sent: references to the content of the files, by folder and name.
        """
        import ray

        for folder, files in sent.items():
            receive(folder, {name: ray.get(file) for name, file in files.items()})

    def begin(self, unit: Unit, state: State) -> None:
        """Train the unit from that state on; :meth:`messages` gives its events."""
        threading.Thread(target=self._train, args=(unit, state), daemon=True).start()

    def messages(self) -> list[Message]:
        """The events since the last call; waits until there is one."""
        found = [self._messages.get()]
        while not self._messages.empty():
            found.append(self._messages.get())
        return found

    def _train(self, unit: Unit, state: State) -> None:
        files = UnitFiles.of(self._run, unit.trial, unit.model)

        def send(event: Step | Epoch | Notice) -> None:
            if isinstance(event, Epoch):
                self._messages.put(KeptEpoch(event, state_of(files)))
            else:
                self._messages.put(event)

        try:
            write_state(files, state)
            # In this thread: torch's number of threads is a thread's own.
            self._trainer = self._trainer or UnitTrainer(self._task)
            how = self._trainer(unit, GatheredSteps(send, SAY_SECONDS))
            lines = files.lines.read_bytes() if files.lines.exists() else b""
        except Exception as error:  # whatever it is, the driver must not wait forever
            how, lines = Failed(unit, f"{type(error).__name__}: {error}"), b""
        self._messages.put(UnitEnd(unit, lines, how))
        shutil.rmtree(files.lines.parent, ignore_errors=True)


def _holds(folder: Path, digest: str) -> bool:
    """Whether there is a folder of that path here, whole, and with that content."""
    try:
        return (folder / DIGEST).read_text() == digest and damage(folder) is None
    except OSError:
        return False
