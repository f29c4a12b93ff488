"""``tpl``: the command line."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from cyclopts import App, CycloptsError

from .. import __version__
from ..errors import ProjectionError
from ..output import make_safe
from ..stopping import raising_once
from ..studies.errors import StudyError
from . import cache as cli_cache
from . import data as cli_data
from . import run as cli_run
from . import summary as cli_summary
from .bench import bench
from .demo import demo
from .evaluate import evaluate
from .export import export
from .predict import predict
from .report import report
from .spectra import spectra
from .watch import watch
from .wording import as_flags

app = App(
    name="tpl",
    help="The TensorProjection layer: the paper's studies, your data's spectra, and its speed.",
    version=__version__,
)
app.command(cli_run.app)
app.command(demo)
app.command(watch)
app.command(report)
app.command(export)
app.command(predict)
app.command(evaluate)
app.command(cli_summary.app)
app.command(cli_data.app)
app.command(cli_cache.app)
app.command(spectra)
app.command(bench)


def main() -> None:
    """The entry point; a user's mistake gives one line and exit code 2, Ctrl-C one line and 130."""
    make_safe(sys.stdout)
    make_safe(sys.stderr)
    _print_warnings()
    with raising_once():
        try:
            app(exit_on_error=False, print_error=False)
        except (CycloptsError, ProjectionError, StudyError) as error:
            _end(2, str(error))
        except BrokenPipeError:  # the reader of the output has closed it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            _end(2, f"Could not read or write {where}{error.strerror or error}.")
        except KeyboardInterrupt as stop:
            _end(getattr(stop, "code", 130), "stopped.")


def _print_warnings() -> None:
    """The package's warnings go to stderr, as errors do."""
    log = logging.getLogger("tensorprojection")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("tpl: %(message)s"))
        log.addHandler(handler)


def _end(code: int, line: str) -> NoReturn:
    print(f"tpl: {' '.join(as_flags(line).split())}", file=sys.stderr)
    sys.exit(code)
