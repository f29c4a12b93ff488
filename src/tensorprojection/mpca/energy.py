"""How much energy each mode's directions hold, and the smallest shape that keeps enough of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import Tensor

from ..errors import ProjectionError, ProjectionTypeError, ProjectionValueError
from ..shapes import Shape
from .alternating import bound, largest_shape
from .batches import Data, Source
from .scatter import ModeScatter, core_energies, scatter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The share of the energy that sums of squares may be off by.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class Suggestion(Sequence[int]):
    """What :func:`suggest_out_shape` found: a sequence of sizes, ``out_shape``, and more.

    >>> suggestion = suggest_out_shape(torch.randn(100, 8, 6), 0.8)
    >>> import tensorprojection as tp
    >>> layer = tp.TensorProjection((8, 6), suggestion)
    >>> layer.out_shape == suggestion.out_shape == tuple(suggestion)
    True

    Attributes:
        in_shape: the shape of one sample.
        out_shape: the smallest shape that keeps the energy asked for.
        energy: the share that it keeps, or with ``exact=False`` at least keeps.
        spectra: by mode, the share of the energy that each direction holds, largest first.
        exact: whether ``energy`` was measured, or is a bound from the spectra alone.
    """

    in_shape: Shape
    out_shape: Shape
    energy: float
    spectra: tuple[Tensor, ...]
    exact: bool

    def __repr__(self) -> str:
        least = "" if self.exact else "at least "
        return (
            f"Suggestion({self.in_shape} -> {self.out_shape}, keeps {least}{_percent(self.energy)} "
            "of the energy)"
        )

    def __len__(self) -> int:
        return len(self.out_shape)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Shape: ...
    def __getitem__(self, index: int | slice) -> int | Shape:
        return self.out_shape[index]

    def table(self) -> str:
        """The spectra as text: by mode, how many directions hold 90, 95 and 99 % by themselves."""
        lines = ["mode   size   90 %   95 %   99 %   suggested   its own share"]
        rows = zip(self.in_shape, self.out_shape, self.spectra, strict=True)
        for k, (p, q, values) in enumerate(rows, start=1):
            counts = "".join(f"{_needed(values, 1 - e):7d}" for e in (0.90, 0.95, 0.99))
            lines.append(f"{k:4d}{p:7d}{counts}{q:12d}{_percent(float(values[:q].sum())):>16}")
        return "\n".join(lines)


def suggest_out_shape(data: Data, energy: float = 0.95, *, center: bool = True) -> Suggestion:
    """The smallest shape whose projection keeps a share of the data's energy.

    >>> x = torch.randn(200, 3, 2, 2) @ torch.randn(2, 8)     # mode 3 has rank 2
    >>> suggestion = suggest_out_shape(x, 0.999)
    >>> suggestion.in_shape, suggestion.out_shape
    ((3, 2, 8), (3, 2, 2))

    The projection is that on the leading directions of every mode, the start that
    :func:`~tensorprojection.init_from_data` gives a layer; :class:`~tensorprojection.MPCA` with
    that shape keeps as much or more.

    - Data that can be read twice (a tensor, an array, a list, a DataLoader): the result is exact.
      Of all shapes whose leading directions keep at least ``energy``, together and measured on the
      data, it is one with the fewest entries, and of these the one that keeps most.
    - An iterator can be read only once. Then each mode keeps ``1 − (1 − energy) / order`` of its
      own spectrum. What a projection loses is at most the sum of what the modes lose, so
      ``energy`` is kept all the same, but the shape may be larger than need be.

    Args:
        data: a tensor or array with the samples along the first axis, or a loader of such batches.
        energy: the share to keep, above 0 and at most 1, met up to a rounding of 1e-12.
        center: whether energy counts about the mean of the samples, or about zero.
    """
    energy = check_energy("energy", energy)
    source = Source(data)
    seen = scatter(source, center=center)
    out_shape, kept, exact = smallest_shape(source, seen, energy)
    return Suggestion(seen.shape, out_shape, kept, tuple(_cpu(seen.spectra())), exact)


def smallest_shape(source: Source, seen: ModeScatter, energy: float) -> tuple[Shape, float, bool]:
    """The shape, the share of the energy that it keeps, and whether that is exact."""
    if not source.repeatable:
        return shape_by_bound(seen, energy)
    # With all directions of all modes as axes, the energy that a shape keeps is the sum over the
    # box of its entries: one pass and one cumulative sum give it for every shape there is.
    kept = core_energies(source, seen.mean, list(seen.directions())).cpu()
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


def shape_by_bound(seen: ModeScatter, energy: float) -> tuple[Shape, float, bool]:
    """The same from the spectra alone: each mode may lose an equal share of the allowed loss."""
    lost = (1 - energy) / len(seen.shape)
    needed = [_needed(values, lost) for values in seen.spectra()]
    shape = tuple(map(min, needed, largest_shape(seen)))
    kept = 1 - bound(seen, shape)
    return shape, kept, sum(q < p for p, q in zip(seen.shape, shape, strict=True)) < 2


def check_energy(name: str, energy: Any) -> float:
    if isinstance(energy, bool) or not isinstance(energy, int | float):
        raise ProjectionTypeError(f"Expected {name} to be a number, got {type(energy).__name__}.")
    if not 0 < energy <= 1:
        raise ProjectionValueError(f"Expected 0 < {name} <= 1, a share of the whole, got {energy}.")
    return float(energy)


def plot_spectra(
    suggestion_or_data: Suggestion | Data, path_or_axes: Path | str | Axes | None = None
) -> Axes:
    """Draw how the energy kept grows with the number of directions, mode by mode.

    >>> x = torch.randn(200, 8, 6)
    >>> axes = plot_spectra(x, "spectra.png")  # doctest: +SKIP
    >>> axes = plot_spectra(suggest_out_shape(x, 0.9))

    Args:
        suggestion_or_data: the result of :func:`suggest_out_shape`, or its data.
        path_or_axes: the file to write, or the axes to draw on; by default new axes are made.

    Returns:
        The axes; their ``figure`` is the whole drawing. It needs matplotlib.
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
    axes.set_ylabel("share of the energy, mode by mode")
    axes.set_title(f"together {_percent(suggestion.energy)}")
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
    """How many leading directions lose at most that share."""
    tails = 1 - values.cumsum(0)
    return min(int((tails > lost + ROUNDING).sum()) + 1, len(values))


def _cpu(tensors: list[Tensor]) -> list[Tensor]:
    return [t.cpu() for t in tensors]


def _percent(share: float) -> str:
    # Rounded down: what is kept is never said to be more than it is.
    return f"{int(share * 10_000 + 1e-6) / 100:.2f} %"
