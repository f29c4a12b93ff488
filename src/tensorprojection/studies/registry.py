"""The studies: the paper's by name, and a user's own by its file.

A reference is a name such as ``oct``, or a path such as ``studies/mine.py``, which ends with
``:NAME`` if there is more than one study in the file.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from .chest import CHEST
from .config import RunConfig, checked, read_run
from .errors import NotImportedError, StudyError
from .images import from_reference
from .kvasir import KVASIR
from .oct import OCT
from .study import Source, Study

STUDIES: dict[str, Study[Any]] = {study.name: study for study in (OCT, CHEST, KVASIR)}

_imported: dict[str, Study[Any]] = {}  # a user's own studies of this process, by reference


def find_study(reference: str) -> Study[Any]:
    """Return one of the paper's studies, or an own study that the user has named.

    A reference that was read from a run's folder never runs code: only :func:`import_study` does.
    """
    if reference in STUDIES:
        return STUDIES[reference]
    if (images := from_reference(reference)) is not None:
        return images
    file, _ = split_reference(reference)
    if file is None:
        raise StudyError(
            f"Expected a study of {', '.join(STUDIES)}, images, or a .py file with one, got "
            f"{reference!r}."
        )
    if reference not in _imported:
        raise NotImportedError(
            f"This needs the code of the study {reference}, which is run only if you name its "
            "file. Add --study FILE, with a file that you trust."
        )
    return _imported[reference]


def import_study(reference: str) -> Study[Any]:
    """Return the study of that name or file, and import it if it is a user's own.

    This runs the file's code. It is for what the user has named on the command line, and for the
    processes that such a command starts.

    >>> import_study("oct").title
    'Retinal OCT'
    """
    file, name = split_reference(reference)
    if file is None:
        return find_study(reference)
    reference = f"{file}:{name}" if name else str(file)
    if reference not in _imported:
        _imported[reference] = _study_in(file, name, reference)
    return _imported[reference]


def split_reference(reference: str) -> tuple[Path | None, str]:
    """Return the absolute path of an own study's file, None for other studies; and its name in it.

    >>> split_reference("oct")[0] is None, split_reference("/my/study.py:MINE")[1]
    (True, 'MINE')
    """
    where, _, name = reference.rpartition(":")
    if not where.endswith(".py") or not name.isidentifier():
        where, name = reference, ""
    return (Path(where).resolve() if where.endswith(".py") else None), name


def config_of(
    settings: Mapping[str, Any], file: Path | None = None, own: Study[Any] | None = None
) -> RunConfig:
    """Return the configuration of these settings, which name their study.

    ``own`` is the study that the user has named; it is used if theirs is not one of the paper's.
    Errors name the file.
    """
    reference = settings.get("study")
    try:
        if not isinstance(reference, str):
            raise StudyError(f"Expected the name of a study, got {reference!r}.")
        study = own if own is not None and reference not in STUDIES else find_study(reference)
    except StudyError as error:
        raise error if file is None else type(error)(f"{file}: {error}") from None
    config: RunConfig = checked(study, {**settings, "study": study.reference}, file)
    return config


def read_config(file: Path, own: Study[Any] | None = None) -> RunConfig:
    """Return the configuration that a run wrote; see :func:`config_of`."""
    return config_of(read_run(file.parent)[0], file, own)


def _study_in(file: Path, name: str, reference: str) -> Study[Any]:
    if not file.is_file():
        raise StudyError(f"Expected a file with a Study at {file}, got none.")
    code = file.read_bytes()  # the bytes that are run are those that are hashed
    digest = hashlib.sha256(code).hexdigest()
    module = ModuleType(f"tensorprojection_study_{digest[:12]}")
    module.__file__ = str(file)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # for modules beside it, as for a script
    sys.modules[module.__name__] = module  # dataclasses and pydantic look their module up
    try:
        exec(compile(code, str(file), "exec"), vars(module))
    except (StudyError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        raise StudyError(f"Could not import {file}: {_first_line(error, file)}.") from error
    found = {n: value for n, value in vars(module).items() if isinstance(value, Study)}
    own = {n: value for n, value in found.items() if value not in STUDIES.values()}
    chosen = [found[name]] if name in found else [] if name else list(own.values())
    if len(chosen) != 1:
        what = f"a Study named {name}" if name else "one Study"
        raise StudyError(
            f"Expected {what} in {file}, got {', '.join(found if name else own) or 'none'}. Name "
            f"one of them: {file}:NAME."
        )
    return replace(chosen[0], source=Source(reference, digest))


def _first_line(error: BaseException, file: Path) -> str:
    """Return the error, with the line of the user's own file that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    place = f" in line {lines[-1]}" if lines else ""
    first = (str(error).splitlines() or [""])[0].rstrip(".")
    return f"{type(error).__name__}{place}{': ' if first else ''}{first}"
