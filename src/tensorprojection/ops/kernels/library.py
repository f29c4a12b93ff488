"""Load the library compiled for this processor; the kernels run on torch's own threads.

Note [No second pool of threads]
    The kernels run on the threads of the OpenMP that torch itself has loaded, by way of its entry
    point. A library linked against an OpenMP of its own would start a second set of threads, and
    the two would compete for the cores.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from ctypes import CDLL, POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..limits import MOST_AXES, TILE_MODES
from .build import VARIANTS, digest, library_path

SWITCH = "TENSORPROJECTION_COMPILED"  # "0" in the environment turns the kernels off


class StepStruct(Structure):
    """Step in kernels.h."""

    _fields_ = (("first", c_int64), ("modes", c_int64), ("order", c_int64 * TILE_MODES))


class PlanStruct(Structure):
    """Plan in kernels.h."""

    _fields_ = (
        ("axes", c_int64),
        ("L", c_int64),
        ("chunk", c_int64),
        ("large", c_int64 * MOST_AXES),
        ("small", c_int64 * MOST_AXES),
        ("steps", c_int64),
        ("step", StepStruct * MOST_AXES),
    )


# The arguments of the functions in kernels.h, after the threads' entry point and their number.
_ADDRESS, _MATRIX = c_void_p, (c_int64, c_int64, c_double, c_int)  # p, q, ε, relative
_ARGUMENTS = {
    "tp_map": (POINTER(PlanStruct), _ADDRESS, c_int, _ADDRESS, _ADDRESS),
    "tp_pair": (POINTER(PlanStruct), *[_ADDRESS] * 6),
    "tp_polar": (_ADDRESS, *_MATRIX, *[_ADDRESS] * 4),
    "tp_polar_grad": (*[_ADDRESS] * 5, *_MATRIX, _ADDRESS),
}


class Library(NamedTuple):
    """The functions of the C files, and the entry point of torch's OpenMP to run them on."""

    map: Any
    pair: Any
    polar: Any
    polar_grad: Any
    parallel: int


@dataclass(frozen=True)
class Kernels:
    """State of the compiled kernels: true if they are in use. Printed, it says why not.

    >>> print(Kernels("AVX2", why_not="there was no C compiler at installation"))
    Compiled kernels not in use: there was no C compiler at installation.
    >>> bool(Kernels("AVX2"))
    True
    """

    variant: str  # the kind of processor they are (or would be) compiled for: a key of VARIANTS
    why_not: str = ""  # empty where they are in use

    def __bool__(self) -> bool:
        return not self.why_not

    def __str__(self) -> str:
        if self:
            return f"Compiled kernels in use: {_LABELS[self.variant]}."
        return f"Compiled kernels not in use: {self.why_not}."


_LABELS = {"AVX512": "AVX-512", "AVX2": "AVX2", "DEFAULT": "default (no AVX2 or AVX-512)"}
_BUILD = "python -m tensorprojection.ops.kernels.build"


def kernels() -> Kernels:
    """Return whether the compiled kernels are in use in this process, and if not, why.

    >>> import tensorprojection as tp
    >>> print(tp.kernels())
    Compiled kernels ...in use: ...

    They serve float32 on a CPU; everything else is done by torch's own operations in any case.
    ``tp.explain(layer, x)`` says which of the two a layer takes for an input.
    """
    return search()[1]


@cache
def load() -> Library | None:
    """Return the library, or None if there is none to use; `kernels` says why."""
    return search()[0]


@cache
def search() -> tuple[Library | None, Kernels]:
    """The library for this processor if it can be used, and if not, why."""
    capability = torch.backends.cpu.get_cpu_capability()
    variant = capability if capability in VARIANTS else "DEFAULT"
    if os.environ.get(SWITCH, "1") == "0":
        return None, Kernels(variant, f"switched off by {SWITCH}=0 in the environment")
    path = library_path(variant)
    if not path.exists():
        built = ", ".join(_LABELS[v] for v in VARIANTS if library_path(v).exists())
        others = f" (this processor has {_LABELS[variant]}, built is {built})" if built else ""
        return None, Kernels(variant, f"not built{others}; where there is a C compiler: {_BUILD}")
    try:
        return open_library(path), Kernels(variant)
    except NoThreadsError as error:
        return None, Kernels(variant, str(error))
    except LibraryError as error:
        message = f"The compiled kernels are not used, which is slower: {error}."
        warnings.warn(message, stacklevel=3)
        return None, Kernels(variant, str(error))


class LibraryError(Exception):
    """Why a library cannot be used."""


class NoThreadsError(LibraryError):
    """Building the library again would not help."""


def open_library(path: Path) -> Library:
    """The library at this path; LibraryError if it does not belong to this system or these sources.

    NoThreadsError where torch has no OpenMP that it could share.
    """
    parallel = _parallel()
    if parallel is None:
        raise NoThreadsError("torch has no OpenMP (GOMP_parallel) whose threads they could use")
    try:
        c = CDLL(str(path))
    except OSError as error:
        raise LibraryError(
            f"compiled for another system, or damaged ({error}); to build them anew: {_BUILD}"
        ) from error
    if not hasattr(c, "tp_digest"):
        raise LibraryError(f"{path.name} has no kernels in it; to build them anew: {_BUILD}")
    c.tp_digest.restype = c_char_p
    same_sources = c.tp_digest() == digest().encode()
    if not same_sources or c.tp_plan_size() != ctypes.sizeof(PlanStruct):
        raise LibraryError(
            f"compiled from other sources than the C files beside it; to build them anew: {_BUILD}"
        )
    for name, arguments in _ARGUMENTS.items():
        getattr(c, name).argtypes = (c_void_p, c_int64, *arguments)
    return Library(c.tp_map, c.tp_pair, c.tp_polar, c.tp_polar_grad, parallel)


def _parallel() -> int | None:
    """OpenMP's entry point in torch's own copy of it."""
    try:
        entry = CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    return ctypes.cast(entry, c_void_p).value
