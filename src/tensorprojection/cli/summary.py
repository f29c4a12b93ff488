"""``tpl summary``: the paper's model tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..studies.errors import StudyError
from .study_command import study_command

if TYPE_CHECKING:
    from ..studies.study import Study
    from .settings import Flags


def flags_of(study: Study[Any] | None) -> Flags:
    from .settings import setting_flags

    printed = Annotated[bool | None, Parameter(help="Print JSON.", negative=())]
    return {**setting_flags(study, ["size"]), "json": printed}


def summary(study: str, /, **given: Any) -> None:
    """The networks of a study, layer by layer, with notes where the paper's tables differ."""
    from rich.console import Console

    from ..studies.registry import find_study
    from ..studies.report.summary import as_json, render, tables
    from .settings import as_settings

    known = find_study(study)
    try:
        made = tables(known, **as_settings(known, given))
    except ValueError as error:
        raise StudyError(str(error)) from None
    if given.get("json"):
        print(as_json(made))
    else:
        Console(highlight=False).print(render(made))


app = study_command("summary", summary, flags_of)
