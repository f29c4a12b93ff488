"""Flags that several commands have, and those of a study's settings, each declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from ..studies.config import RunConfig, absolute, own_settings

if TYPE_CHECKING:
    from ..studies.study import Study

Flags = dict[str, Any]  # names and annotated types

WHAT = Group("What is run", sort_key=0)
HOW = Group("How it is run", sort_key=1)
OF_HOW = ("threads", "device", "precision", "skip_unreadable")

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


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas.

    >>> names_in("base, tpl1,")
    ('base', 'tpl1')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


def flag(kind: Any, group: Group, text: str) -> Any:
    """Return the type of a flag, None if it is not given, with its help text."""
    negative: dict[str, Any] = {"negative": ()} if kind is bool else {}
    return Annotated[kind | None, Parameter(group=group, help=text, **negative)]


def setting_flags(study: Study[Any] | None, names: Iterable[str] | None = None) -> Flags:
    """Return a flag for each setting of the study; without one, of all of the paper's.

    ``names`` are those of the settings that all studies share; default all.
    """
    from ..studies.registry import STUDIES

    shared = RunConfig.model_fields
    fields = {n: (shared[n], HOW if n in OF_HOW else WHAT) for n in names or shared if n != "study"}
    for known in STUDIES.values() if study is None else (study,):
        group = Group(f"{known.name.capitalize()} study")
        fields |= {name: (field, group) for name, field in own_settings(known.settings).items()}
    # Lists are given with commas.
    return {
        name: flag(
            str if field.annotation == tuple[str, ...] else field.annotation,
            group,
            field.description or "",
        )
        for name, (field, group) in fields.items()
    }


def as_settings(study: Study[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings among the given flags, as a configuration takes them."""
    fields = study.settings.model_fields
    found = {name: value for name, value in given.items() if name in fields and value is not None}
    for name, value in found.items():
        if fields[name].annotation == tuple[str, ...]:
            found[name] = names_in(value)
    return absolute(found, Path.cwd())


def study_command(
    name: str,
    function: Callable[..., Any],
    flags: Callable[[Study[Any] | None], Flags],
    tokens: Sequence[str],
) -> App:
    """Return ``tpl NAME STUDY``, which calls ``function(study, **given)``.

    Its flags are those of the study in the command line. Of another command its help is enough,
    and no study is imported for it.
    """
    app = App(name=name, help=function.__doc__, version_flags=())
    if tokens[:1] != [name]:
        return app

    def command(study: str, /, **given: Any) -> Any:
        return function(study, **given)

    P = inspect.Parameter
    which = "The study: oct, chest, kvasir, images, or a .py file with one."
    parameters = [
        P("study", P.POSITIONAL_ONLY, annotation=Annotated[str, Parameter(help=which)]),
        *(
            P(flag, P.KEYWORD_ONLY, default=None, annotation=kind)
            for flag, kind in flags(_study_in(tokens[1:])).items()
        ),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.default(command)
    return app


def _study_in(tokens: Sequence[str]) -> Study[Any] | None:
    """Return the study that a command line names, at any position; None if it names none."""
    from ..studies.registry import STUDIES, import_study, split_reference

    for k, token in enumerate(tokens):
        named = token in STUDIES or split_reference(token)[0] is not None
        if named or (k == 0 and not token.startswith("-")):
            return import_study(token)
    return None
