"""Measure the layer on a CUDA GPU: synchronizations, CUDA graphs, speed and memory.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --cases OCT-2 chest --rounds 20

For every case of `tpl bench`, a training step (forward and backward) of the layer:

- waits: the step under ``torch.cuda.set_sync_debug_mode("error")``;
- graph: the step captured as a CUDA graph and replayed on another input, beside the eager step;
- compile: the same gradients from ``torch.compile``;
- ratios: the time of what the layer replaces, and of tensorly-torch's TCL, divided by the layer's:
  the median over rounds in which they take turns, measured by CUDA events; also by the graph's;
- memory: the most that a step needs beyond its input and parameters, beside what it replaces.

Each part is independent: one that cannot run, or fails, says so in its line and at the end, and the
command then exits with 1. Without a GPU there is one line, and nothing is claimed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tensorprojection.bench.cases import CASES, FORMATS, Case

WARM_UP = 3


class Setting(NamedTuple):
    """A case on the GPU."""

    case: Case
    memory_format: str
    rounds: int

    def input(self) -> Tensor:
        x = self.case.input(self.memory_format).detach()
        x = x.to("cuda").to(memory_format=FORMATS[self.memory_format])
        return x.requires_grad_()

    def layer(self) -> nn.Module:
        return self.case.layer().to("cuda")

    def rivals(self) -> dict[str, Callable[[], nn.Module]]:
        case = self.case
        found: dict[str, Callable[[], nn.Module]] = {"TCL": lambda: _tcl(case).to("cuda")}
        if case.replaces is not None:
            found[case.replaced] = lambda: case.replaces().to("cuda")  # type: ignore[misc]
        return found


class Failed(Exception):  # noqa: N818
    """A check that ran and failed."""


def _tcl(case: Case) -> nn.Module:
    import tltorch

    layer: nn.Module = tltorch.TCL(case.source, rank=case.target)
    return layer


def training_step(layer: nn.Module, x: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    wanted = [x, *layer.parameters()]
    grad = torch.randn_like(layer(x).detach())
    return lambda: torch.autograd.grad(layer(x), wanted, grad)


def waits(setting: Setting) -> str:
    step = training_step(setting.layer(), setting.input())
    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def captured(
    step: Callable[[], tuple[Tensor, ...]],
) -> tuple[torch.cuda.CUDAGraph, tuple[Tensor, ...]]:
    """Capture the step as a CUDA graph; returns the graph and the tensors of its results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


def graph(setting: Setting) -> str:
    x = setting.input()
    step = training_step(setting.layer(), x)
    replayed, results = captured(step)
    with torch.no_grad():
        x.copy_(torch.randn_like(x))
    replayed.replay()
    difference = _difference(results, step())
    return f"captured and replayed, {difference:.0e} from the eager step"


def compiled(setting: Setting) -> str:
    layer, x = setting.layer(), setting.input()
    grad = torch.randn_like(layer(x).detach())
    wanted = [x, *layer.parameters()]
    expected = torch.autograd.grad(layer(x), wanted, grad)
    found = torch.autograd.grad(torch.compile(layer)(x), wanted, grad)
    return f"{_difference(found, expected):.0e} from the eager step"


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest relative error by norm; raise if it is more than TF32's."""
    pairs = zip(found, expected, strict=True)
    difference = max(float((a - b).norm() / b.norm()) for a, b in pairs)
    if not difference <= 1e-2:
        raise Failed(f"gradients differ by {difference:.0e}")
    return difference


def ratios(setting: Setting) -> str:
    x = setting.input()
    ours = training_step(setting.layer(), x)
    contenders: dict[str, Callable[[], object]] = {"layer": ours}
    missing = []
    try:
        contenders["graph"] = captured(ours)[0].replay
    except Exception as error:
        missing.append(f"no graph ({_first_line(error)})")
    for name, make in setting.rivals().items():
        try:
            contenders[name] = training_step(make(), x)
        except Exception as error:
            missing.append(f"no {name} ({_first_line(error)})")
    times = _take_turns(contenders, setting.rounds)
    parts = [f"layer {median(times['layer']):.3f} ms"]
    for name in contenders:
        if name != "layer":
            pairs = zip(times[name], times["layer"], strict=True)
            parts.append(f"{name} {median(a / b for a, b in pairs):.2f}")
    return ", ".join([*parts, *missing])


def _take_turns(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return milliseconds by contender and round."""
    for step in contenders.values():
        for _ in range(WARM_UP):
            step()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step in contenders.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(10):
                step()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / 10)
    return times


def memory(setting: Setting) -> str:
    found = {"layer": _peak(setting.layer, setting)}
    for name, make in setting.rivals().items():
        if name != "TCL":
            found[name] = _peak(make, setting)
    return ", ".join(f"{name} {peak / 2**20:.1f} MiB" for name, peak in found.items())


def _peak(make: Callable[[], nn.Module], setting: Setting) -> int:
    step = training_step(make(), setting.input())
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


Part = Callable[[Setting], str]
PARTS: dict[str, Part] = {
    "waits": waits,
    "graph": graph,
    "compile": compiled,
    "ratios": ratios,
    "memory": memory,
}


def attempt(part: Part, setting: Setting) -> tuple[bool, str]:
    """Return True if the part ran and passed, and its line."""
    try:
        return True, part(setting)
    except Failed as failure:
        return False, f"FAILED: {failure}"
    except Exception as error:  # whatever it is, the other parts go on
        return False, f"could not run: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def run(parts: dict[str, Part], settings: Sequence[Setting]) -> int:
    """Print a line per part and case; return 1 if one did not run or failed."""
    failed = []
    for setting in settings:
        title = f"{setting.case.name}, {setting.memory_format}"
        print(title)
        for name, part in parts.items():
            fine, text = attempt(part, setting)
            print(f"  {name:8} {text}")
            if not fine:
                failed.append(f"{title}: {name}")
    if failed:
        print(f"Did not run, or did not hold ({len(failed)}): {'; '.join(failed)}")
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("No CUDA GPU here: nothing was run, and nothing is claimed.")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32")
    settings = [
        Setting(case, memory_format, options.rounds)
        for case in CASES
        if case.name in options.cases
        for memory_format in options.formats
    ]
    return run({name: PARTS[name] for name in options.parts}, settings)


if __name__ == "__main__":
    sys.exit(main())
