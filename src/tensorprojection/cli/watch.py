"""``tpl watch``: follow a run that is under way, here or on a shared disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def watch(
    folder: Annotated[Path, Parameter(help="The folder of a run that is under way.")],
    /,
    *,
    seconds: Annotated[float, Parameter(help="Seconds between two looks at the folder.")] = 5.0,
    once: Annotated[bool, Parameter(negative=(), help="Look once, and end.")] = False,
) -> None:
    """Show how far each network of a run is, until the last has finished.

    It only reads the run's files, so it works on another machine that sees the same disk; it waits
    for a run that has not begun to train. Ctrl-C ends the watching, not the run.
    """
    import time

    from rich.console import Console
    from rich.live import Live

    from ..studies.errors import StudyError
    from ..studies.report.progress_of import look, shown

    if seconds <= 0:
        raise StudyError(f"Expected more than 0 seconds between two looks, got {seconds:g}.")
    console = Console(highlight=False)
    state = look(folder)
    if once or not console.is_terminal:
        console.print(shown(state))
        if once:
            return
    with Live(shown(state), console=console, auto_refresh=False) as live:
        while not state.finished:
            time.sleep(seconds)
            before, state = state, look(folder)
            if console.is_terminal:
                live.update(shown(state), refresh=True)
            elif state != before:
                console.print(shown(state))
