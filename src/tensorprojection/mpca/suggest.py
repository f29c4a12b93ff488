"""Choose a layer's output shape, and initialize its W, from data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from ..errors import ProjectionError, ProjectionTypeError, ProjectionValueError
from ..nn.layers import TensorProjection, TransposeTensorProjection
from ..shapes import Shape
from .data import Data, Source
from .scatter import ModeScatter, alternate, core_energies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Layer = TypeVar("Layer", bound=TensorProjection | TransposeTensorProjection)

# Rounding error of a share of the energy.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Suggestion(Sequence[int]):
    """The result of :func:`suggest_out_shape`; as a sequence it is ``out_shape``.

    >>> suggestion = suggest_out_shape(torch.randn(100, 8, 6), 0.8)
    >>> import tensorprojection as tp
    >>> layer = tp.TensorProjection((8, 6), suggestion)
    >>> layer.out_shape == suggestion.out_shape == tuple(suggestion)
    True

    Attributes:
        in_shape: the shape of one sample.
        out_shape: the smallest shape that keeps the requested energy.
        captured_energy: the share of the energy that it keeps; a lower bound if not ``exact``.
        spectra: per mode, the share of the energy of each direction, largest first.
        exact: True if ``captured_energy`` was measured, False if it is a bound from the spectra.
    """

    in_shape: Shape
    out_shape: Shape
    captured_energy: float
    spectra: tuple[Tensor, ...]
    exact: bool

    def __repr__(self) -> str:
        least = "" if self.exact else "at least "
        share = _percent(self.captured_energy)
        return (
            f"Suggestion({self.in_shape} -> {self.out_shape}, keeps {least}{share} of the energy)"
        )

    def __len__(self) -> int:
        return len(self.out_shape)

    def __getitem__(self, index: Any) -> Any:
        return self.out_shape[index]

    def table(self) -> str:
        """Return the spectra as text: per mode, the directions that keep 90, 95 and 99 %."""
        lines = ["mode   size   90 %   95 %   99 %   suggested   its own share"]
        rows = zip(self.in_shape, self.out_shape, self.spectra, strict=True)
        for k, (p, q, values) in enumerate(rows, start=1):
            counts = "".join(f"{_needed(values, 1 - e):7d}" for e in (0.90, 0.95, 0.99))
            lines.append(f"{k:4d}{p:7d}{counts}{q:12d}{_percent(float(values[:q].sum())):>16}")
        return "\n".join(lines)


def suggest_out_shape(data: Data, energy: float = 0.95, *, center: bool = True) -> Suggestion:
    """Return the smallest shape whose projection keeps a share of the data's energy.

    >>> x = torch.randn(200, 3, 2, 2) @ torch.randn(2, 8)     # mode 3 has rank 2
    >>> suggestion = suggest_out_shape(x, 0.999)
    >>> suggestion.in_shape, suggestion.out_shape
    ((3, 2, 8), (3, 2, 2))

    The projection is the one on each mode's leading directions, with which
    :func:`~tensorprojection.init_from_data` initializes a layer. :class:`~tensorprojection.MPCA`
    of the same shape keeps as much or more.

    - Data that can be read twice (a tensor, an array, a list, a DataLoader): the result is exact.
      Among all shapes that keep at least ``energy``, measured on the data, it is one with the
      fewest entries, and among these the one that keeps most.
    - An iterator can be read only once. Then each mode keeps ``1 − (1 − energy) / order`` of its
      own spectrum. A projection loses at most the sum of the modes' losses. So the result keeps
      ``energy``, but the shape may be larger than necessary.

    Args:
        data: a tensor or array with the samples along the first axis, or a loader of such batches.
        energy: the share to keep, above 0 and at most 1, up to a rounding of 1e-12.
        center: True if energy counts about the mean of the samples, False if about zero.
    """
    energy = check_energy("energy", energy)
    source = Source(data)
    scatter = ModeScatter.of(source, center=center)
    out_shape, kept, exact = smallest_shape(source, scatter, energy)
    spectra = tuple(values.cpu() for values in scatter.spectra())
    return Suggestion(scatter.shape, out_shape, kept, spectra, exact)


def smallest_shape(
    source: Source, scatter: ModeScatter, energy: float
) -> tuple[Shape, float, bool]:
    """Return the shape, the share of the energy that it keeps, and True if that is exact."""
    if not source.repeatable:
        return shape_by_bound(scatter, energy)
    # In the basis of all directions, the energy that a shape keeps is the sum over a box of the
    # core's energies. One pass and one cumulative sum give it for every shape.
    kept = core_energies(source, scatter.mean, scatter.directions()).cpu()
    for axis in range(kept.ndim):
        kept = kept.cumsum(axis)
    kept /= kept.flatten()[-1].clone()
    entries = torch.ones((), dtype=torch.float64)
    for p in kept.shape:
        entries = entries[..., None] * torch.arange(1, p + 1, dtype=torch.float64)
    enough = kept >= energy - ROUNDING
    fewest = entries[enough].min()
    best = torch.where(enough & (entries == fewest), kept, -1.0).argmax()
    index = torch.unravel_index(best, kept.shape)
    return tuple(int(i) + 1 for i in index), float(kept.flatten()[best]), True


def shape_by_bound(scatter: ModeScatter, energy: float) -> tuple[Shape, float, bool]:
    """Return the same from the spectra alone: each mode may lose an equal part of the loss."""
    lost = (1 - energy) / len(scatter.shape)
    needed = [_needed(values, lost) for values in scatter.spectra()]
    shape = tuple(map(min, needed, scatter.largest_shape()))
    kept = 1 - scatter.lost_bound(shape)
    return shape, kept, sum(q < p for p, q in zip(scatter.shape, shape, strict=True)) < 2


def check_energy(name: str, energy: Any) -> float:
    if isinstance(energy, bool) or not isinstance(energy, int | float):
        raise ProjectionTypeError(f"Expected {name} to be a number, got {type(energy).__name__}.")
    if not 0 < energy <= 1:
        raise ProjectionValueError(f"Expected 0 < {name} <= 1, a share of the whole, got {energy}.")
    return float(energy)


def init_from_data(layer: Layer, data: Data, *, center: bool = True, sweeps: int = 0) -> Layer:
    """Set every W of a layer so that U spans the leading directions of its mode in the data.

    >>> layer = TensorProjection((8, 6, 6), (4, 3, 3))
    >>> x = torch.randn(500, 8, 6, 6) * torch.linspace(2, 0.1, 6)
    >>> before = layer.captured_energy(x).mean()
    >>> bool(init_from_data(layer, x).captured_energy(x).mean() > before)
    True

    This is the initialization of multilinear PCA (PCA per mode), in one pass over the data.
    ``sweeps > 0`` continues with alternating updates. A sweep reads the data once per mode, and
    usually gains one percent of the energy or less.

    For features inside a model: ``init_from_data(layer, tp.capture(model, "features.7", loader))``.

    Args:
        layer: a projection or a transposed projection. The U of a transposed projection spans part
            of its output, so the data must have the shape of the output. A lazy projection takes
            ``in_shape`` from the data. A lazy transposed projection must be called once first.
        data: a tensor or array with the samples along the first axis, or a loader of such batches.
        center: True for directions of the spread about the mean (a bias after the layer can make
            up for the mean), False for directions of the data itself.
        sweeps: the number of alternating sweeps.

    Returns:
        The layer, changed in place: ``W_k = U_k · init_scale``.
    """
    if not isinstance(layer, TensorProjection | TransposeTensorProjection):
        raise ProjectionTypeError(
            f"Expected a TensorProjection or TransposeTensorProjection, got {type(layer).__name__}."
        )
    if isinstance(sweeps, bool) or not isinstance(sweeps, int) or sweeps < 0:
        raise ProjectionValueError(f"Expected sweeps to be an integer >= 0, got {sweeps!r}.")
    lazy = any(isinstance(W, UninitializedParameter) for W in layer.Ws)
    if lazy and layer.transposed:
        raise ProjectionValueError(
            "This lazy layer has no shapes yet, and the data gives the shape of its output only. "
            "Call it once with an input before using init_from_data()."
        )
    source = Source(data)
    scatter = ModeScatter.of(source, center=center)
    if lazy:  # the first call gives the layer its shapes
        first = next(W for W in layer.Ws if W is not None)
        with torch.no_grad():
            layer(torch.zeros(1, *scatter.shape, device=first.device, dtype=first.dtype))
    large, small = layer.in_shape, layer.out_shape
    if layer.transposed:
        large, small = small, large
    if scatter.shape != large:
        side = "output" if layer.transposed else "input"
        raise ProjectionValueError(
            f"Expected data of the layer's {side} shape, (n, {', '.join(map(str, large))}), "
            f"got samples of shape {scatter.shape}."
        )
    scatter.check_sizes("the layer", small)
    Us = scatter.directions(small)
    if sweeps:
        Us, _ = alternate(source, scatter, small, max_iter=sweeps, tol=0.0)
    with torch.no_grad():
        for W, U, scale in zip(layer.Ws, Us, layer.init_scale, strict=True):
            if W is not None:
                W.copy_(U * scale)
    return layer


def plot_spectra(
    suggestion_or_data: Suggestion | Data, path_or_axes: Path | str | Axes | None = None
) -> Axes:
    """Plot the captured energy over the number of directions, one curve per mode.

    >>> x = torch.randn(200, 8, 6)
    >>> axes = plot_spectra(x, "spectra.png")  # doctest: +SKIP
    >>> axes = plot_spectra(suggest_out_shape(x, 0.9))

    Args:
        suggestion_or_data: the result of :func:`suggest_out_shape`, or its data.
        path_or_axes: the file to write, or the axes to draw on. Default: new axes.

    Returns:
        The axes; ``axes.figure`` is the figure. Needs matplotlib.
    """
    suggestion = suggestion_or_data
    if not isinstance(suggestion, Suggestion):
        suggestion = suggest_out_shape(suggestion)
    new = path_or_axes is None or isinstance(path_or_axes, Path | str)
    axes = _new_axes() if new else cast("Axes", path_or_axes)
    rows = zip(suggestion.in_shape, suggestion.out_shape, suggestion.spectra, strict=True)
    for k, (p, q, values) in enumerate(rows, start=1):
        kept = torch.cumsum(values, 0).tolist()
        (line,) = axes.plot(range(1, p + 1), kept, label=f"mode {k}: {q} of {p}")
        axes.plot([q], [kept[q - 1]], "o", color=line.get_color())
    axes.set_xlabel("directions kept")
    axes.set_ylabel("captured energy per mode")
    axes.set_title(f"captured energy {_percent(suggestion.captured_energy)}")
    axes.legend()
    if isinstance(path_or_axes, Path | str):
        Path(path_or_axes).parent.mkdir(parents=True, exist_ok=True)
        cast("Figure", axes.figure).savefig(path_or_axes)
    return axes


def _new_axes() -> Axes:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ProjectionError("plot_spectra needs matplotlib: pip install matplotlib.") from error
    return Figure(figsize=(6.4, 4.0), layout="constrained").add_subplot()


def _needed(values: Tensor, lost: float) -> int:
    """Return the number of leading directions that lose at most a share ``lost``."""
    tails = 1 - values.cumsum(0)
    return min(int((tails > lost + ROUNDING).sum()) + 1, len(values))


def _percent(share: float) -> str:
    # Rounded down, so that the text never overstates the captured energy.
    return f"{int(share * 10_000 + 1e-6) / 100:.2f} %"
