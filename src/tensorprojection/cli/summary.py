"""``tpl summary``: the paper's model tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from ..studies.errors import StudyError

if TYPE_CHECKING:
    from ..studies.study import Study

# Its flags depend on the study, so it parses what follows by itself.
app = App(
    name="summary",
    help="The networks of a study, layer by layer, with where the paper's tables differ.",
    help_flags=(),
    version_flags=(),
)


@app.default
def _parse(*tokens: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> None:
    from .settings import parse, refuse_others, study_in

    study = study_in(tokens)
    refuse_others(study, tokens)
    parse(with_flags(study), tokens)


def with_flags(study: Study[Any] | None) -> App:
    """The command with the flags of a study; without one, of all of the paper's."""
    from ..studies.registry import STUDIES
    from .settings import command_of, setting_flags

    flags = setting_flags(study, ["size"])
    flags["json"] = Annotated[bool | None, Parameter(help="Print JSON.", negative=())]
    which = f"Whose networks: {', '.join(STUDIES)}, a .py file, or package.module:NAME."
    return command_of("summary", summary, flags, which)


def summary(study: str, /, **given: Any) -> None:
    """The networks of a study, layer by layer, with where the paper's tables differ."""
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
