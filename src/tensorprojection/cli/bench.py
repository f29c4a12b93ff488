"""``tpl bench``: the layer's speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Suite = Literal["train", "infer", "types", "large"]


def bench(
    *,
    suite: Annotated[tuple[Suite, ...], Parameter(negative="")] = ("train", "infer"),
    rounds: int = 11,
    only: str = "",
    peers: bool = True,
    out: Path = Path("runs/bench"),
) -> None:
    """Time the layer beside those it replaces, other libraries and the machine's limit.

    Args:
        suite: Training, inference, bfloat16 and float64, large maps; repeat it for several.
        rounds: How many times to measure each contender.
        only: Only cases whose name contains this.
        peers: Measure other libraries' layers as well.
        out: Where bench.json, bench.md and bench.png go.
    """
    from ..bench.report import run_and_report

    run_and_report(suites=suite, rounds=rounds, only=only, peers=peers, out=out)
