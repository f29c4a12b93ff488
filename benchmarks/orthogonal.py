"""Compare tp.orthogonal with torch's three orthogonal maps and geotorch: time, errors, features.

    python benchmarks/orthogonal.py --rounds 5

Time is the CPU time of one thread for a step of the module (forward and backward pass), in
milliseconds: contenders take turns, the median over rounds counts. The orthogonality error is
``‖QᵀQ - I‖`` (spectral norm) after ten steps of Adam. The gradient error is the relative error of
the float32 gradient with respect to the parameter, against the same contender in float64 (which
finite differences confirm), at an orthonormal weight. A contender of more than three seconds per
step is timed once, and its errors are left out; so is a contender that would take minutes.
"""

from __future__ import annotations

import argparse
import copy
import io
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from statistics import median

import geotorch
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize

import tensorprojection as tp

SLOW = 3.0  # seconds per step
MINUTES = {"matrix_exp", "geotorch"}  # exponentials of n × n matrices, from n = 1024 on

Contender = Callable[[nn.Module, str], nn.Module]
CONTENDERS: dict[str, Contender] = {
    "tp.orthogonal": tp.orthogonal,
    "cayley": partial(parametrizations.orthogonal, orthogonal_map="cayley"),
    "householder": partial(parametrizations.orthogonal, orthogonal_map="householder"),
    "matrix_exp": partial(parametrizations.orthogonal, orthogonal_map="matrix_exp"),
    "geotorch": geotorch.orthogonal,
}

Case = tuple[Callable[[], nn.Module], str, tuple[int, ...]]


def linear(rows: int, columns: int) -> Case:
    return partial(nn.Linear, columns, rows, bias=False), "weight", (32, columns)


CASES: dict[str, Case] = {
    "64 × 64": linear(64, 64),
    "256 × 256": linear(256, 256),
    "512 × 512": linear(512, 512),
    "1024 × 1024": linear(1024, 1024),
    "64 × 576 (a 3×3 convolution)": linear(64, 576),
    "2048 × 64": linear(2048, 64),
    "64 × 2048": linear(64, 2048),
    "GRU 128, recurrent": (partial(nn.GRU, 128, 128), "weight_hh_l0", (20, 8, 128)),
}


def build(case: Case, make_orthogonal: Contender, seed: int = 0) -> nn.Module:
    """Return the module with an orthogonal weight, made of the same one for every contender."""
    make, name, _ = case
    torch.manual_seed(seed)
    module = make()
    with torch.no_grad():
        weight = getattr(module, name)
        for block in weight.chunk(3) if isinstance(module, nn.GRU) else [weight]:
            nn.init.orthogonal_(block)
    # torch's maps and geotorch's take the GRU's 3n × n weight as one tall matrix.
    return make_orthogonal(module, name)


def output(module: nn.Module, x: Tensor) -> Tensor:
    with parametrize.cached():  # an RNN reads its weight several times
        z = module(x)
    result: Tensor = z[0] if isinstance(z, tuple) else z
    return result


def step(module: nn.Module, x: Tensor) -> Callable[[], None]:
    parameters = [p for p in module.parameters() if p.requires_grad]

    def call() -> None:
        torch.autograd.grad(output(module, x).square().sum(), parameters)

    return call


def cpu_seconds(call: Callable[[], None], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - start) / calls


def contenders(case: Case) -> dict[str, Contender]:
    take_minutes = max(case[0]().get_parameter(case[1]).shape) >= 1024
    return {n: c for n, c in CONTENDERS.items() if not (take_minutes and n in MINUTES)}


def times(case: Case, rounds: int) -> dict[str, float]:
    """Return seconds per step, by contender."""
    x = torch.randn(case[2])
    steps = {name: step(build(case, make), x) for name, make in contenders(case).items()}
    once = {name: cpu_seconds(call, 1) for name, call in steps.items()}
    found = {name: [] if seconds <= SLOW else [seconds] for name, seconds in once.items()}
    for _ in range(rounds):
        for name, call in steps.items():
            if once[name] <= SLOW:
                found[name].append(cpu_seconds(call, max(1, min(50, int(0.05 / once[name])))))
    return {name: median(values) for name, values in found.items()}


def orthogonality_error(case: Case, make: Contender) -> float:
    """Return ‖QᵀQ - I‖ after ten steps of Adam, of the weight or of the worst gate's block."""
    module, x = build(case, make), torch.randn(case[2])
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(10):
        optimizer.zero_grad()
        output(module, x).square().mean().backward()
        optimizer.step()
    Q = getattr(module, case[1]).detach().double()
    worst = 0.0
    for block in Q.chunk(3 if make is tp.orthogonal and isinstance(module, nn.GRU) else 1):
        A = block if block.shape[0] >= block.shape[1] else block.mT
        error = A.mT @ A - torch.eye(A.shape[1], dtype=A.dtype)
        worst = max(worst, float(torch.linalg.matrix_norm(error, 2)))
    return worst


