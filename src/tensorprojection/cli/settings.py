"""Flags that several commands have, and those of a study's settings, which its model declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Group, Parameter, Token

from ..studies.config import RunConfig, absolute

if TYPE_CHECKING:
    from ..studies.study import Study

WHAT = Group("What is run", sort_key=0)
HOW = Group("How it is run", sort_key=1)
OF_HOW = ("threads", "device", "precision", "skip_unreadable")

StudyName = Annotated[
    str,
    Parameter(name="STUDY", help="The study: oct, chest, kvasir, images, or a .py file with one."),
]
OwnStudy = Annotated[
    str | None,
    Parameter(help="The .py file of the run's own study. Its code is run, so it must be yours."),
]
TrialNumber = Annotated[
    int | Literal["best"],
    Parameter(help='Its number, from 1; "best" has the lowest validation loss.'),
]


def own_study(given: str | None) -> Study[Any] | None:
    """Return the study that the user names, imported."""
    from ..studies.registry import import_study

    return None if given is None else import_study(given)


def _split(kind: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    parts = (part.strip() for token in tokens for part in token.value.split(","))
    return tuple(part for part in parts if part)


Names = Annotated[tuple[str, ...], Parameter(converter=_split, n_tokens=1, negative=())]


def study_command(
    function: Callable[..., None],
    tokens: Sequence[str],
    of: Callable[[Study[Any], str], bool] = lambda study, name: True,
) -> App:
    """Return the command of a function of a study: its flags, and those of the study's settings.

    Of another command its help is enough, and no study is imported for it. The settings of an own
    study are flags if its file comes first; otherwise they are those of all of this package's.

    Args:
        function: takes the study's name, its own flags, and the settings that are given.
        tokens: the command line.
        of: returns True if a setting of a study has a flag.
    """
    app = App(
        name=function.__name__,
        help=function.__doc__,
        version_flags=(),
        group_parameters=HOW,
        default_parameter=Parameter(negative=()),
    )
    if tokens[:1] != [function.__name__]:
        return app
    from ..studies.registry import STUDIES, import_study

    named = [token for token in tokens[1:2] if not token.startswith("-")]
    signature = inspect.signature(function, eval_str=True)
    own = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
    flags: dict[str, inspect.Parameter] = {}
    for study in map(import_study, named or [*STUDIES, "images"]):
        for name, field in study.settings.model_fields.items():
            shared = HOW if name in OF_HOW else WHAT
            group = shared if name in RunConfig.model_fields else Group(f"{study.title} study")
            kind = Names if field.annotation == tuple[str, ...] else field.annotation
            about = Parameter(group=group, help=field.description or "")
            if name not in {**own, **flags} and of(study, name):
                flags[name] = inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=None,
                    annotation=Annotated[kind | None, about],
                )

    def command(*positional: Any, **named: Any) -> None:
        function(*positional, **named)

    command.__doc__ = function.__doc__
    parameters = [*own.values(), *flags.values()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.default(command)
    return app


def given_settings(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the user has given, with paths made absolute."""
    return absolute({n: value for n, value in flags.items() if value is not None}, Path.cwd())
