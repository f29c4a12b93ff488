"""Runs the cases and gathers the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from math import prod
from shutil import which
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn

import tensorprojection as tp

from .cases import CASES, FORMATS, Case
from .limit import gemm, limit_seconds
from .measure import Ratio, kept_bytes, ratio, step, take_turns
from .peers import PACKAGES, PEERS

OURS, COMPILED = "this layer", "compiled"


@dataclass(frozen=True)
class CaseRow:
    """One case in one memory format."""

    case: str
    memory_format: str
    milliseconds: float
    replaced: str
    to_replaced: Ratio | None
    peers: dict[str, Ratio]
    to_limit: Ratio
    U_share: Ratio
    kept_by_output: float
    compiled: Ratio | None = None  # None where there is no C++ compiler for torch.compile
    plan: str = field(default="")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_request(rounds: int, only: str, peers: bool) -> None:
    """An error where what is asked for cannot be measured."""
    if rounds < 2:
        raise tp.ProjectionValueError(f"Expected at least 2 --rounds, for quartiles, got {rounds}.")
    if not cases_named(only):
        names = ", ".join(case.name for case in CASES)
        raise tp.ProjectionValueError(
            f"Expected --only to be part of a case's name ({names}), got {only!r}."
        )
    missing = [name for name in PACKAGES if peers and find_spec(name) is None]
    if missing:
        raise tp.ProjectionValueError(
            f"The peers to compare with need {' and '.join(missing)}: "
            "pip install 'tensorprojection[peers]', or leave them out by --no-peers."
        )


def cases_named(only: str) -> list[Case]:
    """Those whose name contains this."""
    return [case for case in CASES if only.lower() in case.name.lower()]


def run_cases(rounds: int, only: str = "", peers: bool = True) -> Iterator[CaseRow]:
    for case in cases_named(only):
        for memory_format in FORMATS:
            yield run_case(case, memory_format, rounds, peers=peers)


def run_case(case: Case, memory_format: str, rounds: int, *, peers: bool = True) -> CaseRow:
    x = case.input(memory_format)
    layer = case.layer()
    a, b = gemm()
    larger = x.detach() if prod(case.source) > prod(case.target) else layer(x).detach()
    contenders = {
        OURS: step(layer, x),
        "U": _U_step(layer),
        **compiled_contender(layer, x),
        "gemm": lambda: a @ b,
        "copy": lambda: larger.clone(memory_format=torch.preserve_format),
    }
    if case.replaces is not None:
        module: Any = case.replaces()
        module = module.to(memory_format=FORMATS[memory_format])
        contenders[case.replaced] = step(module, x)
    # geotorch takes seconds for a mode of 1024.
    others = [n for n in PEERS if peers and not (n == "geotorch" and max(case.source) >= 1024)]
    for name in others:
        contenders[name] = step(PEERS[name](case), x)
    times = take_turns(contenders, rounds)
    times["limit"] = [
        limit_seconds(case, g, a.shape[0], c)
        for g, c in zip(times["gemm"], times["copy"], strict=True)
    ]
    return CaseRow(
        case=case.name,
        memory_format=memory_format,
        milliseconds=1e3 * median(times[OURS]),
        replaced=case.replaced,
        to_replaced=ratio(times, OURS, case.replaced) if case.replaced else None,
        peers={name: ratio(times, name, OURS) for name in others},
        to_limit=ratio(times, OURS, "limit"),
        U_share=ratio(times, "U", OURS),
        kept_by_output=kept_bytes(layer, x) / (4 * case.batch * prod(case.target)),
        compiled=ratio(times, COMPILED, OURS) if COMPILED in times else None,
        plan=str(tp.explain(layer, x)),
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
