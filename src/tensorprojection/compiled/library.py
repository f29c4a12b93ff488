"""The library compiled for this processor, and torch's own threads to run it on.

Note [No second pool of threads]
    The kernels run on the threads of the OpenMP that torch itself has loaded, by way of its entry
    point. A library linked against an OpenMP of its own would start a second set of threads, and
    the two would fight for the cores.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from ctypes import CDLL, c_char_p, c_double, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .build import VARIANTS, digest, library_path

SWITCH = "TENSORPROJECTION_COMPILED"  # "0" in the environment turns the kernels off


class Library(NamedTuple):
    """The functions of the C files, and the entry point of torch's OpenMP to run them by."""

    forward: Any
    backward: Any
    map: Any
    pair: Any
    polar: Any
    polar_grad: Any
    parallel: int


@cache
def load() -> Library | None:
    """The library, or None where it was not built, or is switched off."""
    if os.environ.get(SWITCH, "1") == "0":
        return None
    capability = torch.backends.cpu.get_cpu_capability()
    path = library_path(capability if capability in VARIANTS else "DEFAULT")
    return open_library(path) if path.exists() else None


def open_library(path: Path) -> Library | None:
    """The library at this path; None, with a warning, if it is of other sources than these.

    None as well where torch has no OpenMP that it could share.
    """
    parallel = _parallel()
    if parallel is None:
        return None
    try:
        c = CDLL(str(path))
    except OSError as error:  # compiled for another system
        _warn(f"cannot be loaded ({error})")
        return None
    c.tp_digest.restype = c_char_p
    if c.tp_digest() != digest().encode():
        _warn("are not those of the C files beside them")
        return None
    step: list[Any] = [c_void_p, c_int64, c_void_p]
    c.tp_forward.argtypes = [*step, c_int, c_void_p, c_void_p, c_int, *[c_void_p] * 4]
    c.tp_backward.argtypes = [*step, c_void_p, c_void_p, c_int, *[c_void_p] * 7]
    c.tp_map.argtypes = [*step, c_void_p, c_int, c_void_p, c_void_p]
    c.tp_pair.argtypes = [*step, *[c_void_p] * 6]
    sizes: list[Any] = [c_int64, c_int64, c_double, c_int]
    c.tp_polar.argtypes = [c_void_p, c_int64, c_void_p, *sizes, *[c_void_p] * 4]
    c.tp_polar_grad.argtypes = [c_void_p, c_int64, *[c_void_p] * 5, *sizes, c_void_p]
    return Library(
        c.tp_forward, c.tp_backward, c.tp_map, c.tp_pair, c.tp_polar, c.tp_polar_grad, parallel
    )


def _warn(why: str) -> None:
    warnings.warn(
        f"The compiled kernels {why} and are left aside, which is slower. "
        "Build them anew: python -m tensorprojection.compiled.build",
        stacklevel=3,
    )


def _parallel() -> int | None:
    """OpenMP's entry point in torch's own copy of it."""
    try:
        entry = CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    return ctypes.cast(entry, c_void_p).value


def serves(x: Tensor) -> bool:
    """Whether there are compiled kernels for tensors like x."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and load() is not None
