"""Timing: contenders take turns, so that what disturbs the machine disturbs them alike.

With one thread (``OMP_NUM_THREADS=1``), what is measured is its CPU time, so that other processes
count only by what they take of the caches. With several threads it is the time that passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

Times = dict[str, list[float]]


@dataclass(frozen=True)
class Ratio:
    """One contender's time divided by another's: the median over rounds, and its quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def settle_allocator() -> None:
    """Frees one large block, as any training process has done before long.

    glibc gives memory back to the system by thresholds that follow the largest block freed so far.
    In a process that never freed a large one, whether a contender pays for fresh pages at every
    call would depend on a few kilobytes.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8).fill_(0)


def take_turns(contenders: Mapping[str, Callable[[], Any]], rounds: int) -> Times:
    """Seconds per call, by contender and round."""
    settle_allocator()
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    for call in contenders.values():
        call()
        call()
    calls = {name: _calls_for(call, 0.03) for name, call in contenders.items()}
    times: Times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            call()  # the processor's caches still hold the last contender's data
            start = clock()
            for _ in range(calls[name]):
                call()
            times[name].append((clock() - start) / calls[name])
    return times


def ratio(times: Times, above: str, below: str) -> Ratio:
    values = [a / b for a, b in zip(times[above], times[below], strict=True)]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Ratio(median(values), low, high)


def step(
    layer: nn.Module, x: Tensor, context: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Callable[[], None]:
    """Forward and backward, as in training: the gradients of the input and of all parameters."""
    wanted = [x, *(p for p in layer.parameters() if p.numel() > 0)]
    with context():
        grad = torch.randn_like(layer(x).detach())

    def call() -> None:
        with context():
            z = layer(x)
        torch.autograd.grad(z, wanted, grad)

    return call


def serve(
    layer: nn.Module, x: Tensor, context: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Callable[[], None]:
    """Forward in eval mode, as in inference."""
    layer.eval()
    x = x.detach()

    def call() -> None:
        with torch.inference_mode(), context():
            layer(x)

    return call


def kept_bytes(layer: nn.Module, x: Tensor) -> int:
    """Return what the layer saves for its backward pass beyond its input and its parameters."""
    known = {t.untyped_storage().data_ptr() for t in (x, *layer.parameters())}
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        z = layer(x)
        total = sum(kept.values())
        del z
    return total


def _calls_for(call: Callable[[], Any], seconds: float) -> int:
    start = time.perf_counter()
    call()
    return max(1, int(seconds / (time.perf_counter() - start)))
