"""Multilinear PCA by alternation, on scatter matrices of data that need not fit in memory.

The mode-k scatter of samples ``X_n`` with mean ``M`` is ``S_k = Σ_n (X_n − M)_(k) (X_n − M)_(k)ᵀ``,
a ``p_k × p_k`` matrix. Its eigenvectors are the directions of mode k, sorted by their energy. Every
``S_k`` has the same trace, the energy of the data.

The U's that minimise ``Σ_n ‖X_n − X_n ×₁ U₁U₁ᵀ ×₂ U₂U₂ᵀ …‖²`` have no closed form beyond order 1.
With all U's but one held fixed, the best ``U_k`` is known: the leading eigenvectors of the mode-k
scatter of the samples projected along the other modes. So no step increases the error. See Lu,
Plataniotis & Venetsanopoulos, "MPCA: Multilinear Principal Component Analysis of Tensor Objects",
IEEE Transactions on Neural Networks 19 (2008).

Note [Merging means]
    ``Σ x xᵀ − n m mᵀ`` loses all digits if the mean is large compared with the spread. So each
    chunk is centred by its own mean, and two parts are merged with the rule of Chan, Golub &
    LeVeque (1979): with δ the difference of their means, ``S = S_a + S_b + n_a n_b / (n_a + n_b) δ
    δᵀ``.

Note [Float32 products, float64 sums]
    Products of a float32 chunk are float32. Sums over chunks are float64. Float64 throughout
    doubles the time of a fit and changes its energy by 1e-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from ..errors import ProjectionValueError
from ..functional import project
from ..shapes import Shape
from .data import Source


class ModeScatter:
    """Mean and mode scatters of all samples so far, in float64.

    >>> scatter = ModeScatter()
    >>> for batch in torch.randn(10, 32, 8, 6):
    ...     scatter.update(batch)
    >>> scatter.count, [tuple(S.shape) for S in scatter.matrices]
    (320, [(8, 8), (6, 6)])

    Args:
        center: True for scatters about the mean, False for scatters about zero.
    """

    def __init__(self, *, center: bool = True) -> None:
        self.center = center
        self.count = 0
        self.mean = torch.zeros(0)
        self.matrices: list[Tensor] = []
        self._precision = torch.finfo(torch.float64).eps

    @classmethod
    def of(cls, source: Source, *, center: bool = True) -> ModeScatter:
        """Return the mean and mode scatters of a whole source, in one pass."""
        scatter = cls(center=center)
        for x in source.chunks():
            scatter.update(x)
        scatter.check()
        return scatter

    @property
    def shape(self) -> Shape:
        """The shape of one sample."""
        return tuple(self.mean.shape)

    @property
    def total(self) -> float:
        """The energy of the data: the sum of squares about the mean (or about zero)."""
        return float(self.matrices[0].trace())

    def update(self, x: Tensor) -> None:
        """Add a batch ``(n, *shape)`` of float32 or float64; see Note [Merging means]."""
        on_mps = x.device.type == "mps"  # Apple's GPU has no float64
        device = torch.device("cpu") if on_mps else x.device
        mean = torch.zeros(x.shape[1:], dtype=torch.float64, device=device)
        if self.center:
            mean += x.mean(0, dtype=None if on_mps else torch.float64).to(mean)
            x = centered(x, mean)
        matrices = [_gram(x, k).to(mean) for k in range(mean.ndim)]
        self._precision = max(self._precision, torch.finfo(x.dtype).eps)
        if not self.matrices:
            self.count, self.mean, self.matrices = len(x), mean, matrices
            return
        if mean.shape != self.mean.shape:
            raise ProjectionValueError(
                f"Expected samples of shape {self.shape}, as before, got {tuple(mean.shape)}."
            )
        count = self.count + len(x)
        difference = mean.to(self.mean) - self.mean
        for k, S in enumerate(self.matrices):
            S += matrices[k].to(S)
            if self.center:
                S += _gram(difference[None], k) * (self.count * len(x) / count)
        self.mean += difference * (len(x) / count)
        self.count = count

    def check(self) -> None:
        """Raise an error if the data determines no directions."""
        if self.count == 0:
            raise ProjectionValueError("Expected at least one sample, got empty data.")
        if not all(bool(S.isfinite().all()) for S in (self.mean, *self.matrices)):
            raise ProjectionValueError(
                "Expected finite numbers whose squares are finite too, got NaN, infinity or "
                "values too large for their type."
            )
        if self.center and self.count < 2:
            raise ProjectionValueError(
                "Expected at least 2 samples, since the mean is subtracted, got 1 sample."
            )
        rounding = self._precision**2 * self.count * float(self.mean.square().sum())
        if self.total <= rounding:
            raise ProjectionValueError(
                "Expected data that varies, got "
                + ("the same sample throughout." if self.center else "zeros only.")
            )

    def spectra(self) -> list[Tensor]:
        """Return each mode's eigenvalues as shares of the energy, largest first."""
        values = [_leading(S)[0] for S in self.matrices]
        return [v / v.sum() for v in values]

    def directions(self, out_shape: Sequence[int] | None = None) -> list[Tensor]:
        """Return each mode's leading eigenvectors as columns: the initialization of MPCA."""
        sizes = self.shape if out_shape is None else out_shape
        return [_leading(S, q)[1] for S, q in zip(self.matrices, sizes, strict=True)]

    def lost_bound(self, out_shape: Sequence[int]) -> float:
        """Return an upper bound of the share of the energy that :meth:`directions` lose.

        The bound is the sum of the modes' own losses. It is exact if only one mode shrinks.
        """
        pairs = zip(self.spectra(), out_shape, strict=True)
        return min(1.0, sum(float(values[q:].sum()) for values, q in pairs))

    def largest_shape(self) -> Shape:
        """Return the largest number of directions per mode that the samples determine."""
        samples = self.count - 1 if self.center else self.count
        return tuple(min(p, samples * prod(self.shape) // p) for p in self.shape)

    def check_sizes(self, name: str, out_shape: Sequence[int]) -> None:
        """Raise an error if a mode keeps no direction, or more than the data determines."""
        sizes = zip(self.shape, out_shape, self.largest_shape(), strict=True)
        for k, (p, q, most) in enumerate(sizes, start=1):
            if not 1 <= q <= p:
                raise ProjectionValueError(
                    f"Expected {name} to keep 1 to {p} dimensions of mode {k} of data of shape "
                    f"{self.shape}, got {q} in {tuple(out_shape)}."
                )
            if q > most:
                raise ProjectionValueError(
                    f"Expected enough samples for {q} directions in mode {k}, got {self.count} "
                    f"samples of shape {self.shape}, which determine {most}."
                )


def alternate(
    source: Source, scatter: ModeScatter, out_shape: Sequence[int], *, max_iter: int, tol: float
) -> tuple[list[Tensor], list[float]]:
    """Sweep over the modes until a sweep gains no more than ``tol`` of the energy.

    Return the U's and the shares of the energy lost, initially and after every sweep. A sweep reads
    the source once per mode that shrinks. If only one mode shrinks, the initialization is the
    optimum, and there is no sweep.
    """
    Us = scatter.directions(out_shape)
    modes = [k for k, (p, q) in enumerate(zip(scatter.shape, out_shape, strict=True)) if q < p]
    if len(modes) < 2:
        return Us, [scatter.lost_bound(out_shape)]
    if max_iter and not source.repeatable:
        raise ProjectionValueError(
            "Expected data that can be read more than once (a tensor, a list, a DataLoader), got "
            "an iterator: the alternation reads it once per mode and sweep."
        )
    factors: list[Tensor | None] = [U if k in modes else None for k, U in enumerate(Us)]
    energies: list[float] = []
    for _ in range(max_iter):
        for k in modes:
            S = _projected_scatter(source, scatter.mean, factors, k)
            if not energies:
                energies.append(float((Us[k].mT @ S @ Us[k]).trace()))
            values, Us[k] = _leading(S, out_shape[k])
            factors[k] = Us[k]
        energies.append(float(values.sum()))
        if energies[-1] - energies[-2] <= tol * scatter.total:
            break
    return Us, [max(0.0, 1 - e / scatter.total) for e in energies]


def _projected_scatter(source: Source, mean: Tensor, Us: Sequence[Tensor | None], k: int) -> Tensor:
    """Return the scatter of axis ``k`` of the centred samples, projected along the other modes."""
    others = [None if j == k else U for j, U in enumerate(Us)]
    S = torch.zeros(mean.shape[k], mean.shape[k], dtype=torch.float64, device=mean.device)
    for x in source.chunks():
        S += _gram(_project(centered(x, mean), others), k).to(S)
    return S


def core_energies(source: Source, mean: Tensor, Us: Sequence[Tensor | None]) -> Tensor:
    """Return Σ_n z² for every entry z of the projections of the centred samples."""
    total = torch.zeros_like(_project(mean, Us))
    for x in source.chunks():
        total += _project(centered(x, mean), Us).square_().sum(0).to(total)
    return total


def centered(x: Tensor, mean: Tensor) -> Tensor:
    """Return ``x − mean`` in x's type, for a float64 mean.

    The mean is subtracted in two parts, its value in x's type and the rest. A single rounded mean
    is off by a large part of the spread if the mean is large: by 0.03 at 1e6 in float32.
    Subtracting after the projection would lose as many digits again.
    """
    high = mean.to(x)
    return (x - high).sub_((mean - high.to(mean)).to(x))


def _project(x: Tensor, Us: Sequence[Tensor | None]) -> Tensor:
    """Return the projection of x, with the U's in x's type and without autocast."""
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        return project(x, [None if U is None else U.to(x) for U in Us])


def _gram(x: Tensor, k: int) -> Tensor:
    """Return Σ_n X_(k) X_(k)ᵀ over samples ``(n, *shape)``, modes counted from 0."""
    p, left, right = x.shape[k + 1], prod(x.shape[: k + 1]), prod(x.shape[k + 2 :])
    with torch.autocast(x.device.type, enabled=False):  # the caller may have it on
        if right == 1:
            A = x.reshape(left, p)
            return A.mT @ A
        if right >= p:  # one product per slice; each is smaller than its slice, which is not copied
            A = x.reshape(left, p, right)
            return (A @ A.mT).sum(0)
        A = x.movedim(k + 1, 0).reshape(p, left * right)
        return A @ A.mT


def _leading(S: Tensor, q: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the q largest eigenvalues of a scatter, at least 0, and eigenvectors as columns.

    Each vector's largest entry is positive. LAPACK may return v or −v.
    """
    values, V = torch.linalg.eigh(S)
    values, V = values.flip(0)[:q].clamp(min=0), V.flip(1)[:, :q]
    largest = V.gather(0, V.abs().argmax(0, keepdim=True))
    return values, V * torch.where(largest < 0, -1.0, 1.0)
