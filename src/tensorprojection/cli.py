"""``tpl``: the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter

from . import __version__
from .cli_spectra import spectra
from .errors import ProjectionError
from .output import make_safe
from .stopping import raising_once
from .studies import cli_cache, cli_data
from .studies.cli_demo import demo
from .studies.cli_evaluate import evaluate
from .studies.cli_export import export
from .studies.cli_predict import predict
from .studies.cli_report import report
from .studies.cli_run import run
from .studies.cli_summary import summary
from .studies.cli_watch import watch
from .studies.errors import StudyError

app = App(
    name="tpl",
    help="The TensorProjection layer: the paper's studies, your data's spectra, and its speed.",
    version=__version__,
)
app.command(run)
app.command(demo)
app.command(watch)
app.command(report)
app.command(export)
app.command(predict)
app.command(evaluate)
app.command(summary)
app.command(cli_data.app)
app.command(cli_cache.app)
app.command(spectra)


@app.command
def bench(
    *,
    rounds: Annotated[int, Parameter(help="How often every contender takes its turn.")] = 15,
    only: Annotated[str, Parameter(help="Only cases whose name contains this.")] = "",
    peers: Annotated[bool, Parameter(help="Measure the peers as well.")] = True,
    out: Annotated[Path, Parameter(help="Where bench.json, bench.md and bench.png go.")] = Path(
        "runs/bench"
    ),
) -> None:
    """Speed side by side with the layer it replaces, its peers and the machine's limit."""
    from .bench.report import run_and_report

    run_and_report(rounds=rounds, only=only, peers=peers, out=out)


def main() -> None:
    """The entry point; a user's mistake gives one line and exit code 2, Ctrl-C one line and 130."""
    make_safe(sys.stdout)
    make_safe(sys.stderr)
    with raising_once():
        try:
            app(exit_on_error=False, print_error=False)
        except (CycloptsError, ProjectionError, StudyError) as error:
            _end(2, str(error))
        except BrokenPipeError:  # whoever reads what is printed has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _end(2, f"Could not read or write {where}{error.strerror or error}.")
        except KeyboardInterrupt as stop:
            _end(getattr(stop, "code", 130), "stopped.")


def _end(code: int, line: str) -> NoReturn:
    print(f"tpl: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(code)
