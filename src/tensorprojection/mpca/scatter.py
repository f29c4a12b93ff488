"""Per-mode scatter matrices of data that need not fit in memory.

The mode-k scatter of samples ``X_n`` with mean ``M`` is ``S_k = Σ_n (X_n − M)_(k) (X_n − M)_(k)ᵀ``,
a ``p_k × p_k`` matrix: its eigenvectors are the directions of mode k by the energy they hold, and
every ``S_k`` has the same trace, the energy of the data.

Note [Means merged, not subtracted later]
    ``Σ x xᵀ − n m mᵀ`` loses all digits where the mean is large against the spread. So each chunk
    is centred by its own mean, and two parts are merged by the rule of Chan, Golub & LeVeque
    (1979): with δ the difference of their means, ``S = S_a + S_b + n_a n_b / (n_a + n_b) δ δᵀ``.

Note [Float32 products, float64 sums]
    The products of one float32 chunk are float32, as its data; what adds up over chunks is float64.
    Float64 outright doubles the time of a fit and changes the energy it finds by 1e-8.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ..algebra.multilinear import project
from ..engine.dtypes import no_autocast
from ..engine.layout import Matrices
from ..errors import ProjectionValueError
from ..shapes import Shape
from .batches import Source


class ModeScatter:
    """Mean and mode scatters of all samples seen so far.

    >>> seen = ModeScatter()
    >>> for batch in torch.randn(10, 32, 8, 6):
    ...     seen.update(batch)
    >>> seen.count, [tuple(S.shape) for S in seen.scatters]
    (320, [(8, 8), (6, 6)])

    In memory it is the mean, as large as one sample, and one ``p_k × p_k`` matrix per mode,
    in float64, however many samples there are.

    Args:
        center: whether the scatters are about the mean, or about zero.
    """

    def __init__(self, *, center: bool = True) -> None:
        self.center = center
        self.count = 0
        self.mean = torch.zeros(0)
        self.scatters: list[Tensor] = []
        self._precision = torch.finfo(torch.float64).eps

    @property
    def shape(self) -> Shape:
        """The shape of one sample."""
        return tuple(self.mean.shape)

    @property
    def total(self) -> float:
        """The energy of the data: the sum of squares about the mean (or about zero)."""
        return float(self.scatters[0].trace())

    def update(self, x: Tensor) -> None:
        """Take in a batch ``(n, *shape)`` of float32 or float64."""
        mean = torch.zeros(x.shape[1:], dtype=torch.float64, device=_sums_device(x))
        if self.center:
            mean += x.mean(0, dtype=None if x.device.type == "mps" else torch.float64).to(mean)
            x = x - mean.to(x)
        batch = ModeScatter(center=self.center)
        batch.count, batch.mean = len(x), mean
        batch.scatters = [mode_gram(x, k).to(mean) for k in range(mean.ndim)]
        batch._precision = torch.finfo(x.dtype).eps
        self.merge(batch)

    def merge(self, other: ModeScatter) -> None:
        """Take in what another has seen; see Note [Means merged, not subtracted later]."""
        self._precision = max(self._precision, other._precision)
        if not self.scatters:
            self.count, self.mean = other.count, other.mean.clone()
            self.scatters = [S.clone() for S in other.scatters]
            return
        if other.shape != self.shape:
            raise ProjectionValueError(
                f"Expected samples of shape {self.shape}, as before, got {other.shape}."
            )
        count = self.count + other.count
        difference = other.mean.to(self.mean) - self.mean
        for k, S in enumerate(self.scatters):
            S += other.scatters[k].to(S)
            if self.center:
                S += mode_gram(difference[None], k) * (self.count * other.count / count)
        self.mean += difference * (other.count / count)
        self.count = count

    def check(self) -> None:
        """There is something to take directions from."""
        if self.count == 0:
            raise ProjectionValueError("Expected at least one sample, got empty data.")
        if not all(bool(S.isfinite().all()) for S in (self.mean, *self.scatters)):
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
        """Each mode's eigenvalues, largest first, as shares of the energy."""
        values = [leading(S)[0] for S in self.scatters]
        return [v / v.sum() for v in values]

    def directions(self) -> list[Tensor]:
        """Each mode's eigenvectors as columns, by eigenvalue, largest first."""
        return [leading(S)[1] for S in self.scatters]


def scatter(source: Source, *, center: bool = True) -> ModeScatter:
    """The mean and mode scatters of a whole source, in one pass."""
    seen = ModeScatter(center=center)
    for x in source.chunks():
        seen.update(x)
    seen.check()
    return seen


def projected_scatter(source: Source, mean: Tensor, Us: Matrices, k: int) -> Tensor:
    """The scatter of axis ``k`` of the samples about ``mean``, projected along the other modes."""
    others = [None if j == k else U for j, U in enumerate(Us)]
    center = _project(mean, others)
    S = torch.zeros(mean.shape[k], mean.shape[k], dtype=torch.float64, device=mean.device)
    for x in source.chunks():
        # Subtracting the mean after the projection, where it is smaller, is as exact.
        S += mode_gram(_project(x, others) - center.to(x), k).to(S)
    return S


def core_energies(source: Source, mean: Tensor, Us: Matrices) -> Tensor:
    """Σ_n z² for every entry z of the centred samples' projections; of the projection's shape."""
    center = _project(mean, Us)
    total = torch.zeros_like(center)
    for x in source.chunks():
        z = _project(x, Us) - center.to(x)
        total += z.square_().sum(0).to(total)
    return total


def mode_gram(x: Tensor, k: int) -> Tensor:
    """Σ_n X_(k) X_(k)ᵀ over samples ``(n, *shape)``, modes counted from 0."""
    with no_autocast(x):  # it may be on where the data is read
        return _gram(x, k)


def _gram(x: Tensor, k: int) -> Tensor:
    p, left, right = x.shape[k + 1], prod(x.shape[: k + 1]), prod(x.shape[k + 2 :])
    if right == 1:
        A = x.reshape(left, p)
        return A.mT @ A
    if right >= p:  # one product per slice, without a copy; each result is smaller than its slice
        A = x.reshape(left, p, right)
        return (A @ A.mT).sum(0)
    A = x.movedim(k + 1, 0).reshape(p, left * right)
    return A @ A.mT


def leading(S: Tensor, q: int | None = None) -> tuple[Tensor, Tensor]:
    """The q largest eigenvalues of a scatter, none below 0, and their vectors as columns.

    Each vector's largest entry is positive: which of ±v an algorithm returns is chance.
    """
    values, V = torch.linalg.eigh(S)
    values, V = values.flip(0)[:q].clamp(min=0), V.flip(1)[:, :q]
    largest = V.gather(0, V.abs().argmax(0, keepdim=True))
    return values, V * torch.where(largest < 0, -1.0, 1.0)


def _project(x: Tensor, Us: Matrices) -> Tensor:
    with torch.no_grad(), no_autocast(x):
        return project(x, [None if U is None else U.to(x) for U in Us])


def _sums_device(x: Tensor) -> torch.device:
    # Apple's GPU has no float64.
    return torch.device("cpu") if x.device.type == "mps" else x.device
