"""The error for what a user can correct."""

from __future__ import annotations


class StudyError(Exception):
    """A mistake in what was asked for, or in the images: one line that says what to do."""


class NotImportedError(StudyError):
    """A run's own study is needed, and the user has not named its file."""
