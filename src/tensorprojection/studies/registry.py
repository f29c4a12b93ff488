"""The studies by name."""

from __future__ import annotations

from .chest import CHEST
from .kvasir import KVASIR
from .oct import OCT
from .study import Study

STUDIES: dict[str, Study] = {study.name: study for study in (OCT, CHEST, KVASIR)}
