"""Run a case and report what is wrong with its results.

The limits follow from the types and the case, and are tuned to nothing: the oracle runs once in
float64 and `SAMPLES` times with the noise of the roundings that the types make (`oracle.Rounding`,
which has units in the last place, the lengths of sums and W's condition in it). Let d be how far
these runs fall from the first. A number may be off by `SAFETY` times d's root mean square over
the tensor plus its own mean |d|, and by four roundings of its own. Where that reaches into what
the type cannot hold, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from implementations import implementation
from torch import Tensor

from . import cases, oracle
from .cases import Case

SAMPLES = 4
SAFETY = 8.0


def complaints(case: Case) -> list[str]:
    """What is wrong with this case, a line each."""
    names: dict[str, Any] = {}
    with _as_it_was(), implementation("kernels" if case.kernels else "torch"):
        try:
            exec(compile(cases.setup(case), "setup", "exec"), names)
            given = {"x": names["x"], **{n: getattr(names["layer"], n) for n in case.leaves}}
            before = {name: tensor.detach().clone() for name, tensor in given.items()}
            exec(compile(cases.action(case), "action", "exec"), names)
        except Exception as error:
            return [f"raises {type(error).__name__}: {error}"]
    found = [
        f"{name} is changed"
        for name, tensor in given.items()
        if not torch.equal(before[name], tensor.detach())
    ]
    z = names["z"]
    if z.numel() and z.untyped_storage().data_ptr() == names["x"].untyped_storage().data_ptr():
        found.append("z shares the memory of x")
    if case.use in ("once", "frozen") and z.numel():
        formats = [torch.contiguous_format, *_channels_last(z)]
        of_x = [f for f in formats if names["x"].is_contiguous(memory_format=f)]
        if of_x and not any(z.is_contiguous(memory_format=f) for f in of_x):
            found.append(f"z has strides {z.stride()}, x is in the format {of_x[0]}")
    return found + list(_numbers(case, names))


def _channels_last(x: Tensor) -> list[torch.memory_format]:
    return {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(x.ndim, [])


def _numbers(case: Case, names: dict[str, Any]) -> Iterator[str]:
    """Compares all results with the oracle's."""
    got, expected = _results(case, names), _expected(case, names, None)
    disturbed = [_expected(case, names, seed) for seed in range(1, SAMPLES + 1)]
    for i, (name, (result, dtype)) in enumerate(got.items()):
        right = expected[i]
        if result is None:  # unused: its derivative is zero
            result = torch.zeros(right.shape, dtype=dtype)
        if result.dtype != dtype:
            yield f"{name} is of type {result.dtype}, expected {dtype}"
        if result.shape != right.shape:
            yield f"{name} has shape {tuple(result.shape)}, expected {tuple(right.shape)}"
            continue
        if right.numel():
            limit = _limit(right, torch.stack([run[i] for run in disturbed]), dtype)
            yield from _compare(name, result.detach().double(), right, limit, dtype)


def _limit(right: Tensor, disturbed: Tensor, dtype: torch.dtype) -> Tensor:
    d = (disturbed - right).abs()
    info = torch.finfo(dtype)
    own = 4 * (oracle.unit(dtype) * right.abs() + info.smallest_normal * info.eps)
    return SAFETY * (d.square().mean().sqrt() + d.mean(0)) + own


def _compare(
    name: str, result: Tensor, right: Tensor, limit: Tensor, dtype: torch.dtype
) -> Iterator[str]:
    holds = right.abs() + limit < torch.finfo(dtype).max / 4
    off = (result - right).abs()
    wrong = holds & ~(off <= limit)  # NaN is wrong
    if not wrong.any():
        return
    worst = int(torch.where(wrong, (off / limit).nan_to_num(nan=torch.inf), 0.0).argmax())
    at = tuple(map(int, torch.unravel_index(torch.tensor(worst), right.shape)))
    yield (
        f"{name}{list(at) if at else ''} = {float(result[at]):.6g}, expected "
        f"{float(right[at]):.6g} ± {float(limit[at]):.2g}; "
        f"{int(wrong.sum())} of {right.numel()} are wrong"
    )


def _results(case: Case, names: dict[str, Any]) -> dict[str, tuple[Tensor | None, torch.dtype]]:
    """All that the program left, with the type that it should have."""
    dtypes = {
        "x": getattr(torch, case.x_dtype),
        "grad": getattr(torch, case.z_dtype),
        **dict.fromkeys(case.leaves, getattr(torch, case.W_dtype)),
    }
    results: dict[str, tuple[Tensor | None, torch.dtype]] = {"z": (names["z"], dtypes["grad"])}
    for i, name in enumerate(case.wanted):
        results[f"first[{i}]"] = (names["first"][i], dtypes[name])
    if "second" in names:
        for i, name in enumerate((*case.wanted, "grad")):
            results[f"second[{i}]"] = (names["second"][i], dtypes[name])
    return results


def _expected(case: Case, names: dict[str, Any], seed: int | None) -> Sequence[Tensor]:
    """The same in float64, in the same order; with the noise of this seed, if one is given."""
    rounding = None
    if seed is not None:
        types = (getattr(torch, case.z_dtype), getattr(torch, case.W_dtype))
        rounding = oracle.Rounding(*types, seed, frozen=case.use == "frozen")
    layer = names["layer"]
    leaves = {"x": _leaf(names["x"]), **{n: _leaf(getattr(layer, n)) for n in case.leaves}}
    Ws: list[Tensor | None] = [None] * len(case.large)
    for k in case.changed:
        Ws[k - 1] = leaves["W1" if case.use == "shared" else f"W{k}"]
    eps = [case.eps or {"absolute": 1e-3, "relative": 1e-5}[case.eps_mode]] * len(Ws)

    def apply(x: Tensor, transposed: bool) -> Tensor:
        needed = bool(case.wanted)
        return oracle.layer(x, Ws, eps, case.eps_mode, transposed, rounding, needed)

    with torch.enable_grad():
        z = eval(
            cases.USES[case.use],
            {
                "torch": torch,
                "x": leaves["x"],
                "layer": lambda x: apply(x, case.transposed),
                "frozen": lambda x: apply(x, case.transposed),
                "up": lambda x: apply(x, not case.transposed),
            },
        )
        results = [z]
        if case.wanted:
            wanted, grad = [leaves[name] for name in case.wanted], _leaf(names["grad"])
            again = "second" in names
            first = torch.autograd.grad(z, wanted, grad, create_graph=again)
            results += first
        if case.wanted and again:
            along = [v.double() for v in names["along"]]
            inputs = [*wanted, grad]
            second = torch.autograd.grad(first, inputs, along, allow_unused=True)
            pairs = zip(second, inputs, strict=True)
            results += [torch.zeros_like(leaf) if d is None else d for d, leaf in pairs]
    return [result.detach() for result in results]


def _leaf(x: Tensor) -> Tensor:
    return x.detach().double().clone(memory_format=torch.contiguous_format).requires_grad_()


@contextmanager
def _as_it_was() -> Iterator[None]:
    """What a program sets for all is set back."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