def gradient_error(case: Case, make: Contender) -> float:
    """Return the relative error of the float32 gradient against float64's at an orthonormal weight.

    Central differences along the float64 gradient have to give its norm.
    """
    module, x = build(case, make), torch.randn(case[2])
    exact = copy.deepcopy(module).double()
    weights = [module.parametrizations[case[1]].original for module in (module, exact)]  # type: ignore[index,union-attr]
    torch.manual_seed(1)
    upstream = torch.randn_like(output(module, x))
    narrow, wide = (
        torch.autograd.grad(output(m, x.to(W.dtype)), W, upstream.to(W.dtype))[0]
        for m, W in zip((module, exact), weights, strict=True)
    )
    norm, h = float(wide.norm()), 1e-5
    values = []
    with torch.no_grad():
        for shift in (h, -2 * h):
            weights[1].add_(shift * wide / norm)
            values.append(float((output(exact, x.double()) * upstream).sum()))
    assert abs((values[0] - values[1]) / (2 * h) - norm) < 1e-5 * norm
    return float((narrow - wide).norm()) / norm


def works(make: Contender) -> dict[str, str]:
    """Return "yes" or the error's class for each thing that users do with a Linear(64, 32)."""

    def layer() -> nn.Module:
        return make(nn.Linear(64, 32), "weight")

    def is_orthonormal(module: nn.Module, tolerance: float = 1e-3) -> None:
        Q = module.weight.double()
        assert float((Q @ Q.mT - torch.eye(32)).abs().max()) <= tolerance

    def bf16() -> None:
        module = make(nn.Linear(64, 32).bfloat16(), "weight")
        module(torch.randn(4, 64).bfloat16()).float().square().sum().backward()
        is_orthonormal(module, 5e-2)

    def pickle() -> None:
        module, other, file = layer(), layer(), io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(module.weight, other.weight)

    def plain_state() -> None:
        module = layer()
        module.load_state_dict(nn.Linear(64, 32).state_dict())
        is_orthonormal(module)

    def export() -> None:
        program = torch.export.export(layer().eval(), (torch.randn(4, 64),))
        names = {str(node.target) for node in program.graph.nodes}
        assert not any("linalg" in name or "matrix_exp" in name for name in names)

    def ensemble() -> None:
        models = [nn.Sequential(layer()) for _ in range(3)]
        parameters, buffers = stack_module_state(models)  # type: ignore[arg-type]

        def run(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
            result: Tensor = functional_call(models[0], (p, b), (torch.ones(4, 64),))
            return result

        expected = torch.stack([model(torch.ones(4, 64)) for model in models])
        assert torch.allclose(vmap(run)(parameters, buffers), expected, atol=1e-4)

    def compiled() -> None:
        torch.compiler.reset()
        module, x = layer(), torch.randn(4, 64)
        fast = torch.compile(module, fullgraph=True, backend="aot_eager")
        fast(x).sum().backward()
        assert torch.allclose(fast(x), module(x), atol=1e-4)

    def deepcopy() -> None:
        module = layer()
        module(torch.randn(4, 64)).sum().backward()
        assert torch.equal(copy.deepcopy(module).weight, module.weight)

    def refusal() -> None:
        module = layer()
        try:
            module.weight = torch.ones(32, 64)
        except Exception:
            return
        raise AssertionError

    tasks = {
        "bf16": bf16,
        "state dict: save and load": pickle,
        "state dict of the plain module": plain_state,
        "export without a decomposition": export,
        "vmap over an ensemble": ensemble,
        "torch.compile, one graph": compiled,
        "deepcopy after a step": deepcopy,
        "refuses a Q that is not orthonormal": refusal,
    }
    found = {}
    for name, task in tasks.items():
        try:
            task()
            found[name] = "yes"
        except Exception as error:
            found[name] = f"no ({type(error).__name__})"
    return found


def milliseconds(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def table(first: str, rows: dict[str, dict[str, str]]) -> str:
    names = list(CONTENDERS)
    lines = [[first, *names], ["---", *["---:"] * len(names)]]
    lines += [[label, *(row.get(name, "–") for name in names)] for label, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a case's name")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = {name: case for name, case in CASES.items() if given.only in name}
    speed: dict[str, dict[str, str]] = {}
    orthogonality: dict[str, dict[str, str]] = {}
    gradient: dict[str, dict[str, str]] = {}
    for label, case in cases.items():
        print(label, file=sys.stderr, flush=True)
        measured = times(case, given.rounds)
        speed[label] = {name: milliseconds(seconds) for name, seconds in measured.items()}
        for found, function in ((orthogonality, orthogonality_error), (gradient, gradient_error)):
            found[label] = {
                name: f"{function(case, CONTENDERS[name]):.1e}"
                for name, seconds in measured.items()
                if seconds <= SLOW
            }
    print(f"torch {torch.__version__}, one thread, {tp.kernels()}\n")
    print(table("ms per step", speed), "\n")
    print(table("‖QᵀQ - I‖ after 10 steps", orthogonality), "\n")
    print(table("gradient's relative error", gradient), "\n")
    if not given.only:
        each = {name: works(make) for name, make in CONTENDERS.items()}
        tasks = list(next(iter(each.values())))
        print(table("works", {t: {name: each[name][t] for name in each} for t in tasks}))


if __name__ == "__main__":
    main()
