"""Units one after the other, each on all devices: as many processes, which train together.

If one is killed, the others are ended, as they would wait for it; then all start again, from the
last epoch. The first process of all writes the run's folder. The others keep what they receive in
a temporary folder of their own, so that machines need no shared disk.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import tempfile
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import RunConfig
from ..errors import StudyError
from ..processes import end_with_parent, start_process
from ..results import UnitFiles
from ..trial.unit import Epoch, GatheredSteps, Unit
from .protocol import ATTEMPTS, Done, Event, Failed, Restarted, Task, UnitTrainer
from .state import State, read_state, write_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric

MOST_DEVICES = 1024


@dataclass(frozen=True)
class Devices:
    """What one training runs on.

    Args:
        devices: processes of this machine, each with a GPU of its own, or on a CPU.
        nodes: machines, on each of which the same command is started.
    """

    devices: int = 1
    nodes: int = 1

    @property
    def processes(self) -> int:
        return self.devices * self.nodes

    def check(self, config: RunConfig) -> None:
        """A ``StudyError`` where this run cannot be trained on these devices."""
        for name, value in (("devices", self.devices), ("nodes", self.nodes)):
            if not 1 <= value <= MOST_DEVICES:
                raise StudyError(f"Expected 1 to {MOST_DEVICES} `{name}`, got {value}.")
        if config.batch < self.processes:
            raise StudyError(
                f"Expected a batch of at least {self.processes} images, one for each device, got "
                f"{config.batch}. Choose a larger `batch` or fewer `devices`."
            )
        if config.device not in ("cpu", "cuda"):
            raise StudyError(
                f"Expected `device` cpu or cuda with several devices, got {config.device}."
            )
        if find_spec("lightning_fabric") is None:
            raise StudyError(
                "Several `devices` need Lightning Fabric, which is not installed: pip install "
                "'tensorprojection[ddp]'"
            )
        if config.device == "cuda":
            import torch

            if torch.cuda.device_count() < self.devices:
                raise StudyError(
                    f"Expected {self.devices} GPUs for `devices` {self.devices}, but this machine "
                    f"has {torch.cuda.device_count()}."
                )


@dataclass(frozen=True)
class Meeting:
    """Where the processes of all machines find each other."""

    address: str
    port: int | None  # None for any that is free
    node: int

    @classmethod
    def of(cls, nodes: int, environment: Mapping[str, str] = os.environ) -> Meeting:
        """For one machine, any free port; for several, the environment variables of torchrun."""
        if nodes == 1:
            return cls("127.0.0.1", None, 0)
        node = environment.get("NODE_RANK", environment.get("SLURM_NODEID", ""))
        port = environment.get("MASTER_PORT", "")
        address = environment.get("MASTER_ADDR", "")
        if not (address and port.isdecimal() and node.isdecimal() and int(node) < nodes):
            raise StudyError(
                f"{nodes} `nodes` need MASTER_ADDR and MASTER_PORT of the first machine, the same "
                f"on all, and NODE_RANK from 0 to {nodes - 1}, got {address!r}, {port!r}, {node!r}."
            )
        return cls(address, int(port), int(node))


class ParallelExecutor:
    """Trains units on several devices at once."""

    def __init__(self, devices: Devices, config: RunConfig) -> None:
        devices.check(config)
        self.devices = devices
        self.meeting = Meeting.of(devices.nodes)

    def run_units(self, units: Sequence[Unit], jobs: int, task: Task) -> Iterator[Event]:
        """Train these units; ``jobs`` is ignored, as each unit takes all devices."""
        waiting = deque(units)
        deaths: Counter[Unit] = Counter()
        team: _Team | None = None
        try:
            while waiting:
                team = team or _Team(self.devices, self.meeting, task)
                unit = waiting.popleft()
                team.begin(unit)
                for event in team.events(unit):
                    if isinstance(event, Epoch):
                        deaths.pop(unit, None)
                    if isinstance(event, Restarted):
                        event = _again(event, deaths, waiting)
                    if isinstance(event, Failed | Restarted) and team is not None:
                        team.end()  # its processes may wait for what will not come
                        team = None
                    yield event
        finally:
            if team is not None:
                team.end()

    def take_part(self, task: Task) -> None:
        """On every machine but the first: train with it until it has no more units."""
        for _ in range(ATTEMPTS):
            team = _Team(self.devices, self.meeting, task)
            try:
                codes = team.ends()
            finally:
                team.end()
            if not any(codes):
                return
        raise StudyError(
            f"The processes of this machine ended {ATTEMPTS} times before the first machine's. "
            "See there; the same command on all machines continues."
        )


def _again(event: Restarted, deaths: Counter[Unit], waiting: deque[Unit]) -> Event:
    unit = event.unit
    deaths[unit] += 1
    if deaths[unit] < ATTEMPTS:
        waiting.appendleft(unit)
        return event
    return Failed(
        unit,
        f"one of its processes ended {ATTEMPTS} times with {event.how}, perhaps for lack of "
        "memory. Run again with a smaller `batch`: what was computed is kept.",
    )


class _Team:
    """The processes of this machine that train together."""

    def __init__(self, devices: Devices, meeting: Meeting, task: Task) -> None:
        port = _free_port() if meeting.port is None else meeting.port
        self.processes: list[BaseProcess] = []
        self.links: list[Connection] = []
        for local in range(devices.devices):
            ours, theirs = multiprocessing.Pipe()
            place = _Place(devices, replace(meeting, port=port), local)
            self.processes.append(start_process(work, theirs, task, place))
            theirs.close()
            self.links.append(ours)

    def begin(self, unit: Unit) -> None:
        with suppress(OSError):  # a process that is gone is found out below
            self.links[0].send(unit)

    def events(self, unit: Unit) -> Iterator[Event]:
        """The first process's events until the unit has ended; a failure may come from any."""
        while True:
            for link in wait(self.links):
                assert isinstance(link, Connection)
                try:
                    event: Event = link.recv()
                except (EOFError, OSError):
                    yield Restarted(unit, self._how(self.links.index(link)))
                    return
                yield event
                if isinstance(event, Done | Failed):
                    return

    def _how(self, number: int) -> str:
        process = self.processes[number]
        process.join()
        code = process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def ends(self) -> list[int | None]:
        """Wait for all; as soon as one has failed, for no other."""
        while True:
            living = [process.sentinel for process in self.processes if process.is_alive()]
            if living:  # it would wait for nothing for ever
                wait(living)
            codes = [process.exitcode for process in self.processes]
            if any(codes) or None not in codes:
                return codes

    def end(self) -> None:
        for link in self.links[:1]:
            with suppress(OSError):
                link.send(None)
        for process in self.processes:
            process.join(timeout=0 if any(p.exitcode for p in self.processes) else 2)
            process.kill()
            process.join()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


