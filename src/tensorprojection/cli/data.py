"""``tpl data``: getting a study's images, and checking them; ``tpl cache``: the cached ones."""

from __future__ import annotations

import sys
from pathlib import Path

from cyclopts import App

from ..studies.data.splits import SplitRule
from ..studies.errors import StudyError
from .terminal import inert, table

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
        print(kagglehub.dataset_download(handle, **where))
    # kagglehub passes on whatever its HTTP, its unpacking and its settings' files raise.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise StudyError(
            f"Could not download the {images.name} images: {reason}. {LOG_IN}. Or download "
            f"them from https://www.kaggle.com/datasets/{handle} with a browser, unpack them, and "
            "check them with: tpl data check FOLDER"
        ) from error


@app.command
def check(
    path: Path,
    /,
    *,
    study: str | None = None,
    patients: Path | None = None,
    patient_pattern: str | None = None,
    split: SplitRule = "image",
) -> None:
    r"""Check images: counts by class, sizes, corrupted files, duplicates, patients in two parts.

    The rules are those of a run. The exit status is 1 if there is a problem.

    Args:
        path: A folder or an .npz file.
        study: The study they are for. Default: by their layout.
        patients: A CSV file with the columns file and patient.
        patient_pattern: A regular expression for the patient in a file's name: 'P(\d+)_'.
        split: The split whose training and validation images are counted (trial 1).
    """
    from rich.console import Console

    from ..studies.data.check import check as look
    from ..studies.registry import STUDIES, import_study
    from ..studies.training.seeds import split_seed
    from .progress import counting

    if study is None:
        kinds = [known.images for known in STUDIES.values()]
    else:
        kinds = [import_study(study).for_data({"data": str(path)}, None).images]
    with counting(Console(stderr=True)) as progress:
        report = look(
            path,
            kinds,
            how=split,
            seed=split_seed(0, 0),
            patients=patients,
            patient_pattern=patient_pattern,
            progress=progress,
        )
    cells = [[name, *(f"{n:,}" for n in row)] for name, *row in report.counts.iter_rows()]
    lines = [*report.notes, *(f"Problem: {line}" for line in report.problems)]
    lines += [] if report.problems else ["No problem found."]
    print(inert(report.title))
    Console().print(table(report.counts.columns, cells))
    print(inert("\n".join(lines)))  # not by rich, which would break a file's name
    if report.problems:
        sys.exit(1)


def cache(*, clear: bool = False) -> None:
    """Print how much images, copies and features are cached, and where.

    Args:
        clear: Remove them; they are made again when they are needed.
    """
    from ..studies.data.cache import cache_folder, entries
    from ..studies.data.cache import clear as remove

    found = entries()
    print(f"{cache_folder()}: {len(found)} folders, {sum(found.values()) / 1e9:.2f} GB")
    if clear:
        left = remove()
        print(f"{len(found) - len(left)} folders removed.")
        for path in left:
            print(f"tpl: left {path.name}: it is being made", file=sys.stderr)
        if left:
            sys.exit(1)
