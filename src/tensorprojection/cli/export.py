"""``tpl export``: a trained network as one file for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .settings import OwnStudy, TrialNumber, own_study


def export(
    folder: Annotated[Path, Parameter(help="The folder of a run.")],
    /,
    *,
    model: Annotated[str, Parameter(help="Which of its networks.")],
    to: Annotated[Path, Parameter(help="The file: model.onnx or model.pt2.")],
    trial: TrialNumber = "best",
    study: OwnStudy = None,
) -> None:
    """Write a network for use without tensorprojection: pixels in, logits out.

    The projections are folded, so there is no decomposition in the file. The preprocessing is part
    of it. Before it is written, it is compared with the original on validation images.
    """
    from rich.console import Console

    from ..studies.trained import SUFFIXES, check_new, load_network
    from ..studies.trained import export as write

    check_new(to, SUFFIXES)
    trained = load_network(folder, model, trial, own_study(study))
    difference = write(trained, to)
    about = trained.about
    Console(highlight=False).print(
        f"{to}: {about.model} of trial {about.trial}, epoch {about.epoch}; differs from the "
        f"original by {difference:.1e} at most on validation images.",
        soft_wrap=True,
        markup=False,
    )
