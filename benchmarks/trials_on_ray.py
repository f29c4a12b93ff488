"""Trials on Ray beside trials in local processes, and what the driver has to do for each.

python benchmarks/trials_on_ray.py rate      # epochs per second, Ray / local, small preset of oct
python benchmarks/trials_on_ray.py empty     # the time that a trial takes which has nothing to do
python benchmarks/trials_on_ray.py driver    # 200 mock trials: the driver's time, bytes and memory

The mock trials send what real ones send, as often as they like: rows, and checkpoints of the size
that the network has.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from tensorprojection.studies.code_version import code_version
from tensorprojection.studies.config import RunConfig, resolve
from tensorprojection.studies.execute import local
from tensorprojection.studies.execute.protocol import Done, Executor, Task
from tensorprojection.studies.execute.ray import RayExecutor
from tensorprojection.studies.execute.ray_cluster import RayOptions, connected
from tensorprojection.studies.execute.ray_worker import KeptEpoch, Trainer, UnitEnd
from tensorprojection.studies.execute.state import State, write_state
from tensorprojection.studies.oct import OCT
from tensorprojection.studies.results import UnitFiles
from tensorprojection.studies.trial.unit import Epoch, Unit

JOBS = 2
LINE = b'{"epoch": 1, "train_loss": 1.0, "loss": 1.0, "accuracy": 0.5, "f1": 0.5, "code": "x"}\n'


def mock(epochs: int, size: int) -> type[Trainer]:
    """A trainer that trains nothing, and sends so many epochs with checkpoints of that size."""

    class Mock(Trainer):
        def _train(self, unit: Unit, state: State) -> None:
            for epoch in range(1, epochs + 1):
                row = {"epoch": epoch, "loss": 1.0, "accuracy": 0.5, "f1": 0.5}
                kept = State(LINE * epoch, os.urandom(size))
                self._messages.put(KeptEpoch(Epoch(unit, row), kept))
            self._messages.put(UnitEnd(unit, b"", Done(unit)))

    return Mock


def task_of(config: RunConfig, folder: str) -> Task:
    inputs = OCT.prepare(config, 1, lambda *_: None)
    return Task(config, inputs, Path(folder), code_version(config.study))


def rate(execute: Executor, config: RunConfig) -> float:
    """Epochs per second, from the first that every worker has finished to the last but these."""
    with tempfile.TemporaryDirectory() as folder:
        units = [Unit(trial, "tpl2") for trial in range(JOBS)]
        ends = [
            time.perf_counter()
            for event in execute(units, JOBS, task_of(config, folder))
            if isinstance(event, Epoch)
        ]
    steady = ends[JOBS - 1 : len(ends) - JOBS + 1]
    return (len(steady) - 1) / (steady[-1] - steady[0])


def compare_rates(rounds: int, flags: dict[str, Any]) -> None:
    config = resolve(OCT, "small", None, flags)
    ratios = []
    options = RayOptions()
    with connected(options) as until:
        there = RayExecutor(options, config, until)
        for _ in range(rounds):
            here, ray = rate(local.run_units, config), rate(there.run_units, config)
            ratios.append(ray / here)
            print(f"local {here:.4f}, Ray {ray:.4f} epochs/s: {ratios[-1]:.2f}", flush=True)
    print(f"Ray / local: {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


def empty_trials(count: int) -> None:
    """The first of each worker pays for its start; the others for a message each way."""
    config, options = resolve(OCT, "smoke"), RayOptions()
    with connected(options) as until, tempfile.TemporaryDirectory() as folder:
        there = RayExecutor(options, config, until, mock(0, 0))
        units = [Unit(trial, "base") for trial in range(count)]
        ends = [
            time.perf_counter()
            for event in there.run_units(units, 1, task_of(config, folder))
            if isinstance(event, Done)
        ]
    took = sorted(1e3 * (b - a) for a, b in pairwise(ends))
    print(f"an empty trial: {median(took):.1f} ms ({took[0]:.1f}-{took[-1]:.1f}, {count} trials)")


def checkpoint_size(config: RunConfig) -> int:
    """Of a real unit after its first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        for event in local.run_units([Unit(0, "tpl2")], 1, task_of(config, folder)):
            if isinstance(event, Epoch):
                return UnitFiles.of(Path(folder), 0, "tpl2").checkpoint.stat().st_size
    raise AssertionError("no epoch")


def driver(trials: int, epochs: int) -> None:
    first = resolve(OCT, "small", None, {"epochs": 1, "images": 64})
    size = checkpoint_size(first)
    inputs = OCT.prepare(resolve(OCT, "small"), 1, lambda *_: None)
    shared = sum(f.stat().st_size for p in inputs.folders.values() for f in p.glob("*.npy"))
    config, options = resolve(OCT, "smoke"), RayOptions()
    with connected(options) as until, tempfile.TemporaryDirectory() as folder:
        there = RayExecutor(options, config, until, mock(epochs, size))
        task = task_of(config, folder)
        units = [Unit(trial, "tpl2") for trial in range(trials)]
        memory, done = [], 0
        began, used = 0.0, 0.0
        for event in there.run_units(units, JOBS, task):
            if isinstance(event, Epoch) and not began:
                began, used = time.perf_counter(), time.process_time()
            if isinstance(event, Done):
                done += 1
                if done % (trials // 10) == 0:
                    memory.append(resident())
        seconds, busy = time.perf_counter() - began, time.process_time() - used
        written = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        alone = write_alone(Path(folder), size, epochs)
    count = trials * epochs
    print(f"checkpoint: {size / 1e6:.3f} MB; images to each node, once: {shared / 1e6:.2f} MB")
    print(f"to keep one epoch on this disk: {1e3 * alone:.2f} ms")
    print(
        f"{count} epochs of {trials} mock trials in {seconds:.1f} s: {count / seconds:.0f} a second"
    )
    print(f"each takes the driver {1e3 * busy / count:.2f} ms of processor time")
    print(f"written: {written / 1e6:.0f} MB for the last epoch of each trial")
    print("driver's own memory, MB, after each tenth:", " ".join(f"{m:.0f}" for m in memory))


def write_alone(folder: Path, size: int, epochs: int) -> float:
    """Seconds that the driver takes to keep an epoch, without Ray."""
    state, files = State(LINE * epochs, os.urandom(size)), UnitFiles.of(folder, 0, "alone")
    times = []
    for _ in range(50):
        started = time.perf_counter()
        write_state(files, state)
        times.append(time.perf_counter() - started)
    return median(times)


def resident() -> float:
    """This process's own memory, in MB: without that of the object store, which it sees as well."""
    text = Path("/proc/self/status").read_text()
    return float(text.split("RssAnon:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("rate", "empty", "driver"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--trials", type=int, default=200)
    given = parser.parse_args()
    if given.part == "rate":
        compare_rates(given.rounds, {"epochs": given.epochs, "images": given.images})
    elif given.part == "empty":
        empty_trials(given.trials)
    else:
        driver(given.trials, given.epochs)


if __name__ == "__main__":
    main()
