"""``tpl bench``: the layer's speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def bench(
    *,
    rounds: Annotated[int, Parameter(help="How many times to measure each contender.")] = 15,
    only: Annotated[str, Parameter(help="Only cases whose name contains this.")] = "",
    peers: Annotated[bool, Parameter(help="Measure other libraries' layers as well.")] = True,
    out: Annotated[Path, Parameter(help="Where bench.json, bench.md and bench.png go.")] = Path(
        "runs/bench"
    ),
) -> None:
    """Speed side by side with the layer it replaces, its peers and the machine's limit."""
    from ..bench.report import run_and_report

    run_and_report(rounds=rounds, only=only, peers=peers, out=out)
