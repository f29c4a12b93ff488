"""JSON records that carry their own hash, so that damage to them is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SEAL = "sha256"


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields and, as the last one, a hash of them.

    >>> sealed({"epoch": 1})
    {'epoch': 1, 'sha256': 'becef8ff3d5edb2b'}
    """
    return {**fields, SEAL: _hash(fields)}


def unsealed(record: Any) -> dict[str, Any] | None:
    """The fields without the hash; None where the hash does not fit them."""
    if not isinstance(record, dict):
        return None
    fields = {name: value for name, value in record.items() if name != SEAL}
    return fields if record.get(SEAL) == _hash(fields) else None


def _hash(fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True)  # which writes floats so that they come back whole
    return hashlib.sha256(text.encode()).hexdigest()[:16]
