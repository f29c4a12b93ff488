"""The studies: the paper's by name, and a user's own by file or module."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from .chest import CHEST
from .config import RunConfig, checked, read_toml
from .data.kinds import ImageKind
from .errors import StudyError
from .kvasir import KVASIR
from .oct import OCT
from .reference import Reference, parse_reference
from .study import Study

STUDIES: dict[str, Study[Any]] = {study.name: study for study in (OCT, CHEST, KVASIR)}
KINDS: tuple[ImageKind, ...] = tuple(study.images for study in STUDIES.values())


def find_study(reference: str) -> Study[Any]:
    """The study of that name, or of that file or module; see reference.py."""
    if reference in STUDIES:
        return STUDIES[reference]
    where = parse_reference(reference)
    if where is None:
        raise StudyError(
            f"Expected a study of {', '.join(STUDIES)}, a .py file with one, or "
            f"package.module:NAME, got {reference!r}."
        )
    return _own(str(where))


def config_of(settings: Mapping[str, Any], file: Path | None = None) -> RunConfig:
    """The configuration of these settings, which name their study and which that file holds."""
    reference = settings.get("study")
    if not isinstance(reference, str):
        raise StudyError(f"Expected the name of a study{_in(file)}, got {reference!r}.")
    try:
        study = find_study(reference)
    except StudyError as error:
        raise error if file is None else StudyError(f"{file}: {error}") from None
    config: RunConfig = checked(study, {**settings, "study": study.reference}, file)
    return config


def read_config(file: Path) -> RunConfig:
    """The configuration that a run wrote."""
    return config_of(read_toml(file), file)


def _in(file: Path | None) -> str:
    return "" if file is None else f" in {file}"


@cache
def _own(reference: str) -> Study[Any]:
    where = parse_reference(reference)
    assert where is not None
    module = _load(where)
    found = {n: value for n, value in vars(module).items() if isinstance(value, Study)}
    if where.name is not None:
        if where.name not in found:
            raise StudyError(
                f"Expected a Study named {where.name} in {where}, got {_listed(found)}."
            )
        return replace(found[where.name], reference=reference)
    own = {n: value for n, value in found.items() if value not in STUDIES.values()}
    if len(own) != 1:
        raise StudyError(
            f"Expected one Study in {where}, got {_listed(own)}. Name one: {where}:NAME."
        )
    return replace(next(iter(own.values())), reference=reference)


def _listed(found: Mapping[str, Any]) -> str:
    return ", ".join(found) or "none"


def _load(where: Reference) -> ModuleType:
    """The module, imported; an error in it is reported with its line."""
    try:
        if where.file is None:
            assert where.module is not None
            if str(Path.cwd()) not in sys.path:
                sys.path.append(str(Path.cwd()))
            return importlib.import_module(where.module)
        return _load_file(where.file)
    except (StudyError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise StudyError(f"Could not import {where}: {_told(error, where)}.") from error


def _load_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise StudyError(f"Expected a file with a Study at {file}, got none.")
    name = f"tensorprojection_study_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # for what lies beside it, as for a script
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _told(error: Exception, where: Reference) -> str:
    """The error, with the line of the user's own file that it comes from."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if where.file is not None and trace.tb_frame.f_code.co_filename == str(where.file):
            line = trace.tb_lineno
        trace = trace.tb_next
    first = (str(error).splitlines() or [""])[0].rstrip(".")
    place = "" if line is None else f" in line {line}"
    return f"{type(error).__name__}{place}{': ' if first else ''}{first}"
