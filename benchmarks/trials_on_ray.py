"""Measure trials on Ray relative to trials in local processes: epochs per second.

python benchmarks/trials_on_ray.py --rounds 3
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from tensorprojection.studies.config import RunConfig, code_version, resolve
from tensorprojection.studies.executors.base import Executor, Task
from tensorprojection.studies.executors.local import run_jobs
from tensorprojection.studies.executors.ray import RayOptions, connected
from tensorprojection.studies.oct import OCT
from tensorprojection.studies.training.job import Epoch, Job

JOBS = 2


def rate(execute: Executor, config: RunConfig) -> float:
    """Return epochs per second, from the first that every worker has finished to the last."""
    inputs = OCT.prepare(config, 1, lambda *_: None)
    with tempfile.TemporaryDirectory() as folder:
        task = Task(OCT, config, inputs, Path(folder), code_version())
        jobs = [Job(trial, "tpl2") for trial in range(JOBS)]
        events = execute(jobs, JOBS, task)
        ends = [time.perf_counter() for event in events if isinstance(event, Epoch)]
    steady = ends[JOBS - 1 : len(ends) - JOBS + 1]
    return (len(steady) - 1) / (steady[-1] - steady[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=1200)
    given = parser.parse_args()
    config = resolve(OCT, "small", None, {"epochs": given.epochs, "images": given.images})
    ratios = []
    for _ in range(given.rounds):
        here = rate(run_jobs, config)
        with connected(RayOptions(), config) as cluster:
            ray = rate(cluster.run_jobs, config)
        ratios.append(ray / here)
        print(f"local {here:.4f}, Ray {ray:.4f} epochs/s: {ratios[-1]:.2f}", flush=True)
    print(f"Ray / local: {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


if __name__ == "__main__":
    main()
