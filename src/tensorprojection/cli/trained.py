"""``tpl export``, ``tpl predict`` and ``tpl evaluate``: the networks that a run has saved."""

from __future__ import annotations

import sys
from pathlib import Path

from .report import report
from .settings import OwnStudy, TrialNumber, own_study
from .terminal import inert, table


def export(
    folder: Path,
    /,
    *,
    model: str,
    to: Path,
    trial: TrialNumber = "best",
    study: OwnStudy = None,
) -> None:
    """Write a network for use without tensorprojection: pixels in, logits out.

    The projections are folded, so there is no decomposition in the file. The preprocessing is part
    of it. Before it is written, it is compared with the original on validation images.

    Args:
        folder: The folder of a run.
        model: Which of its networks.
        to: The file: model.onnx or model.pt2.
    """
    from ..studies.trained import SUFFIXES, check_new, load_network
    from ..studies.trained import export as write

    check_new(to, SUFFIXES)
    trained = load_network(folder, model, trial, own_study(study))
    difference = write(trained, to)
    about = trained.about
    print(
        f"{to}: {about.model} of trial {about.trial}, epoch {about.epoch}; differs from the "
        f"original by {difference:.1e} at most on validation images."
    )


def predict(
    network: Path,
    /,
    *images: Path,
    model: str | None = None,
    trial: TrialNumber = "best",
    csv: Path | None = None,
    out: Path = Path("masks"),
    study: OwnStudy = None,
) -> None:
    """Print classes with probabilities as a table, or write masks as PNG files.

    Images are preprocessed as in training. Files without a prediction are listed, and the exit code
    is 1.

    Args:
        network: An .onnx file of tpl export, or the folder of a run with --model.
        images: Image files, or folders of them.
        model: Which network of the run's folder.
        csv: Also write the classes to this file.
        out: The folder that masks go to.
    """
    from rich.console import Console

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
    if record.masks:
        trained.write_masks(found, out)
        print(f"{len(found)} masks in {out}.")
    elif found:
        rows = [
            (str(p.file), record.class_names[p.best], f"{p.probabilities[p.best]:.4f}")
            for p in found
        ]
        Console(highlight=False).print(table(("file", "class", "probability"), rows, texts=2))
        if csv is not None:
            write_whole(csv, trained.as_csv(record, found).encode())
            print(f"Table: {csv}")
    print(f"By {record.model} of trial {record.trial}, epoch {record.epoch}.")
    for file, why in without:
        print(inert(f"tpl: {file} {why}."), file=sys.stderr)
    if without:
        sys.exit(1)


def evaluate(
    folder: Path,
    /,
    *,
    data: Path,
    out: Path | None = None,
    study: OwnStudy = None,
) -> None:
    """Measure all saved networks on other images, paired by trial: a table and a page.

    Images that are among the run's own are counted: results on them are not held-out results.

    Args:
        folder: The folder of a run.
        data: Images, as tpl run takes them: a folder, .npz, …
        out: The results' folder; evaluated-NAME in the run's folder by default.
    """
    from ..studies.trained import evaluate as measure

    where = folder / f"evaluated-{data.stem}" if out is None else out
    notices = measure(folder, data.resolve(), where, own_study(study))
    report(where)
    for notice in notices:
        print(f"Note: {notice}")
