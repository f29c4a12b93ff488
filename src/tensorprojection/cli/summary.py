"""``tpl summary``: the paper's model tables."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from ..studies.config import StudyName


def summary(
    study: Annotated[StudyName, Parameter(help="Whose networks.")],
    /,
    *,
    json: Annotated[bool, Parameter(help="Print JSON.", negative=())] = False,
    size: Annotated[
        int | None, Parameter(help="Side of the images: the paper's 96, 160 or 128 by default.")
    ] = None,
    channels: Annotated[
        int | None, Parameter(help="Channels of the U-Net's first convolution (kvasir): 16, or 64.")
    ] = None,
    backbone: Annotated[
        Literal["densenet121", "efficientnet-lite0"] | None,
        Parameter(help="The frozen network before the head (chest): densenet121 by default."),
    ] = None,
) -> None:
    """The networks of a study, layer by layer, with where the paper's tables differ."""
    from rich.console import Console

    from ..studies.errors import StudyError
    from ..studies.report.summary import as_json, render, tables

    try:
        made = tables(study, size=size, channels=channels, backbone=backbone)
    except ValueError as error:
        raise StudyError(str(error)) from None
    if json:
        print(as_json(made))
    else:
        Console(highlight=False).print(render(made))
