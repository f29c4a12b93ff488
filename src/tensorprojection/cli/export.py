"""``tpl export``: a trained network as one file for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def export(
    folder: Annotated[Path, Parameter(help="The folder of a run.")],
    /,
    *,
    model: Annotated[str, Parameter(help="Which of its networks.")],
    to: Annotated[Path, Parameter(help="The file: model.pt2 or model.onnx.")],
    trial: Annotated[
        str, Parameter(help='Its number, from 1; "best" has the lowest validation loss.')
    ] = "best",
) -> None:
    """Write a network for use without tensorprojection: pixels in, logits out.

    It is folded, so there is no decomposition in it; the preprocessing is part of it; and before
    it is written, it is checked against the original on validation images.
    """
    from rich.console import Console

    from ..studies.kept.deploy import check_target, validation_images
    from ..studies.kept.deploy import export as write
    from ..studies.kept.networks import load_network

    check_target(to)
    kept = load_network(folder, model, trial_number(trial))
    difference = write(kept, to, validation_images(kept))
    about = kept.about
    Console(highlight=False).print(
        f"{to}: {about.model} of trial {about.trial}, epoch {about.epoch}; differs from the "
        f"original by {difference:.1e} at most on validation images.",
        soft_wrap=True,
        markup=False,
    )


def trial_number(given: str) -> int | Literal["best"]:
    """A trial as a user gives it."""
    from ..studies.errors import StudyError

    if given == "best":
        return "best"
    if not given.isdigit():
        raise StudyError(f"Expected a trial's number or best, got {given!r}.")
    return int(given)
