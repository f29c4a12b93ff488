"""Where a study's images come from."""

from .images import ImageSet

__all__ = ["ImageSet"]
