"""``tpl data``: getting a study's images, and checking them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="data", help="The studies' images: download them, check them.")


@app.command
def get(
    study: Annotated[str, Parameter(help="Which study's images.")],
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="A folder for them. Default: kagglehub's cache.")
    ] = None,
) -> None:
    """Download a study's images from Kaggle, and print where they are."""
    from ..studies.data.kaggle import get as download
    from ..studies.registry import find_study

    print(download(find_study(study).images, out))


@app.command
def check(
    path: Annotated[Path, Parameter(help="A folder, a zip or tar file of one, or an .npz file.")],
    /,
    *,
    study: Annotated[
        str | None, Parameter(help="The study they are for. Default: by their layout.")
    ] = None,
    as_json: Annotated[
        bool, Parameter(name="--json", negative="", help="Print the whole report as JSON.")
    ] = False,
    unpack_limits: Annotated[
        float, Parameter(help="Factor on the limits for what an archive may hold.")
    ] = 1,
) -> None:
    """Check images: counts, sizes, damaged files, duplicates, patients on both sides of a split.

    The rules are those of a run. The exit status is 1 where there is a problem.
    """
    from rich.console import Console

    from ..studies.data.check import check as look
    from ..studies.data.check import render
    from ..studies.registry import KINDS, find_study
    from .progress import counting

    kinds = KINDS if study is None else (find_study(study).images,)
    with counting(Console(stderr=True)) as progress:
        report = look(path, kinds, unpack_limits=unpack_limits, progress=progress)
    if as_json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        Console().print(render(report))
    if not report.ok:
        sys.exit(1)
