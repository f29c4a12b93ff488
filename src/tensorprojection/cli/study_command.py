"""A command whose flags depend on the study that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

if TYPE_CHECKING:
    from ..studies.study import Study
    from .settings import Flags


def study_command(
    name: str, carry_out: Callable[..., Any], flags: Callable[[Study[Any] | None], Flags]
) -> App:
    """``tpl NAME STUDY``, with ``flags(study)``; it parses what follows its name by itself.

    The studies are imported only when it is called: they take long.
    """
    summary = (carry_out.__doc__ or "").partition("\n")[0]
    app = App(name=name, help=summary, help_flags=(), version_flags=())

    @app.default
    def parse_tokens(
        *tokens: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
    ) -> None:
        from .settings import command_of, parse, refuse_others, study_in

        study = study_in(tokens)
        refuse_others(study, tokens)
        parse(command_of(name, carry_out, flags(study)), tokens)

    return app
