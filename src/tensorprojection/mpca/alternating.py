"""Multilinear PCA by alternation: each mode's directions in turn, those of the others held fixed.

The U's that minimise ``Σ_n ‖X_n − X_n ×₁ U₁U₁ᵀ ×₂ U₂U₂ᵀ …‖²`` have no closed form beyond order 1.
With all U's but one held fixed, the best ``U_k`` is known: the leading eigenvectors of the mode-k
scatter of the samples projected along the other modes. So no step makes the error larger. After
Lu, Plataniotis & Venetsanopoulos, "MPCA: Multilinear Principal Component Analysis of Tensor
Objects", IEEE Transactions on Neural Networks 19 (2008).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from ..errors import ProjectionValueError
from ..shapes import Shape
from .batches import Source
from .scatter import ModeScatter, leading, projected_scatter


@dataclass(frozen=True)
class MpcaResult:
    """The U's, and the share of the energy lost: at the start, then after every sweep."""

    Us: list[Tensor]
    errors: list[float]
    sweeps: int


def start(seen: ModeScatter, out_shape: Sequence[int]) -> list[Tensor]:
    """The leading directions of every mode by itself: where the alternation starts."""
    return [leading(S, q)[1] for S, q in zip(seen.scatters, out_shape, strict=True)]


def alternate(
    source: Source, seen: ModeScatter, out_shape: Sequence[int], *, max_iter: int, tol: float
) -> MpcaResult:
    """Sweeps over the modes until one gains no more than ``tol`` of the energy.

    A sweep reads the source once for each mode that shrinks. Where only one mode shrinks, the start
    is the optimum, and nothing is read.
    """
    Us = start(seen, out_shape)
    modes = [k for k, (p, q) in enumerate(zip(seen.shape, out_shape, strict=True)) if q < p]
    if len(modes) < 2:
        return MpcaResult(Us, [bound(seen, out_shape)], 1)
    if max_iter and not source.repeatable:
        raise ProjectionValueError(
            "Expected data that can be read more than once (a tensor, a list, a DataLoader), got "
            "an iterator: the alternation reads it once per mode and sweep."
        )
    factors: list[Tensor | None] = [U if k in modes else None for k, U in enumerate(Us)]
    energies: list[float] = []
    sweeps = 0
    while sweeps < max_iter:
        for k in modes:
            S = projected_scatter(source, seen.mean, factors, k)
            if not energies:
                energies.append(float((Us[k].mT @ S @ Us[k]).trace()))
            values, Us[k] = leading(S, out_shape[k])
            factors[k] = Us[k]
        energies.append(float(values.sum()))
        sweeps += 1
        if energies[-1] - energies[-2] <= tol * seen.total:
            break
    return MpcaResult(Us, [max(0.0, 1 - e / seen.total) for e in energies], sweeps)


def bound(seen: ModeScatter, out_shape: Sequence[int]) -> float:
    """The share of the energy that the start loses at most: what each mode loses, added up.

    With one mode that shrinks it is what is lost.
    """
    pairs = zip(seen.spectra(), out_shape, strict=True)
    return min(1.0, sum(float(values[q:].sum()) for values, q in pairs))


def largest_shape(seen: ModeScatter) -> Shape:
    """How many directions of each mode the samples can determine at most."""
    samples = seen.count - 1 if seen.center else seen.count
    return tuple(min(p, samples * prod(seen.shape) // p) for p in seen.shape)


def check_sizes(name: str, seen: ModeScatter, out_shape: Sequence[int]) -> None:
    """Every mode keeps at least one direction and no more than the data has."""
    for k, (p, q, most) in enumerate(
        zip(seen.shape, out_shape, largest_shape(seen), strict=True), start=1
    ):
        if not 1 <= q <= p:
            raise ProjectionValueError(
                f"Expected {name} to keep 1 to {p} dimensions of mode {k} of data of shape "
                f"{seen.shape}, got {q} in {tuple(out_shape)}."
            )
        if q > most:
            raise ProjectionValueError(
                f"Expected enough samples for {q} directions in mode {k}, got {seen.count} samples "
                f"of shape {seen.shape}, which determine {most}."
            )
