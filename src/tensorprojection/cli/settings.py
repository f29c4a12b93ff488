"""Flags that several commands have, and those of a study's settings, each declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from ..studies.config import RunConfig, absolute, own_settings
from ..studies.errors import StudyError

if TYPE_CHECKING:
    from ..studies.study import Study

Flags = dict[str, Any]  # names and annotated types

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


def names_in(text: str | None) -> tuple[str, ...] | None:
    """Return the names of a list with commas; None if there is no list.

    >>> names_in("base, tpl1,")
    ('base', 'tpl1')
    """
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def setting_flags(study: Study[Any] | None) -> Flags:
    """Return a flag for each setting of the study; without one, of all of the paper's."""
    from ..studies.registry import STUDIES

    shared = RunConfig.model_fields
    fields = {n: (shared[n], HOW if n in OF_HOW else WHAT) for n in shared if n != "study"}
    for known in STUDIES.values() if study is None else (study,):
        group = Group(f"{known.name.capitalize()} study")
        fields |= {name: (field, group) for name, field in own_settings(known.settings).items()}
    flags = {}
    for name, (field, group) in fields.items():
        # Lists are given with commas.
        kind = str if field.annotation == tuple[str, ...] else field.annotation
        about = Parameter(group=group, help=field.description or "")
        flags[name] = Annotated[kind | None, about]  # type: ignore[operator]
    return flags


def as_settings(study: Study[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the given flags, as a configuration takes them."""
    fields = study.settings.model_fields
    found = {name: value for name, value in given.items() if value is not None}
    for name in found:
        if name not in fields:
            flag = name.replace("_", "-")
            raise StudyError(f"--{flag} is not a setting of the {study.name} study.")
    for name, value in found.items():
        if fields[name].annotation == tuple[str, ...]:
            found[name] = names_in(value)
    return absolute(found, Path.cwd())


def study_command(
    function: Callable[..., None],
    tokens: Sequence[str],
    of: Callable[[Study[Any] | None, str], bool] = lambda study, name: True,
) -> App:
    """Return the command of a function of a study: its flags, and those of the study's settings.

    Of another command its help is enough, and no study is imported for it.

    Args:
        function: takes the study's name, its own flags, and the settings that are given.
        tokens: the command line, whose study has the settings.
        of: which settings of a study have a flag.
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
    study, P = _study_in(tokens[1:]), inspect.Parameter
    own = dict(inspect.signature(function, eval_str=True).parameters)
    given = next(name for name, p in own.items() if p.kind is P.VAR_KEYWORD)
    del own[given]
    flags = {name: kind for name, kind in setting_flags(study).items() if of(study, name)}
    parameters = [
        *own.values(),
        *(
            P(name, P.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in flags.items()
            if name not in own
        ),
    ]

    def command(*positional: Any, **named: Any) -> None:
        function(*positional, **named)

    command.__doc__ = function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.default(command)
    return app


def _study_in(tokens: Sequence[str]) -> Study[Any] | None:
    """Return the study that a command line names, at any position; None if it names none."""
    from ..studies.registry import STUDIES, import_study, split_reference

    if tokens and not tokens[0].startswith("-"):
        return import_study(tokens[0])
    named = [
        (k > 0 and tokens[k - 1].startswith("--"), k)  # perhaps the value of an option
        for k, token in enumerate(tokens)
        if token in STUDIES or split_reference(token)[0] is not None
    ]
    return import_study(tokens[min(named)[1]]) if named else None
