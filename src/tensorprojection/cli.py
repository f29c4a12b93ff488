"""``tpl``: the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from . import __version__

app = App(
    name="tpl",
    help="The TensorProjection layer: its speed, and the paper's studies.",
    version=__version__,
)


@app.command
def bench(
    *,
    rounds: Annotated[int, Parameter(help="How often every contender takes its turn.")] = 15,
    only: Annotated[str, Parameter(help="Only cases whose name contains this.")] = "",
    peers: Annotated[bool, Parameter(help="Measure the peers as well.")] = True,
    out: Annotated[Path, Parameter(help="Where bench.json and bench.png go.")] = Path("runs/bench"),
) -> None:
    """Speed side by side with the layer it replaces, its peers and the machine's limit."""
    from .bench.report import run_and_report

    run_and_report(rounds=rounds, only=only, peers=peers, out=out)


def main() -> None:
    """The entry point; a user's mistake gives one line, and exit code 2."""
    from .errors import ProjectionError

    try:
        app(exit_on_error=True)
    except ProjectionError as error:
        print(f"tpl: {error}", file=sys.stderr)
        sys.exit(2)
