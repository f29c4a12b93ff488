"""Which executor carries out a run: connected and checked before anything is prepared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..config import RunConfig
from ..errors import StudyError
from .local import run_units
from .parallel import Devices, ParallelExecutor
from .protocol import Executor
from .ray_cluster import RayOptions, connected


@dataclass(frozen=True)
class ChosenExecutor:
    """An executor, and how many units it can train at once."""

    execute: Executor
    jobs: int
    helps: ParallelExecutor | None = None  # where this machine takes part in another's run


@contextmanager
def executor(
    config: RunConfig, ray: RayOptions | None, devices: Devices
) -> Iterator[ChosenExecutor]:
    """The executor for this run.

    Args:
        config: the run's settings.
        ray: the cluster, where trials go to one.
        devices: what one training runs on.
    """
    several = devices != Devices()
    if ray is not None:
        if several:
            raise StudyError(
                "Expected `executor` ray or one training on several `devices` or `nodes`, got both."
            )
        ray.resources(config)  # what cannot be asked for, before a cluster is started for it
        with connected(ray) as until:
            from .ray import RayExecutor

            found = RayExecutor(ray, config, until)
            yield ChosenExecutor(found.run_units, found.places)
    elif several:
        together = ParallelExecutor(devices, config)
        yield ChosenExecutor(together.run_units, 1, together if together.meeting.node else None)
    else:
        yield ChosenExecutor(run_units, default_jobs(config.threads, config.device))


def default_jobs(threads: int, device: str) -> int:
    """As many processes as fill the machine; one where a GPU does the work."""
    if not device.startswith("cpu"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // threads)
