"""Measure the throughput of two jobs on two cores, relative to one single-threaded job.

python benchmarks/jobs.py
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from tensorprojection.studies.config import RunConfig, code_version, resolve
from tensorprojection.studies.executors.base import Task
from tensorprojection.studies.executors.local import run_jobs
from tensorprojection.studies.inputs import RunInputs
from tensorprojection.studies.oct import OCT
from tensorprojection.studies.training.job import Epoch, Job


def rate(config: RunConfig, inputs: RunInputs, jobs: int) -> float:
    """Return epochs per second, from the first of every process to the last but ``jobs``."""
    with tempfile.TemporaryDirectory() as folder:
        task = Task(OCT, config, inputs, Path(folder), code_version())
        events = run_jobs([Job(trial, "base") for trial in range(jobs)], jobs, task)
        ends = [time.perf_counter() for event in events if isinstance(event, Epoch)]
    # The first epochs pay for imports, and near the end a process may be alone.
    steady = ends[jobs : len(ends) - jobs]
    return (len(steady) - 1) / (steady[-1] - steady[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    flags = {"images": 400, "epochs": options.epochs, "batch": 64}
    config = resolve(OCT, "paper", None, flags)
    inputs = OCT.prepare(config, 1, lambda *_: None)
    ratios = []
    for _ in range(options.rounds):
        one, two = (rate(config, inputs, jobs) for jobs in (1, 2))
        ratios.append(two / one)
        print(f"one job {one:.3f}, two jobs {two:.3f} epochs/s: {ratios[-1]:.2f}")
    print(f"two jobs / one: {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


if __name__ == "__main__":
    main()
