"""Executors: they train jobs in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import os


def default_jobs(threads: int, device: str) -> int:
    """Return as many processes as fill the machine; one if a GPU does the work."""
    if not device.startswith("cpu"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // threads)