# In the processes


@dataclass(frozen=True)
class _Place:
    """A process's rank among all."""

    devices: Devices
    meeting: Meeting
    local: int

    def environment(self) -> dict[str, str]:
        """As torchrun sets it."""
        return {
            "MASTER_ADDR": self.meeting.address,
            "MASTER_PORT": str(self.meeting.port),
            "GROUP_RANK": str(self.meeting.node),
            "LOCAL_RANK": str(self.local),
            "RANK": str(self.meeting.node * self.devices.devices + self.local),
            "WORLD_SIZE": str(self.devices.processes),
        }


def work(link: Connection, task: Task, place: _Place) -> None:
    """Train, with the others, each unit that the first process gets, until that is None."""
    end_with_parent()
    os.environ.update(place.environment())
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    import torch

    from ..trial.parallel import Parallel

    torch.set_num_threads(task.config.threads)
    fabric = _fabric(task, place.devices)
    first = fabric.global_rank == 0
    with tempfile.TemporaryDirectory(prefix="tpl-") as own:
        run = task.run if first else Path(own)
        trainer = UnitTrainer(replace(task, run=run), Parallel(fabric))
        while True:
            told = fabric.broadcast(_next(link, task) if first else None)
            assert told is not None
            unit = told.unit
            if unit is None:
                return
            if not first:
                told.check(task)
                write_state(UnitFiles.of(run, unit.trial, unit.model), told.state)
            ended = trainer(unit, GatheredSteps(link.send) if first else lambda event: None)
            if first or isinstance(ended, Failed):
                link.send(ended)


@dataclass(frozen=True)
class _Announcement:
    """What the first process tells the others: the next unit, and what they must agree on."""

    unit: Unit | None
    state: State
    code: str
    identity: dict[str, str]

    def check(self, task: Task) -> None:
        """The machines may have other code or other images."""
        if (self.code, self.identity) != (task.code, task.inputs.identity()):
            raise SystemExit("tpl: this machine has other code or other images than the first.")


def _next(link: Connection, task: Task) -> _Announcement:
    unit: Unit | None = link.recv()
    state = State()
    if unit is not None:
        state, notices = read_state(unit, UnitFiles.of(task.run, unit.trial, unit.model))
        for notice in notices:
            link.send(notice)
    return _Announcement(unit, state, task.code, task.inputs.identity())


def _fabric(task: Task, devices: Devices) -> Fabric:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    # Its log reports every start; set after the import, which sets it as well.
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    accelerator = task.config.device
    made = Fabric(
        accelerator=accelerator,
        devices=devices.devices,
        num_nodes=devices.nodes,
        precision=task.config.precision,
        plugins=[TorchElasticEnvironment()],
        strategy=DDPStrategy(
            process_group_backend="nccl" if accelerator == "cuda" else "gloo",
            forward_sync_buffers=False,  # they are the same everywhere; see shared_layers.py
        ),
    )
    made.launch()
    return made
