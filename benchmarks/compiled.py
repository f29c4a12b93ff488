"""Measure what torch.compile adds to a training step of a layer, in CPU time of one thread.

A busy machine changes CPU time less than wall time.

    python benchmarks/compiled.py --rounds 15

One line per case and memory format: compiled / eager, median and quartiles over rounds, and
what compiling adds. The last line is the lower bound: a graph of the same form that computes
nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn

from tensorprojection.bench.cases import CASES, FORMATS, Case
from tensorprojection.bench.measure import settle_allocator, step

SMALL = Case("batch of 2", 2, (32, 12, 12), (20, 6, 6))


def compare(eager: Callable[[], None], compiled: Callable[[], None], rounds: int) -> str:
    settle_allocator()
    for _ in range(3):
        eager()
        compiled()
    start = time.perf_counter()
    eager()
    calls = max(1, min(50, int(0.02 / (time.perf_counter() - start))))
    pairs = []
    for k in range(rounds):
        turns = [eager, compiled] if k % 2 else [compiled, eager]
        seconds = {call: cpu_seconds(call, calls) for call in turns}
        pairs.append((seconds[eager], seconds[compiled]))
    low, middle, high = quantiles([b / a for a, b in pairs], n=4, method="inclusive")
    added = 1e6 * median(b - a for a, b in pairs)
    return f"{middle:.2f} ({low:.2f}-{high:.2f}), {added:.0f} µs added"


def cpu_seconds(call: Callable[[], None], calls: int) -> float:
    call()  # the caches are the other's
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls


class Nothing(nn.Module):
    """A module with the graph of a layer of three modes, whose ops compute nothing."""

    def __init__(self, compiled: bool) -> None:
        super().__init__()
        self.W1, self.W2, self.W3 = (nn.Parameter(torch.randn(12, 6)) for _ in range(3))
        self.run: Any = torch.ops.nothing.node.default if compiled else Node.apply

    def forward(self, x: Tensor) -> Any:
        return self.run(x, self.W1, self.W2, self.W3)


class Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *Ws: Tensor) -> Any:
        ctx.save_for_backward(x, *Ws)
        return torch.ops.nothing.forward.default(x, list(Ws))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, *Ws = ctx.saved_tensors
        return tuple(torch.ops.nothing.backward.default(x, grad, Ws))


def define_nothing() -> torch.library.Library:
    library = torch.library.Library("nothing", "FRAGMENT")
    library.define("node(Tensor x, Tensor W1, Tensor W2, Tensor W3) -> Tensor")
    library.define("forward(Tensor x, Tensor[] Ws) -> Tensor")
    library.define("backward(Tensor x, Tensor grad, Tensor[] Ws) -> Tensor[]")

    def forward(x: Tensor, Ws: list[Tensor]) -> Tensor:
        return torch.empty_like(x)

    def backward(x: Tensor, grad: Tensor, Ws: list[Tensor]) -> list[Tensor]:
        return [torch.empty_like(t) for t in (x, *Ws)]

    library.impl("node", Node.apply, "CompositeImplicitAutograd")
    for name, function in (("forward", forward), ("backward", backward)):
        library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"nothing::{name}", function, lib=library)
    return library


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="part of a case's name")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for case in [SMALL, *CASES]:
        if given.only.lower() not in case.name.lower():
            continue
        for memory_format in FORMATS:
            torch.compiler.reset()
            x, layer = case.input(memory_format), case.layer()
            compiled: Any = torch.compile(layer, dynamic=False)
            line = compare(step(layer, x), step(compiled, x), given.rounds)
            print(f"{case.name}, {memory_format}: {line}", flush=True)
    library = define_nothing()
    torch.compiler.reset()
    x = SMALL.input("NCHW")
    floor: Any = torch.compile(Nothing(compiled=True), dynamic=False)
    print("nothing:", compare(step(Nothing(compiled=False), x), step(floor, x), given.rounds))
    del library


if __name__ == "__main__":
    main()
