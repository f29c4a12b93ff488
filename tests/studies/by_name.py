"""Readers of images for tests: by the study's name, with all of the paper's studies known."""

from tensorprojection.cli import summary
from tensorprojection.studies.data import check as checking
from tensorprojection.studies.data import folders, sources
from tensorprojection.studies.data.images import ImageKind
from tensorprojection.studies.registry import KINDS, find_study


def kind_of(study: str) -> ImageKind:
    return find_study(study).images


def find(study, folder):
    return folders.find(kind_of(study), folder)


def check(path, study=None, **options):
    return checking.check(path, KINDS if study is None else [kind_of(study)], **options)


def open_images(study, *arguments, **options):
    return sources.open_images(kind_of(study), *arguments, **options)


def tables(study, **settings):
    return summary.tables(find_study(study), **settings)
