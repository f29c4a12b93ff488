"""Runs the cases and gathers the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from math import prod
from shutil import which
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn

import tensorprojection as tp

from .cases import CASES, INFER, SUITES, TRAIN, Case
from .limit import gemm, limit_seconds
from .measure import Ratio, Times, kept_bytes, ratio, serve, step, take_turns
from .peers import PACKAGES, PEERS

OURS, COMPILED, REPLACED, LIMIT, U_STEP = "this", "compiled", "replaced", "limit", "U"
FROZEN, FOLDED = "frozen", "folded"  # forms of the layer in eval mode


@dataclass(frozen=True)
class CaseRow:
    """One case in one memory format, in training or in inference."""

    task: str
    case: str
    batch: int
    shapes: str
    memory_format: str
    milliseconds: float
    replaced: str
    by_this: dict[str, Ratio]  # the time of each contender / that of this layer
    kept_by_output: float | None = None
    plan: str = field(default="")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_request(suites: Sequence[str], rounds: int, only: str, peers: bool) -> None:
    """An error where what is asked for cannot be measured."""
    if rounds < 2:
        raise tp.ProjectionValueError(f"Expected at least 2 --rounds, for quartiles, got {rounds}.")
    if not list(cases_named(suites, only)):
        names = dict.fromkeys(case.name for _, case in cases_named(suites, ""))
        raise tp.ProjectionValueError(
            f"Expected --only to be part of a case's name ({', '.join(names)}), got {only!r}."
        )
    missing = [name for name in PACKAGES if peers and find_spec(name) is None]
    if missing:
        raise tp.ProjectionValueError(
            f"The peers to compare with need {' and '.join(missing)}: "
            "pip install 'tensorprojection[peers]', or leave them out by --no-peers."
        )


def cases_named(suites: Sequence[str], only: str) -> Iterator[tuple[str, Case]]:
    """Yield the task and the case of those whose name contains this."""
    for suite in suites:
        for task, cases in SUITES[suite]:
            yield from ((task, case) for case in cases if only.lower() in case.name.lower())


def run_cases(
    suites: Sequence[str], rounds: int, only: str = "", peers: bool = True
) -> Iterator[CaseRow]:
    for task, case in cases_named(suites, only):
        for memory_format in case.formats:
            if task == TRAIN:
                yield train_case(case, memory_format, rounds, peers=peers and case in CASES)
            else:
                yield infer_case(case, memory_format, rounds)


def train_case(case: Case, memory_format: str, rounds: int, *, peers: bool = True) -> CaseRow:
    x, layer = case.input(memory_format), case.layer()
    measured = partial(step, context=case.context)
    contenders = {OURS: measured(layer, x), U_STEP: _U_step(layer)}
    other = case.other(memory_format)
    if other is not None:
        contenders[REPLACED] = measured(other, x)
    if case in CASES:
        contenders |= compiled_contender(layer, x)
    # geotorch takes seconds for a mode of 1024.
    others = [n for n in PEERS if peers and not (n == "geotorch" and max(case.source) >= 1024)]
    for name in others:
        contenders[name] = step(PEERS[name](case), x)
    times = _take_turns(contenders, case, TRAIN, x, rounds)
    with case.context():
        kept = kept_bytes(layer, x) / (x.element_size() * case.batch * prod(case.target))
    return _row(TRAIN, case, memory_format, times, kept, str(tp.explain(layer, x)))


def infer_case(case: Case, memory_format: str, rounds: int) -> CaseRow:
    x, layer = case.input(memory_format), case.layer().eval()
    modules: dict[str, nn.Module | None] = {
        OURS: layer,
        FROZEN: layer.freeze(),
        FOLDED: tp.fold_projections(nn.Sequential(layer), x.detach()).model,
        REPLACED: case.other(memory_format),
    }
    contenders = {name: serve(m, x, case.context) for name, m in modules.items() if m is not None}
    times = _take_turns(contenders, case, INFER, x, rounds)
    return _row(INFER, case, memory_format, times)


def _take_turns(
    contenders: dict[str, Callable[[], Any]], case: Case, task: str, x: Tensor, rounds: int
) -> Times:
    """Return the times of the contenders, and of the machine's limit in float32."""
    if case.precision != "float32":
        return take_turns(contenders, rounds)
    a, b = gemm()
    larger = x.detach() if prod(case.source) > prod(case.target) else case.layer()(x).detach()
    rates = {"gemm": lambda: a @ b, "copy": lambda: larger.clone()}
    times = take_turns({**contenders, **rates}, rounds)
    pairs = zip(times.pop("gemm"), times.pop("copy"), strict=True)
    return {**times, LIMIT: [limit_seconds(case, task, g, a.shape[0], c) for g, c in pairs]}


def _row(
    task: str,
    case: Case,
    memory_format: str,
    times: Times,
    kept: float | None = None,
    plan: str = "",
) -> CaseRow:
    return CaseRow(
        task=task,
        case=case.name,
        batch=case.batch,
        shapes=case.shapes,
        memory_format=memory_format,
        milliseconds=1e3 * median(times[OURS]),
        replaced=case.replaced,
        by_this={name: ratio(times, name, OURS) for name in times if name != OURS},
        kept_by_output=kept,
        plan=plan,
    )


def compiled_contender(layer: nn.Module, x: Tensor) -> dict[str, Callable[[], None]]:
    """The layer under torch.compile, where that can be: it needs a C++ compiler."""
    if not any(map(which, ("c++", "g++", "clang++", "cl"))):
        return {}
    torch.compiler.reset()  # or guards of the cases before would be checked at every call
    return {COMPILED: step(cast(nn.Module, torch.compile(layer, dynamic=False)), x)}


def _U_step(layer: tp.TensorProjection | tp.TransposeTensorProjection) -> Any:
    """Return a step of the U's alone: computed and differentiated as in the layer."""
    parameters = list(layer.parameters())
    grads = [torch.randn_like(W) for W in parameters]

    def call() -> None:
        Us = [U for U in layer.projections() if U is not None]
        torch.autograd.grad(Us, parameters, grads)

    return call
