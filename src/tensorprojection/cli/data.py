"""``tpl data``: getting a study's images, and checking them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ..studies.data.splits import SplitRule
from ..studies.errors import StudyError
from .terminal import table

if TYPE_CHECKING:
    from ..studies.data.check import Report

app = App(name="data", help="Download and check the studies' images.")

LOG_IN = (
    "Kaggle needs a login: put an API token from https://www.kaggle.com/settings into "
    "KAGGLE_API_TOKEN or ~/.kaggle/access_token, and accept the data set's terms on its page"
)


@app.command
def get(study: str, /, *, out: Path | None = None) -> None:
    """Download a study's images from Kaggle, and print where they are.

    Args:
        study: Which study's images.
        out: A folder for them. Default: kagglehub's cache.
    """
    from ..studies.registry import import_study

    images = import_study(study).images
    handle = images.kaggle
    if handle is None:
        raise StudyError(f"The {images.name} study names no data set on Kaggle.")
    import kagglehub

    try:
        where = {} if out is None else {"output_dir": str(out)}
        if images.kaggle_note:
            print(f"tpl: {images.kaggle_note}", file=sys.stderr)
        print(kagglehub.dataset_download(handle, **where))
    # kagglehub passes on whatever its HTTP, its unpacking and its settings' files raise.
    except Exception as error:
        raise StudyError(
            f"Could not download the {images.name} images: {_reason(error)}. {LOG_IN}. Or download "
            f"them from https://www.kaggle.com/datasets/{handle} with a browser, unpack them, and "
            "check them with: tpl data check FOLDER"
        ) from error


def _reason(error: Exception) -> str:
    """Return the first line of an error, or its class if it has no text."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


@app.command
def check(
    path: Path,
    /,
    *,
    study: str | None = None,
    patients: Path | None = None,
    patient_pattern: str | None = None,
    split: SplitRule = "image",
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    r"""Check images: counts by class, sizes, corrupted files, duplicates, patients in two parts.

    The rules are those of a run. The exit status is 1 if there is a problem.

    Args:
        path: A folder or an .npz file.
        study: The study they are for. Default: by their layout.
        patients: A CSV file with the columns file and patient.
        patient_pattern: A regular expression for the patient in a file's name: 'P(\d+)_'.
        split: The split whose training and validation images are counted (trial 1).
        as_json: Print the whole report as JSON.
    """
    from rich.console import Console

    from ..studies.data.check import check as look
    from ..studies.data.sources import Patients
    from ..studies.registry import KINDS, import_study
    from ..studies.training.seeds import split_seed
    from .progress import counting

    kinds = KINDS
    if study is not None:
        kinds = (import_study(study).for_data({"data": str(path)}, None).images,)
    rule = Patients(patients, patient_pattern)
    with counting(Console(stderr=True)) as progress:
        report = look(
            path, kinds, patients=rule, how=split, seed=split_seed(0, 0), progress=progress
        )
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        _show(report)
    if not report.ok:
        sys.exit(1)


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.text import Text

    from ..studies.data.check import PART_ORDER

    found = {part for counts in report.classes.values() for part in counts}
    parts = [part for part in PART_ORDER if part in found and len(found) > 1]
    sets = ("training", "validation") if report.sets else ()
    rows = {
        name: [counts.get(part, 0) for part in parts]
        + [report.sets[name].get(one, 0) for one in sets]
        + [sum(counts.values())]
        for name, counts in report.classes.items()
    }
    if len(rows) > 1:
        rows["total"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    lines = [
        (name, *(f"{n:,}" for n in counts), f"{100 * counts[-1] / max(1, report.images):.2f}")
        for name, counts in rows.items()
    ]
    shown = table(("class", *parts, *sets, "images", "%"), lines)
    known = "" if report.patients is None else f", {report.patients} patients"
    first = f"{report.path}: {report.study}, {report.images} images{known}"
    if sets:
        first += f"; training and validation: split {report.split}"
    Console().print(Text(first), shown, Text("\n".join(report.lines())), sep="\n")
