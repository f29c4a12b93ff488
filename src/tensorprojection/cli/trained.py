"""``tpl export``, ``tpl predict`` and ``tpl evaluate``: the networks that a run has saved."""

from __future__ import annotations

import sys
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


def predict(
    network: Annotated[
        Path, Parameter(help="An .onnx file of tpl export, or the folder of a run with --model.")
    ],
    /,
    *images: Annotated[Path, Parameter(help="Image files, or folders of them.")],
    model: Annotated[str | None, Parameter(help="Which network of the run's folder.")] = None,
    trial: TrialNumber = "best",
    csv: Annotated[Path | None, Parameter(help="Also write the classes to this file.")] = None,
    out: Annotated[Path, Parameter(help="The folder that masks go to.")] = Path("masks"),
    study: OwnStudy = None,
) -> None:
    """Print classes with probabilities as a table, or write masks as PNG files.

    Images are preprocessed as in training. Files without a prediction are listed, and the exit code
    is 1.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..studies import trained
    from ..studies.errors import StudyError
    from ..studies.files import write_whole

    if csv is not None:
        trained.check_new(csv)
    files = trained.image_files(images)
    if network.is_dir():
        if model is None:
            raise StudyError(f"Expected --model beside the folder of a run, {network}, got none.")
        loaded = trained.load_network(network, model, trial, own_study(study))
        run: trained.Network = loaded.from_pixels()
        record = trained.Record.of(loaded)
    elif model is not None or trial != "best":
        raise StudyError(
            f"--model and --trial are for the folder of a run; {network} has one network."
        )
    else:
        run, record = trained.read_onnx(network)
    if csv is not None and record.masks:
        raise StudyError("Expected --out for a network that gives masks, got --csv.")
    found, without = trained.predict(run, record, files)
    console = Console(highlight=False)
    if record.masks:
        trained.write_masks(found, out)
        console.print(f"{len(found)} masks in {out}.", soft_wrap=True, markup=False)
    elif found:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in ("file", "class", "probability"):
            table.add_column(name, justify="right" if name == "probability" else "left")
        for p in found:
            share = f"{p.probabilities[p.best]:.4f}"
            table.add_row(Text(str(p.file)), Text(record.class_names[p.best]), share)
        console.print(table)
        if csv is not None:
            write_whole(csv, trained.as_csv(record, found).encode())
            console.print(f"Table: {csv}", soft_wrap=True, markup=False)
    by = f"By {record.model} of trial {record.trial}, epoch {record.epoch}."
    console.print(by, soft_wrap=True, markup=False)
    for file, why in without:
        print(f"tpl: {file} {why}.", file=sys.stderr)
    if without:
        sys.exit(1)


def evaluate(
    folder: Annotated[Path, Parameter(help="The folder of a run.")],
    /,
    *,
    data: Annotated[Path, Parameter(help="Images, as tpl run takes them: a folder, .npz, …")],
    out: Annotated[
        Path | None,
        Parameter(help="The results' folder; evaluated-NAME in the run's folder by default."),
    ] = None,
    study: OwnStudy = None,
) -> None:
    """Measure all saved networks on other images, paired by trial: a table and a page.

    Images that are among the run's own are counted: results on them are not held-out results.
    """
    from ..studies.trained import evaluate as measure
    from .report import report

    where = folder / f"evaluated-{data.stem}" if out is None else out
    notices = measure(folder, data.resolve(), where, own_study(study))
    report(where)
    for notice in notices:
        print(f"Note: {notice}")
