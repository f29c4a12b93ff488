"""Measure training of the OCT CNN in images per second, beside Keras 3 on its torch backend.

Both train the same network on the same batches, in turns, with two threads in one process. The next
lines are for one single-threaded process per core, as in ``tpl run``, in both precisions. The last
one is the share of a step that is spent on input.

    python benchmarks/oct_training.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import numpy as np
import torch
from torch import nn

from tensorprojection.bench.measure import ratio, take_turns
from tensorprojection.studies.config import Precision, resolve
from tensorprojection.studies.data.phantoms import oct_phantoms
from tensorprojection.studies.executors.local import settings_to_inherit
from tensorprojection.studies.inputs import Samples, samples_of
from tensorprojection.studies.networks.oct_cnn import oct_cnn
from tensorprojection.studies.oct import OCT, PAPER
from tensorprojection.studies.training.train import batches, output_of


def samples(batch: int, precision: Precision = "32-true") -> Samples:
    config = resolve(OCT, "paper", None, {"batch": batch, "precision": precision})
    return replace(samples_of(config, oct_phantoms(batch)), preprocess=OCT.preprocess(config))


def our_step(model: str, data: Samples) -> Callable[[], None]:
    """Return a training step as in a study, input included."""
    network: Any = oct_cnn(model).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    rows = np.arange(len(data.originals))

    def step() -> None:
        for x, y in batches(data, rows, data.config):
            optimizer.zero_grad()
            nn.functional.cross_entropy(output_of(network, x, data.config), y).backward()
            optimizer.step()

    return step


def keras_step(data: Samples) -> Callable[[], None]:
    import keras

    layers = keras.layers
    network = keras.Sequential([layers.Input((96, 96, 3))])
    for _ in range(4):
        network.add(layers.Conv2D(32, 3, padding="same", activation="relu"))
        network.add(layers.MaxPooling2D())
    for layer in (layers.Flatten(), layers.Dense(256, "relu"), layers.Dense(4, "softmax")):
        network.add(layer)
    network.compile("adam", "sparse_categorical_crossentropy")
    assert network.count_params() == sum(p.numel() for p in oct_cnn("base").parameters())
    x, y = data.batch(np.arange(len(data.originals)))
    images = np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())
    labels = y.numpy()

    def step() -> None:
        network.train_on_batch(images, labels)

    return step


def _one_core(batch: int, precision: Precision, seconds: float, ready: Any, rates: Any) -> None:
    torch.set_num_threads(1)
    step = our_step("base", samples(batch, precision))
    step()
    ready.wait()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        step()
        steps += 1
    rates.put(steps * batch / (time.perf_counter() - started))


def two_processes(batch: int, precision: Precision, seconds: float) -> float:
    """Return the images per second of one single-threaded process per core, together."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(2), context.Queue()
    with settings_to_inherit():
        given = (batch, precision, seconds, ready, rates)
        workers = [context.Process(target=_one_core, args=given) for _ in range(2)]
        for worker in workers:
            worker.start()
    total = sum(rates.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=PAPER["batch"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(2)
    data = samples(options.batch)
    everything = np.arange(options.batch)
    contenders = {
        "ours, 2 threads": our_step("base", data),
        "ours, TPL 1, 2 threads": our_step("tpl1", data),
        "Keras 3, 2 threads": keras_step(data),
        "input": lambda: data.batch(everything),
    }
    times = take_turns(contenders, options.rounds)
    for name in list(contenders)[:3]:
        print(f"{name:24} {options.batch / median(times[name]):6.0f} images/s")
    both, mixed = [], []
    for _ in range(3):
        both.append(two_processes(options.batch, "32-true", 15.0))
        mixed.append(two_processes(options.batch, "bf16-mixed", 15.0))
    print(f"{'ours, 2 processes':24} {median(both):6.0f} images/s")
    print(f"{'… in bf16-mixed':24} {median(mixed):6.0f} images/s")
    keras = options.batch / median(times["Keras 3, 2 threads"])
    print(f"ours / Keras, 2 threads each: {ratio(times, 'Keras 3, 2 threads', 'ours, 2 threads')}")
    print(f"ours, 2 processes / Keras: {median(both) / keras:.2f}")
    print(f"bf16-mixed / 32-true, 2 processes: {median(mixed) / median(both):.2f}")
    print(f"input / step: {ratio(times, 'input', 'ours, 2 threads')}")


if __name__ == "__main__":
    main()
