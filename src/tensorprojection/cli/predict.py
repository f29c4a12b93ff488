"""``tpl predict``: classes or masks of image files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def predict(
    network: Annotated[
        Path, Parameter(help="A file of tpl export, or the folder of a run with --model.")
    ],
    /,
    *images: Annotated[Path, Parameter(help="Image files, or folders of them.")],
    model: Annotated[str | None, Parameter(help="Which network of the run's folder.")] = None,
    trial: Annotated[
        str, Parameter(help='Its number, from 1; "best" has the lowest validation loss.')
    ] = "best",
    csv: Annotated[Path | None, Parameter(help="Also write the classes to this file.")] = None,
    out: Annotated[Path, Parameter(help="The folder that masks go to.")] = Path("masks"),
) -> None:
    """Classes with probabilities as a table, or masks as PNG files.

    Images are prepared as in training. Files that are no images are listed, and the exit code is 1.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..studies.errors import StudyError
    from ..studies.files import write_whole
    from ..studies.kept.deploy import check_new
    from ..studies.kept.predict import as_csv, image_files, open_predictor, write_masks
    from ..studies.kept.predict import predict as say
    from .export import trial_number

    if csv is not None:
        check_new(csv)
    files = image_files(images)
    predictor = open_predictor(network, model, trial_number(trial))
    if csv is not None and predictor.masks:
        raise StudyError("Expected --out for a network that gives masks, got --csv.")
    found, unreadable = say(predictor, files)
    console = Console(highlight=False)
    if predictor.masks:
        targets = write_masks(found, out)
        console.print(f"{len(targets)} masks in {out}.", soft_wrap=True, markup=False)
    elif found:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in ("file", "class", "probability"):
            table.add_column(name, justify="right" if name == "probability" else "left")
        for p in found:
            best = max(range(len(p.probabilities)), key=p.probabilities.__getitem__)
            share = f"{p.probabilities[best]:.4f}"
            table.add_row(Text(str(p.file)), Text(predictor.class_names[best]), share)
        console.print(table)
        if csv is not None:
            write_whole(csv, as_csv(predictor, found).encode())
            console.print(f"Table: {csv}", soft_wrap=True, markup=False)
    for file, why in unreadable:
        print(f"tpl: {file} {why}.", file=sys.stderr)
    if unreadable:
        sys.exit(1)
