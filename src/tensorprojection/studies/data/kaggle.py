"""Downloading a data set from Kaggle."""

from __future__ import annotations

from pathlib import Path

from ..errors import StudyError
from .kinds import ImageKind

LOG_IN = (
    "log in first: put an API token from https://www.kaggle.com/settings into KAGGLE_API_TOKEN "
    "or ~/.kaggle/access_token, and accept the data set's terms on its page"
)


def get(kind: ImageKind, out: Path | None = None) -> Path:
    """Download the study's images with kagglehub, which keeps them; returns where they are.

    Args:
        kind: whose images.
        out: a folder for the files; default kagglehub's own cache.
    """
    handle = kind.kaggle
    if handle is None:
        raise StudyError(f"The {kind.name} images are not on Kaggle, as far as the study says.")
    # Not at the top: it takes a second, and only this needs it.
    import kagglehub

    where = {} if out is None else {"output_dir": str(out)}
    try:
        return Path(kagglehub.dataset_download(handle, **where))
    # kagglehub passes on whatever its HTTP, its unpacking and its settings' files raise.
    except Exception as error:
        raise StudyError(
            f"Could not download the {kind.name} images: {_reason(error)}. Or download them by "
            f"hand from https://www.kaggle.com/datasets/{handle}, unpack them, and look at them "
            "with: tpl data check FOLDER"
        ) from error


def _reason(error: Exception) -> str:
    import requests
    from kagglehub.exceptions import (
        CredentialError,
        UnauthenticatedError,
    )

    if isinstance(error, CredentialError | UnauthenticatedError):
        return f"Kaggle does not know you; {LOG_IN}"
    if isinstance(error, requests.ConnectionError | requests.Timeout):
        return "Kaggle cannot be reached; check the connection"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"Kaggle refused it (HTTP {status}); {LOG_IN}"
    if status is not None:
        return f"Kaggle answered HTTP {status}; try again later"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
