"""Executors: they train jobs in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import RunConfig

if TYPE_CHECKING:
    from .base import Executor
    from .ray import RayOptions


@dataclass(frozen=True)
class ChosenExecutor:
    """An executor, and how many jobs it can train at once."""

    execute: Executor
    jobs: int


@contextmanager
def executor(config: RunConfig, ray: RayOptions | None = None) -> Iterator[ChosenExecutor]:
    """Yield the executor for a run; it is connected and checked before anything is prepared.

    Args:
        config: the run's settings.
        ray: the cluster, if jobs go to one.
    """
    if ray is None:
        from .local import run_jobs

        yield ChosenExecutor(run_jobs, default_jobs(config.threads, config.device))
    else:
        from .ray import connected

        with connected(ray, config) as cluster:
            yield ChosenExecutor(cluster.run_jobs, cluster.places)


def default_jobs(threads: int, device: str) -> int:
    """Return as many processes as fill the machine; one if a GPU does the work."""
    if not device.startswith("cpu"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // threads)
