"""The studies: the paper's by name, and a user's own by file or module."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from .chest import CHEST
from .config import RunConfig, checked, read_run
from .data.images import ImageKind
from .errors import NotImportedError, StudyError
from .images import from_reference
from .kvasir import KVASIR
from .oct import OCT
from .reference import Reference, parse_reference
from .study import Source, Study

STUDIES: dict[str, Study[Any]] = {study.name: study for study in (OCT, CHEST, KVASIR)}
KINDS: tuple[ImageKind, ...] = tuple(study.images for study in STUDIES.values())


# A user's own studies that this process has imported, by reference.
_imported: dict[str, Study[Any]] = {}


def find_study(reference: str) -> Study[Any]:
    """Return one of the paper's studies, or an own study that the user has named.

    A reference that was read from a run's folder never runs code: only :func:`import_study` does.
    """
    if reference in STUDIES:
        return STUDIES[reference]
    if (images := from_reference(reference)) is not None:
        return images
    where = parse_reference(reference)
    if where is None:
        raise StudyError(
            f"Expected a study of {', '.join(STUDIES)}, images, a .py file with one, or "
            f"package.module:NAME, got {reference!r}."
        )
    if str(where) not in _imported:
        raise NotImportedError(
            f"This needs the code of the study {where}, which is run only if you name its file."
        )
    return _imported[str(where)]


def import_study(reference: str) -> Study[Any]:
    """Return the study of that name, file or module, and import it if it is a user's own.

    This runs the file's code. It is for what the user has named on the command line, and for the
    processes that such a command starts.

    >>> import_study("oct").title
    'Retinal OCT'
    """
    where = None if reference in STUDIES else parse_reference(reference)
    if where is not None and str(where) not in _imported:
        _imported[str(where)] = _study_in(where)
    return find_study(reference)


def config_of(
    settings: Mapping[str, Any], file: Path | None = None, own: Study[Any] | None = None
) -> RunConfig:
    """Return the configuration of these settings.

    Args:
        settings: they name their study.
        file: that holds them, for errors.
        own: the study that the user has named. It is used if theirs is not one of the paper's.
    """
    reference = settings.get("study")
    if not isinstance(reference, str):
        raise StudyError(f"Expected the name of a study{_in(file)}, got {reference!r}.")
    try:
        study = own if own is not None and reference not in STUDIES else find_study(reference)
    except StudyError as error:
        raise error if file is None else type(error)(f"{file}: {error}") from None
    config: RunConfig = checked(study, {**settings, "study": study.reference}, file)
    return config


def read_config(file: Path, own: Study[Any] | None = None) -> RunConfig:
    """Return the configuration that a run wrote; see :func:`config_of`."""
    return config_of(read_run(file.parent)[0], file, own)


def _in(file: Path | None) -> str:
    return "" if file is None else f" in {file}"


def _study_in(where: Reference) -> Study[Any]:
    try:
        module, code = _import(where)
    except (StudyError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        raise StudyError(f"Could not import {where}: {_first_line(error, where)}.") from error
    found = {name: value for name, value in vars(module).items() if isinstance(value, Study)}
    if where.name is not None:
        if where.name not in found:
            listed = ", ".join(found) or "none"
            raise StudyError(f"Expected a Study named {where.name} in {where}, got {listed}.")
        study = found[where.name]
    else:
        own = {n: value for n, value in found.items() if value not in STUDIES.values()}
        if len(own) != 1:
            listed = ", ".join(own) or "none"
            raise StudyError(
                f"Expected one Study in {where}, got {listed}. Name one: {where}:NAME."
            )
        (study,) = own.values()
    return replace(study, source=Source(str(where), hashlib.sha256(code).hexdigest()))


def _import(where: Reference) -> tuple[ModuleType, bytes]:
    """Return the module, imported, and its code."""
    if where.file is None:
        assert where.module is not None
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        module = importlib.import_module(where.module)
        return module, Path(module.__file__).read_bytes() if module.__file__ else b""
    if not where.file.is_file():
        raise StudyError(f"Expected a file with a Study at {where.file}, got none.")
    # The bytes that are run are those that are hashed.
    code = where.file.read_bytes()
    module = ModuleType(f"tensorprojection_study_{hashlib.sha256(code).hexdigest()[:12]}")
    module.__file__ = str(where.file)
    if str(where.file.parent) not in sys.path:
        sys.path.append(str(where.file.parent))  # for what lies beside it, as for a script
    sys.modules[module.__name__] = module  # dataclasses and pydantic look their module up
    exec(compile(code, str(where.file), "exec"), vars(module))
    return module, code


def _first_line(error: BaseException, where: Reference) -> str:
    """Return the error, with the line of the user's own file that it comes from."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if where.file is not None and trace.tb_frame.f_code.co_filename == str(where.file):
            line = trace.tb_lineno
        trace = trace.tb_next
    first = (str(error).splitlines() or [""])[0].rstrip(".")
    place = "" if line is None else f" in line {line}"
    return f"{type(error).__name__}{place}{': ' if first else ''}{first}"
