"""Flags of the command line from a study's settings, so that each is declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from ..studies.config import RunConfig, absolute, own_settings
from ..studies.errors import StudyError
from ..studies.registry import STUDIES, find_study
from ..studies.study import Study

WHAT = Group("What is run", sort_key=0)
HOW = Group("How it is run", sort_key=1)
# The settings that say how a run is carried out, not what is trained.
OF_HOW = ("threads", "device", "precision", "skip_unreadable")


def study_in(tokens: Iterable[str]) -> Study[Any] | None:
    """The study that a command line names, at any position; None where it names none."""
    tokens = list(tokens)
    if tokens and not tokens[0].startswith("-"):
        return find_study(tokens[0])
    for token in tokens:
        if token in STUDIES or token.rpartition(":")[0].endswith(".py") or token.endswith(".py"):
            return find_study(token)
    return None


def setting_flags(study: Study[Any] | None, names: Iterable[str] | None = None) -> Flags:
    """A flag for each setting of the study; without one, of all of the paper's.

    Args:
        study: whose.
        names: which of the settings that all studies share; default all.
    """
    shared = RunConfig.model_fields
    chosen = [name for name in shared if name != "study"] if names is None else list(names)
    flags = {name: _of_field(shared[name], HOW if name in OF_HOW else WHAT) for name in chosen}
    for known in STUDIES.values() if study is None else (study,):
        group = Group(f"{known.name.capitalize()} study")
        for name, field in own_settings(known.settings).items():
            flags[name] = _of_field(field, group)
    return flags


def choice_flags(study: Study[Any] | None) -> Flags:
    """A flag for each shortcut for `models`."""
    return {
        choice.name: flag(
            Literal[tuple(choice.models)],
            Group(f"{known.name.capitalize()} study"),
            choice.description,
        )
        for known in (STUDIES.values() if study is None else (study,))
        for choice in known.choices
    }


Flags = dict[str, Any]  # names and annotated types


def refuse_others(study: Study[Any] | None, tokens: Iterable[str]) -> None:
    """An error that says so where a flag belongs to another of the paper's studies."""
    if study is None:
        return
    others = setting_flags(None, []) | choice_flags(None)
    own = study.settings.model_fields.keys() | {choice.name for choice in study.choices}
    for token in tokens:
        name = token.partition("=")[0].removeprefix("--").replace("-", "_")
        if token.startswith("--") and name in others.keys() - own:
            raise StudyError(f"`{name}` is not a setting of the {study.name} study.")


def flag(kind: Any, group: Group, text: str) -> Any:
    """A flag of this type, None where it is not given, with its help text."""
    negative: dict[str, Any] = {"negative": ()} if kind is bool else {}
    return Annotated[kind | None, Parameter(group=group, help=text, **negative)]


def _of_field(field: Any, group: Group) -> Any:
    # Lists are given with commas.
    kind = str if field.annotation == tuple[str, ...] else field.annotation
    return flag(kind, group, field.description)


def as_settings(study: Study[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings among what was given, as a configuration takes them, with absolute paths."""
    fields = study.settings.model_fields
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in fields or value is None:
            continue
        if fields[name].annotation == tuple[str, ...]:
            value = names_in(value)
        found[name] = absolute(study.settings, name, value, Path.cwd())
    return found


def names_in(text: str) -> tuple[str, ...]:
    """The names of a list with commas.

    >>> names_in("base, tpl1,")
    ('base', 'tpl1')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


def command_of(name: str, carry_out: Callable[..., Any], flags: Flags) -> App:
    """A command with these flags, which calls ``carry_out(study, **given)``."""

    def command(study: str, /, **given: Any) -> Any:
        return carry_out(study, **given)

    P = inspect.Parameter
    which = f"The study: {', '.join(STUDIES)}, a .py file with one, or package.module:NAME."
    parameters = [
        P("study", P.POSITIONAL_ONLY, annotation=Annotated[str, Parameter(help=which)]),
        *(P(flag, P.KEYWORD_ONLY, default=None, annotation=kind) for flag, kind in flags.items()),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = carry_out.__doc__
    app = App(name=f"tpl {name}", version_flags=(), result_action="return_value")
    app.default(command)
    return app


def parse(command: App, tokens: Iterable[str]) -> Any:
    """Parse the tokens by the command's flags, and call it."""
    return command(list(tokens), exit_on_error=False, print_error=False)
