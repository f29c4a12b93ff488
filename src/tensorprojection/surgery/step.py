"""What became of one projection when its model was folded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """What became of one projection."""

    name: str
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    became: str
