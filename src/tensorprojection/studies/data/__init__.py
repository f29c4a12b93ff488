"""From folders, files and generators of images to arrays, splits and augmented copies."""

from .images import ImageSet

__all__ = ["ImageSet"]
