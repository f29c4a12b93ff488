"""Seeded generators of images like those of the paper's three studies; nothing is downloaded.

>>> from tensorprojection.studies.data.phantoms import oct
>>> oct.make(8)
ImageSet(8 images of 96 × 96, labels: NORMAL 2, CNV 2, DME 2, DRUSEN 2)
"""

from . import chest, oct, polyp  # noqa: A004

__all__ = ["chest", "oct", "polyp"]
