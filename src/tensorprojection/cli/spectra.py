"""``tpl spectra``: the spectra of stored data, and a shape for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import plot_spectra, suggest_out_shape
from ..errors import ProjectionValueError
from ..studies.data.npz import open_npz
from ..studies.errors import StudyError

DRAWN = (".png", ".pdf", ".svg")


def spectra(
    *,
    data: Path,
    energy: float = 0.95,
    array: str | None = None,
    out: Path | None = None,
) -> None:
    """Print the energy by mode of stored data, and the smallest shape that keeps a share of it.

    Args:
        data: A .npy or .npz file; samples along the first axis.
        energy: The share of the energy to keep.
        array: Which array of a .npz; else its only one, or 'images'.
        out: Where to draw the spectra, as .png, .pdf or .svg.
    """
    if out is not None and out.suffix not in DRAWN:  # the data may take long to read
        raise ProjectionValueError(
            f"Expected a drawing's name to end with one of {', '.join(DRAWN)}, got {out.name}."
        )
    suggestion = suggest_out_shape(load_array(data, array), energy)
    print(suggestion.table())
    print(suggestion)
    if out is not None:
        plot_spectra(suggestion, out)
        print(f"wrote {out}")


def load_array(path: Path, name: str | None = None) -> NDArray[Any]:
    """The array in a file: of a .npy as a memory map, of a .npz read whole."""
    if path.suffix not in (".npy", ".npz"):
        raise ProjectionValueError(f"Expected a .npy or .npz file, got {path}.")
    if not path.is_file():
        raise ProjectionValueError(f"Expected a file at {path}, got none.")
    try:
        if path.suffix == ".npy":
            mapped: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return mapped
        with open_npz(path) as arrays:
            chosen: NDArray[Any] = arrays[_choose(arrays.files, name, path)]
            return chosen
    except ProjectionValueError:
        raise
    except StudyError as error:
        raise ProjectionValueError(f"Expected an array of numbers in {path}: {error}") from error
    except (OSError, EOFError, ValueError) as error:
        raise ProjectionValueError(f"Expected an array of numbers in {path}: {error}.") from error


def _choose(names: list[str], wanted: str | None, path: Path) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    name = "images" if wanted is None else wanted
    if name not in names:
        raise ProjectionValueError(
            f"Expected array {name!r} in {path}, got {', '.join(map(repr, names)) or 'none'}."
        )
    return name
