"""Readers of images for tests: by the study's name, with all of the paper's studies known."""

from pathlib import Path

from tensorprojection.cli import summary
from tensorprojection.studies.data import check as checking
from tensorprojection.studies.data import read, sources
from tensorprojection.studies.data.images import ImageKind
from tensorprojection.studies.registry import STUDIES, find_study


def kind_of(study: str) -> ImageKind:
    return find_study(study).images


def find(study, folder):
    """The images of a folder."""
    return read.read_items(kind_of(study), folder)[0]


def check(path, study=None, **options):
    kinds = [kind_of(name) for name in ([study] if study else STUDIES)]
    return checking.check(Path(path), kinds, **options)


def open_images(study, *arguments, **options):
    return sources.open_images(kind_of(study), *arguments, **options)


def tables(study, **settings):
    return summary.tables(find_study(study), **settings)
