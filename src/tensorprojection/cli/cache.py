"""``tpl cache``: the studies' images, copies and features on disk: list them, clear them."""

from __future__ import annotations

import sys
import time

from cyclopts import App

from .terminal import table

app = App(name="cache", help="List and clear the studies' images, copies and features on disk.")


@app.command(name="list")
def list_() -> None:
    """Show each folder of the cache: what it is and was made from, its size, when it was used."""
    from rich.console import Console
    from rich.text import Text

    from ..studies.data.cache import DAY, cache_folder, entries

    found, console = entries(), Console()
    console.print(Text(f"{cache_folder()}: {_size(sum(entry.bytes for entry in found))}"))
    rows = []
    for e in found:
        days = f"{max(0.0, time.time() - e.used) / DAY:.1f}"
        names = (e.path.name, e.kind, e.study or "–", e.source or "–")
        rows.append((*names, _size(e.bytes), days))
    if found:
        names = ("folder", "kind", "study", "made from")
        console.print(table((*names, "size", "days unused"), rows, texts=4))


@app.command
def clear(
    *,
    study: str | None = None,
    older_than: float | None = None,
) -> None:
    """Remove folders of the cache, all or some; they are made again when they are needed.

    The exit status is 1 if a folder could not be removed.

    Args:
        study: Only folders that this study made.
        older_than: Only folders that were not used for this many days.
    """
    from ..studies.data.cache import clear
    from ..studies.registry import import_study

    name = None if study is None else import_study(study).name
    removed, left = clear(name, older_than)
    for entry in removed:
        print(f"removed {entry.path.name} ({_size(entry.bytes)})")
    for entry, why in left:
        print(f"tpl: left {entry.path.name}: {why}", file=sys.stderr)
    total = _size(sum(entry.bytes for entry in removed))
    print(f"{len(removed)} folders removed, {total} freed; {len(left)} left.")
    if left:
        sys.exit(1)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
