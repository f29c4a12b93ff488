"""The whole training step of the OCT network, with MaxPooling and with a projection; and growth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import median

import torch

import tensorprojection as tp
from tensorprojection.studies.networks.oct_cnn import oct_cnn

from .cases import FORMATS, Case
from .measure import Ratio, ratio, step, take_turns


def training_steps(rounds: int, batch: int = 300) -> dict[str, Ratio]:
    """The time of a step with MaxPool2d / with the projection, by memory format."""
    result = {}
    for name, memory_format in FORMATS.items():
        x = torch.randn(batch, 3, 96, 96).to(memory_format=memory_format)
        y = torch.randint(4, (batch,))
        times = take_turns({head: _step(head, x, y) for head in ("base", "tpl1")}, rounds)
        result[name] = ratio(times, "base", "tpl1")
    return result


def _step(head: str, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    network = oct_cnn(head)
    optimizer = torch.optim.Adam(network.parameters())

    def call() -> None:
        loss = torch.nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return call


def growth(rounds: int) -> dict[str, list[float]]:
    """Return the growth of time when the work doubles: time ratio / work ratio, so 1 is linear."""
    base = Case("growth", 25, (128, 16, 16), (128, 8, 8))
    series = {
        "batch": [replace(base, batch=25 * n) for n in (1, 2, 4)],
        "channels": [
            replace(base, source=(128 * n, 16, 16), target=(128 * n, 8, 8)) for n in (1, 2, 4)
        ],
        "height": [
            replace(base, source=(128, 16 * n, 16), target=(128, 8 * n, 8)) for n in (1, 2, 4)
        ],
    }
    result = {}
    for name, cases in series.items():
        contenders = {}
        for n, case in enumerate(cases):
            layer: tp.TensorProjection | tp.TransposeTensorProjection = case.layer()
            contenders[str(n)] = step(layer, case.input("NCHW"))
        seconds = [median(t) for t in take_turns(contenders, rounds).values()]
        work = [_work(case) for case in cases]
        result[name] = [
            (b / a) / (w / v)
            for (a, b), (v, w) in zip(pairwise(seconds), pairwise(work), strict=True)
        ]
    return result


def _work(case: Case) -> float:
    from .limit import least_flops

    return least_flops(case)
