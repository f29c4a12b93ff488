"""``tpl cache``: what the studies keep on disk, and removing it."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

app = App(name="cache", help="What the studies keep on disk: list it, clear it.")


@app.command(name="list")
def list_() -> None:
    """Show each folder of the cache: what it is and was made from, its size, when it was used."""
    from rich.console import Console

    from ..studies.data.entries import entries, render

    Console().print(render(entries()))


@app.command
def clear(
    *,
    study: Annotated[str | None, Parameter(help="Only what this study made.")] = None,
    older_than: Annotated[
        float | None, Parameter(help="Only what was not used for this many days.")
    ] = None,
) -> None:
    """Remove what is kept, all or a part; it is made again when it is needed.

    What a run is using is kept, with a message. The exit status is 1 where something could not be
    removed.
    """
    from ..studies.data.entries import chosen, clear, entries, gigabytes
    from ..studies.registry import find_study

    if study is not None:
        study = find_study(study).name
    removed, kept = clear(chosen(entries(), study, older_than))
    for entry in removed:
        print(f"removed {entry.name} ({gigabytes(entry.bytes)})")
    for entry, why in kept:
        print(f"tpl: kept {entry.name}: {why}", file=sys.stderr)
    total = gigabytes(sum(entry.bytes for entry in removed))
    print(f"{len(removed)} folders removed, {total} freed; {len(kept)} kept.")
    if kept:
        sys.exit(1)
