"""``tpl``: the command line."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError

from .. import __version__
from ..errors import ProjectionError
from ..studies.errors import StudyError
from . import data, run, summary
from .bench import bench
from .demo import demo
from .report import report
from .settings import study_command
from .terminal import PLAIN, inert, raising_once
from .trained import evaluate, export, predict
from .watch import watch


def command_line(tokens: Sequence[str]) -> App:
    """Return all commands, with the flags that this command line can have."""
    app = App(
        name="tpl",
        help="The TensorProjection layer: its speed, the paper's studies, and your own images.",
        version=__version__,
    )
    app.command(study_command(run.run, tokens))
    for command in (demo, watch, report, export, predict, evaluate):
        app.command(command)
    app.command(study_command(summary.summary, tokens, summary.of_networks))
    app.command(data.app)
    app.command(data.cache)
    app.command(bench)
    return app


def main() -> None:
    """Run ``tpl``; a user's mistake gives one line and exit code 2, Ctrl-C one line and 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=PLAIN)
    _print_warnings()
    tokens = sys.argv[1:]
    with raising_once():
        try:
            command_line(tokens)(tokens, exit_on_error=False, print_error=False)
            sys.stdout.flush()
        except (CycloptsError, ProjectionError, StudyError) as error:
            _end(2, str(error))
        except BrokenPipeError:  # the reader of the output has closed it
            _drop_output()
            sys.exit(1)
        except OSError as error:
            where = error.filename or "the standard output"
            _end(2, f"Could not read or write {where}: {error.strerror or error}.")
        except KeyboardInterrupt as stop:
            _end(getattr(stop, "code", 130), "stopped.")


def _print_warnings() -> None:
    """Print the package's warnings to stderr, as errors are."""
    log = logging.getLogger("tensorprojection")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("tpl: %(message)s"))
        log.addHandler(handler)


def _drop_output() -> None:
    """Discard what could not be written, which Python would write once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(code: int, line: str) -> NoReturn:
    try:
        sys.stdout.flush()
    except OSError:  # such as a full disk
        _drop_output()
    print(inert(f"tpl: {' '.join(line.split())}"), file=sys.stderr)
    sys.exit(code)
